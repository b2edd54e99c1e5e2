"""What else a region's kernel takes in: producers, epilogues, products."""
