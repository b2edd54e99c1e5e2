"""A plan run in stages: kernels, and products of stored matrices by torch, for parts of one dim after another."""
