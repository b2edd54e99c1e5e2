"""Two kernels that compute the same tiles, by rows and by columns, as one kernel of Hopper that adds to memory."""
