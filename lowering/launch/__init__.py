"""What is settled when sizes, strides and device are known."""
