"""The public path of the operations that laws are written with; they are defined in terms/ops.py.

Example: `from onepass.egraph.ops import exp, where`.
"""

from .terms.ops import *  # noqa: F403  (every name of terms/ops.py is public under this path)
