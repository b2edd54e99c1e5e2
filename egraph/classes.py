"""Classes of operations and monoids that laws may ask for, as a table; a test holds each row to the meanings of ops.py.

Increasing: f(x) is defined for every x up to ±∞ and never falls as x grows; decreasing: never rises. Used by guard.py.
"""

from __future__ import annotations

OPERATION_OF = {"sum": "add", "prod": "mul", "max": "maximum", "min": "minimum", "any": "or", "all": "and"}
"""What a monoid folds with, where that is an operation of terms."""

MONOID_NAMES = (*OPERATION_OF, "rescaled")  # every one is associative and commutative, by being a monoid here

CLASSES = {
    "increasing": ("exp", "exp2", "tanh", "sigmoid", "erf", "floor"),
    "decreasing": ("neg",),
    "commutative": ("add", "mul", "maximum", "minimum", "and", "or", "eq", *MONOID_NAMES),
    "associative": ("add", "mul", "maximum", "minimum", "and", "or", *MONOID_NAMES),
    "idempotent": ("maximum", "minimum", "and", "or", "max", "min", "any", "all"),
}
