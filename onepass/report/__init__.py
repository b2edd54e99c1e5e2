"""What was done and why, as records, and who is told of it."""
