"""Provers: each decides one kind of question about a rule."""
