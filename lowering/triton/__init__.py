"""A kernel in Triton: its text and its launch."""
