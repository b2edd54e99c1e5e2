"""What was done and why, as records and as text."""
