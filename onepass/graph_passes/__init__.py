"""Passes over a graph, in order; the last one replaces regions."""
