"""What a sum adds up or chooses from, and which of it may be a mask by a number far below the rest.

Rounding a sum to half precision absorbs what stands beside such a number: float16(s - 65504) is -65504 for small s.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from math import isfinite

from .term import Term
from .traversal import subterms

ABSORBED = 2048  # float16 has no odd integers beyond it: beside such a number rounding moves a score by one and more
THROUGH = ("neg", "cast", "where", "maximum", "minimum")


def addends(root: Term) -> Iterator[Term]:
    """What is added up or chosen from, each once, through casts and multiples by a literal."""
    for x in _reached(root, lambda x: x.op in ("add", "sub", *THROUGH) or _is_multiple(x)):
        if x.op not in ("add", "sub", *THROUGH) and not _is_multiple(x):
            yield x


def _is_multiple(x: Term) -> bool:
    return x.op == "mul" and any(a.op == "const" for a in x.args)


def _reached(root: Term, goes_on: Callable[[Term], bool]) -> list[Term]:
    """The root and what is reached from it through terms that go on, each once; of a choice both values."""
    found, seen = [root], {root}
    for x in found:
        fresh = [a for a in x.args[x.op == "where" :] if a not in seen] if goes_on(x) else []
        seen.update(fresh)
        found += dict.fromkeys(fresh)
    return found


def may_mask(x: Term) -> bool:
    """A tensor that is read where it stands may hold least numbers; a table that is looked up is taken not to."""
    return x.op == "load" and not any(n.op == "load" for index in x.args for n in subterms(index))


def absorbs(x: Term, dtype: str) -> bool:
    """Whether rounding x to the dtype may absorb an addend: of float16, beside a mask by a number or by a tensor."""
    sums = [y for y in _reached(x, lambda y: y.op in THROUGH) if y.op in ("add", "sub")]
    return dtype == "float16" and any(may_mask(part) or _is_large(part) for y in sums for part in addends(y))


def _is_large(x: Term) -> bool:
    return x.op == "const" and isfinite(x.attrs[0]) and abs(x.attrs[0]) >= ABSORBED
