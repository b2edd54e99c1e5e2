"""Attention over a sequence that several ranks share: its state is derived, exchanged, and merged by the merge law."""
