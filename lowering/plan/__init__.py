"""What runs: records of plans and kernels, dtypes, devices, thresholds, and queries on them."""
