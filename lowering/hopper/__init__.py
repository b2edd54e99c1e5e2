"""Which kernels have the warp-specialised form of Hopper, and with which settings."""
