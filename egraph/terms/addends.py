"""Finds the addends of a term, and decides whether rounding a sum to half precision can lose one of them.

A large addend absorbs a small one: float16(s - 65504) is -65504 for every small s. Masks use such large numbers.
Example: the addends of `where(p, x + y, z * 2.0)` are x, y and z.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from math import isfinite

from .term import Term
from .traversal import subterms

# float16 has no odd integers beyond this number: an addend of 1 beside it is lost.
MIN_ABSORBING_MAGNITUDE = 2048
PASSES_VALUE_ON = ("neg", "cast", "where", "minimum")  # the result is one of the operands, or its negative


def addends(root: Term) -> Iterator[Term]:
    """The terms that the root adds up or chooses from, each once. Casts and literal factors are looked through."""
    return (x for x in _reached(root, _has_addends) if not _has_addends(x))


def _has_addends(x: Term) -> bool:
    """Whether the addends of x are those of its operands."""
    is_multiple = x.op == "mul" and any(a.op == "const" for a in x.args)
    return is_multiple or x.op in ("add", "sub") or _passes_value_on(x)


def _passes_value_on(x: Term) -> bool:
    """Whether x may be a mask's number because an operand is: a maximum is, beside a literal, or of tensors alone."""
    if x.op == "maximum":
        return any(a.op == "const" for a in x.args) or all(map(_is_read, x.args))
    return x.op in PASSES_VALUE_ON


def _is_read(x: Term) -> bool:
    """Whether x is an element of a tensor, up to its dtype."""
    return x.op == "load" or (x.op == "cast" and _is_read(x.args[0]))


def _reached(root: Term, goes_on: Callable[[Term], bool]) -> list[Term]:
    """The root and the operands of every reached term that goes on, each once. A `where` is left by its two values."""
    found, seen = [root], {root}
    for x in found:
        fresh = [a for a in x.args[x.op == "where" :] if a not in seen] if goes_on(x) else []
        seen.update(fresh)
        found += dict.fromkeys(fresh)
    return found


def may_mask(x: Term) -> bool:
    """Whether x is an element of a tensor that may hold masking numbers such as -65504.

    A table, whose index is itself loaded, is taken to hold none.
    """
    return x.op == "load" and not any(n.op == "load" for index in x.args for n in subterms(index))


def absorbs(x: Term, dtype: str) -> bool:
    """Whether rounding x to the dtype may absorb an addend: x is a sum with a large literal or with a mask tensor."""
    sums = [y for y in _reached(x, _passes_value_on) if y.op in ("add", "sub")]
    return dtype == "float16" and any(may_mask(part) or _is_large(part) for y in sums for part in addends(y))


def _is_large(x: Term) -> bool:
    return x.op == "const" and isfinite(x.attrs[0]) and abs(x.attrs[0]) >= MIN_ABSORBING_MAGNITUDE
