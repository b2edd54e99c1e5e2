"""Scores that are masked by a number far below the others instead of -∞, as by -1e9 or a dtype's least number.

float32's exponential of their distance to the row's greatest score is 0, so that they count only in a row that keeps
nothing; there all of them weigh alike. Where every row is proved to keep something, they are as good as absent.
Called by build.py.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from ..egraph.index import simplify_index
from ..egraph.ops import const, iota, le, logical_and, lt, make
from ..egraph.term import Dim, Term, subterms
from .cuts import at_place

FAR = -(2.0**15)  # scores that are less than it anyway, all of a row, are left out of account


@dataclass(frozen=True)
class Faint:
    """A gauge that is `seen` where `kept` holds, and far below elsewhere."""

    kept: Term
    seen: Term


def faint(gauge: Term) -> Faint | None:
    """The gauge's mask by a number far below, however it was put on; None if there is none, or one by -∞ beside it."""
    found = _faint(gauge)
    hidden = lambda n: n.op == "const" and n.attrs[0] == -float("inf")
    return None if found is None or any(map(hidden, subterms(found.seen))) else found


def _faint(x: Term) -> Faint | None:
    match x.op:
        case "where":
            kept, yes, no = x.args
            if _far(no):
                return Faint(kept, yes)
            return Faint(make("not", (kept,)), no) if _far(yes) else None
        case "add":
            one, other = map(_faint, x.args)
            if one and other:
                return Faint(logical_and(one.kept, other.kept), one.seen + other.seen)
            if one:
                return Faint(one.kept, one.seen + x.args[1])
            return Faint(other.kept, x.args[0] + other.seen) if other else None
        case "cast" if x.dtype in ("float", "float32", "float64"):
            inner = _faint(x.args[0])
            return inner and Faint(inner.kept, make("cast", (inner.seen,), x.attrs))
    return None


def _far(x: Term) -> bool:
    while x.op == "cast":
        x = x.args[0]
    return x.op == "const" and -float("inf") < x.attrs[0] <= FAR


def keeps_some(kept: Term, dim: Dim) -> bool:
    """Proved: for whatever the other coordinates are, the predicate holds at some place of the dim."""
    size = const(dim.size) if isinstance(dim.size, int) else make("size", (), (dim.size,))
    for place in _places(kept, dim, size):
        inside = logical_and(le(const(0), place), lt(place, size))
        if simplify_index(logical_and(inside, at_place(kept, dim, place))) is const(True):
            return True
    return False


def _places(kept: Term, dim: Dim, size: Term) -> Iterator[Term]:
    """Where masks keep something: at the ends of the dim, at the place of a row, counted from either end."""
    yield from (const(0), size - const(1))
    for row in sorted(kept.dims - {dim}):
        yield iota(row)
        yield iota(row) + size - (const(row.size) if isinstance(row.size, int) else make("size", (), (row.size,)))
