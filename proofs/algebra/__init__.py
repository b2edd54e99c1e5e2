"""Exact arithmetic: polynomials, normal forms of functions, linear inequalities, floor division."""
