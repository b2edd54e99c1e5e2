"""The public path of the torch operator, which is in runtime/operator.py.

A process that imports onepass.operator can run graphs and packages with the operator.
"""

from .runtime import operator as _operator  # noqa: F401  (registers the operation)
