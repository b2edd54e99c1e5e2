"""Pure questions about terms and plans."""
