"""Kernels whose groups of warps wait for one another: memory, barriers, and every order in which warps may run."""
