"""Reads a plan back as terms and holds it against the terms that were asked for."""
