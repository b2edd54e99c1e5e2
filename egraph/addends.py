"""What a sum adds up or chooses from, and which of it may be a mask by a number far below the rest.

Rounding a sum to half precision absorbs what stands beside such a number: float16(s - 65504) is -65504 for small s.
"""

from __future__ import annotations

from collections.abc import Iterator
from math import isfinite

from .term import Term, subterms

ABSORBED = 2048  # float16 has no odd integers beyond it: beside such a number rounding moves a score by one and more
THROUGH = ("neg", "cast", "where", "maximum", "minimum")


def addends(x: Term) -> Iterator[Term]:
    """What is added up or chosen from, through casts and multiples by a literal."""
    if x.op in ("add", "sub", *THROUGH) or (x.op == "mul" and any(a.op == "const" for a in x.args)):
        for part in x.args[x.op == "where" :]:
            yield from addends(part)
    else:
        yield x


def may_mask(x: Term) -> bool:
    """A tensor that is read where it stands may hold least numbers; a table that is looked up is taken not to."""
    return x.op == "load" and not any(n.op == "load" for index in x.args for n in subterms(index))


def absorbs(x: Term, dtype: str) -> bool:
    """Whether rounding x to the dtype may absorb an addend: of float16, beside a mask by a number or by a tensor."""
    if dtype != "float16":
        return False
    if x.op in ("add", "sub"):
        return any(may_mask(part) or _is_large(part) for part in addends(x))
    return x.op in THROUGH and any(absorbs(part, dtype) for part in x.args)


def _is_large(x: Term) -> bool:
    return x.op == "const" and isfinite(x.attrs[0]) and abs(x.attrs[0]) >= ABSORBED
