"""Questions about one fx graph, and a region as data."""
