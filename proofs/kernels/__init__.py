"""The text of kernels against the terms that they are to compute, over exact numbers."""
