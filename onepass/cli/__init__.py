"""Commands of `python -m onepass`."""
