"""Names of dtypes: which are half precision, which are integers, and numbers as literals of a kernel's text.

Example: `literal(inf)` is `float("inf")`, since a kernel language has no literal for it.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import isinf, isnan

from ...egraph.terms.term import FLOATS, Term

HALVES = ("float16", "bfloat16")
E4M3 = "float8_e4m3fn"  # one byte: four bits of exponent, three of mantissa; its largest number is 448
E5M2 = "float8_e5m2"  # five bits of exponent, two of mantissa; its largest number is 57344
INT8 = "int8"
BYTES = (E4M3, E5M2, INT8)  # of one byte, with products of their own; halves hold each of their numbers
MULTIPLIED = (*HALVES, *BYTES)  # what Hopper's products of warpgroups take here


def is_integer(dtype: str) -> bool:
    return dtype.startswith(("int", "uint"))


def literal(value: float | bool) -> str:
    """A Python literal that Triton's language takes; infinities have no literal of their own."""
    if isinstance(value, float) and (isinf(value) or isnan(value)):
        return f'float("{value}")'
    return repr(value)


def adapting(operands: Sequence[Term]) -> list[bool]:
    """Which operands are made of literals alone, beside numbers of which none is float64: they adapt, in float32.

    A kernel that reads float64 elsewhere computes such literals in float64, and the sum of a score and a mask's number
    would not be what a kernel without float64 makes of them.
    """
    beside = {a.dtype for a in operands if a.dtype in FLOATS} - {"float"}
    return [bool(beside) and "float64" not in beside and a.dtype == "float" for a in operands]
