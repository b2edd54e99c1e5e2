"""A report in words: its answers, its lines, the loops of a kernel."""
