"""Exact arithmetic: polynomials, linear inequalities, floor division."""
