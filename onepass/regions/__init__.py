"""Which parts of a graph are worth a kernel."""
