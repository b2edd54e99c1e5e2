"""The door of the torch operator: a process that imports onepass.operator can run graphs and packages that hold it.

The operator is in runtime/operator.py.
"""

from .runtime import operator as _operator  # noqa: F401  (registers the operation)
