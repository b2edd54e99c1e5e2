"""What operations, monoids and kinds of variables mean in Rocq: the names of theory/Values.v and theory/Folds.v.

A row names one definition; nothing here is a formula. An operation may have one meaning for each sort of its operands:
numbers (`value`), integers (`Z`), truth values (`bool`), states of a rescaled sum (`state`). A test compares the
meanings of numbers with those of egraph/terms/ops.py. Example: "add" of integers is `Z.add`.
"""

from __future__ import annotations

from ..provers.extended_reals import ABSENT, NEG, PAIR_OF_REALS, POS, REAL, UNDEFINED

NUMBER, INTEGER, TRUTH, STATE = "value", "Z", "bool", "state"

OPERATIONS: dict[str, dict[str, str]] = {  # operation: its definition by the sort of its last operand
    "neg": {NUMBER: "negate", INTEGER: "Z.opp"},
    "exp": {NUMBER: "exponential"},
    "exp2": {NUMBER: "power_of_two"},
    "log": {NUMBER: "logarithm"},
    "log2": {NUMBER: "binary_logarithm"},
    "log1p": {NUMBER: "logarithm_after_one"},
    "sqrt": {NUMBER: "root"},
    "rsqrt": {NUMBER: "reciprocal_root"},
    "tanh": {NUMBER: "hyperbolic_tangent"},
    "sigmoid": {NUMBER: "sigmoid"},
    "erf": {NUMBER: "error_function"},
    "sin": {NUMBER: "sine"},
    "cos": {NUMBER: "cosine"},
    "abs": {NUMBER: "magnitude", INTEGER: "Z.abs"},
    "floor": {NUMBER: "whole_part"},
    "finite": {NUMBER: "is_finite"},
    "stored": {NUMBER: "kept", INTEGER: "kept", TRUTH: "kept"},
    "not": {TRUTH: "negb"},
    "add": {NUMBER: "plus", INTEGER: "Z.add"},
    "sub": {NUMBER: "minus", INTEGER: "Z.sub"},
    "mul": {NUMBER: "times", INTEGER: "Z.mul"},
    "div": {NUMBER: "divide"},
    "pow": {NUMBER: "power"},
    "maximum": {NUMBER: "larger", INTEGER: "Z.max"},
    "minimum": {NUMBER: "smaller", INTEGER: "Z.min"},
    "floordiv": {NUMBER: "whole_quotient", INTEGER: "Z.div"},
    "mod": {NUMBER: "remainder", INTEGER: "Z.modulo"},
    "lt": {NUMBER: "less unknown", INTEGER: "Z.ltb"},
    "le": {NUMBER: "at_most unknown", INTEGER: "Z.leb"},
    "eq": {NUMBER: "equals unknown", INTEGER: "Z.eqb", TRUTH: "Bool.eqb"},
    "and": {TRUTH: "andb"},
    "or": {TRUTH: "orb"},
    "where": {NUMBER: "choice", INTEGER: "choice", TRUTH: "choice"},
    "only": {STATE: "present_where"},
    "scaled": {NUMBER: "scaled"},
    "scale": {STATE: "scale_of"},
    "mantissa": {STATE: "mantissa_of"},
}

FOLDS: dict[str, dict[str, str]] = {  # monoid: its reduction over a range, by the sort of its body
    "sum": {NUMBER: "sum_over"},
    "prod": {NUMBER: "product_over"},
    "max": {NUMBER: "highest_over"},
    "min": {NUMBER: "lowest_over"},
    "any": {TRUTH: "any_over"},
    "all": {TRUTH: "all_over"},
    "rescaled": {STATE: "merged_over"},
}

UNKNOWN = "unknown"  # says of each undefined comparison whether it is true; a law holds for every choice
TYPES_OF_NUMBERS: dict[tuple[str, ...], tuple[str, str]] = {  # kinds of a variable: its type, and its value
    (REAL,): ("R", "Number"),
    (REAL, NEG): ("option R", "score"),
    (REAL, NEG, POS, UNDEFINED): ("literal", "written"),
    (PAIR_OF_REALS, ABSENT): ("option (R * R)", "held"),
}
# Other words of statements, and keywords: no variable has such a name.
WORDS = frozenset(
    "value R Z nat bool option literal Number Above Below Undefined true false refines rounds changes_nothing "
    "forall exists fun let in if then else match with end as at return fix cofix for where using Prop Set Type".split()
)
SIGNS = {INTEGER: {1: "(0 < {})%Z", 0: "{} <> 0%Z"}, "R": {1: "0 < {}", 0: "{} <> 0"}}  # what is known of a variable
SIZES = {"in_blocks": "*", "in_two": "+"}  # guards about the size of a dim: what its parts' sizes are joined by
# What a law claims of its sides, by whether both are undefined at the same places.
EQUAL, REFINES = "{} =\n    {}", "refines {}\n    {}"
