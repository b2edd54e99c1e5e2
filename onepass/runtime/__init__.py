"""The torch operator, and who runs it."""
