"""Exponents of softmax weights as text, in base 2 (analysis/softmax_scaling.py says how they are scaled).

A weight is `exp2(exponent)` of a score and a shift, the largest score so far. Scales are kept in base 2, or, where they
must be exact, in the scores' own unit. Example: with a factor c, `exponent(...)` is `score * c - shift`.
"""

from __future__ import annotations

from ..analysis.softmax_scaling import LOG2_E, Weighing
from ..plan.dtypes import literal


def factor(scaling: Weighing) -> str:
    """The number that makes a raw score an exponent in base 2."""
    return literal(scaling.natural * scaling.within)


def scale(scaling: Weighing, top: str) -> str:
    """The scale of the largest raw score."""
    return top if scaling.apart else f"{top} * {factor(scaling)}"


def exponent(scaling: Weighing, score: str, shift: str) -> str:
    """In base 2, of a raw score, from a shift in the unit of scales."""
    if scaling.apart:
        return f"({score} - {shift}) * {factor(scaling)}"
    return f"{score} * {factor(scaling)} - {shift}"


def decay(scaling: Weighing, before: str, shift: str) -> str:
    """In base 2, the exponent of the factor that takes sums from an earlier scale to a later one."""
    return f"({before} - {shift}) * {factor(scaling)}" if scaling.apart else f"{before} - {shift}"


def doublings(scaling: Weighing, count: float) -> float:
    """So many doublings of a weight, in the unit of scales."""
    return count / LOG2_E if scaling.apart else count


def natural_scale(scaling: Weighing, scale: str) -> str:
    """The largest score itself."""
    return scale if scaling.apart else f"{scale} * {literal(1 / LOG2_E)}"
