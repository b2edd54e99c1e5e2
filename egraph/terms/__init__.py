"""What a program is: terms over named dimensions, operations and their meanings, sizes, printing."""

from . import ops, printing  # noqa: F401  (they fill the hooks of term.py)
