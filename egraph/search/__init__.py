"""The cheapest equal term: e-graph, cost, extraction."""
