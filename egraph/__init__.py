"""The bottom layer: terms over named dims, operations, rules as records, the search engine, cost and extraction.

The names of this module are what laws are written with; everything else is in the folders.
"""

from .rewrite.define import rule
from .rewrite.guard import (
    apart,
    associative,
    commutative,
    constant,
    decreasing,
    depends,
    divisible,
    float_dtype,
    has_dtype,
    idempotent,
    in_range,
    increasing,
    independent,
    integer,
    nonzero,
    not_absorbed,
    not_constant,
    not_share,
    operation_of,
    positive,
    rank,
    size_at_most,
    within,
)
from .rewrite.pattern import also, either, exists, given, recursive
from .rewrite.pattern_rule import PatternRule, decline
from .rewrite.rule import Rule, RuleError
from .terms.term import Dim, Tensor, Term, TermError

__all__ = [
    "Dim",
    "PatternRule",
    "Rule",
    "RuleError",
    "Tensor",
    "Term",
    "TermError",
    "also",
    "apart",
    "associative",
    "commutative",
    "constant",
    "decline",
    "decreasing",
    "depends",
    "divisible",
    "either",
    "exists",
    "float_dtype",
    "given",
    "has_dtype",
    "idempotent",
    "in_range",
    "increasing",
    "independent",
    "integer",
    "nonzero",
    "not_absorbed",
    "not_constant",
    "not_share",
    "operation_of",
    "positive",
    "rank",
    "recursive",
    "rule",
    "size_at_most",
    "within",
]
