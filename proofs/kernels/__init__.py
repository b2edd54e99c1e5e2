"""Exact numbers, and the meaning of the texts of Triton kernels over them."""
