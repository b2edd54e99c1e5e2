"""The door of what laws are written with: `from onepass.egraph.ops import exp, where`, for example.

The operations are in terms/ops.py.
"""

from .terms.ops import *  # noqa: F403
