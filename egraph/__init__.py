"""The bottom layer: terms over named dims, operations, rules as records, the search engine, cost and extraction.

What a law is written with is a name of this module; everything else is in its modules.
"""

from .guard import (
    constant,
    depends,
    float_dtype,
    has_dtype,
    in_range,
    independent,
    integer,
    nonzero,
    not_constant,
    positive,
)
from .rule import Rule, RuleError, rule
from .term import Dim, Tensor, Term, TermError

__all__ = [
    "Dim",
    "Rule",
    "RuleError",
    "Tensor",
    "Term",
    "TermError",
    "constant",
    "depends",
    "float_dtype",
    "has_dtype",
    "in_range",
    "independent",
    "integer",
    "nonzero",
    "not_constant",
    "positive",
    "rule",
]
