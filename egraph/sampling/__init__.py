"""Concrete instances of rules, mutants of rules, and the comparison of both sides."""
