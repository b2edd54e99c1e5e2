"""The texts of kernels held against the terms that they are to compute, and wrong texts that this finds."""
