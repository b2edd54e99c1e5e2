"""Names of dtypes: which are half precision, which are integers, and numbers as literals of a kernel's text.

Example: `literal(inf)` is `float("inf")`, since a kernel language has no literal for it.
"""

from __future__ import annotations

from math import isinf, isnan

HALVES = ("float16", "bfloat16")
E4M3 = "float8_e4m3fn"  # one byte: four bits of exponent, three of mantissa; its largest number is 448
MULTIPLIED = (*HALVES, E4M3)  # what Hopper's products of warpgroups take here


def is_integer(dtype: str) -> bool:
    return dtype.startswith(("int", "uint"))


def literal(value: float | bool) -> str:
    """A Python literal that Triton's language takes; infinities have no literal of their own."""
    if isinstance(value, float) and (isinf(value) or isnan(value)):
        return f'float("{value}")'
    return repr(value)
