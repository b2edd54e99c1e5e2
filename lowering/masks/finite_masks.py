"""Scores that are masked by a number far below the others instead of -∞, as by -1e9 or a dtype's least number.

float32's exponential of their distance to the row's greatest score is 0, so that they count only in a row that keeps
nothing; there all of them weigh alike. Where every row is proved to keep something, they are as good as absent;
elsewhere a block map, which knows the rows, says which tiles may be skipped.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import reduce
from itertools import product
from math import inf

from ...egraph.terms.addends import addends, may_mask
from ...egraph.terms.affine import length
from ...egraph.terms.index_simplify import simplify_index
from ...egraph.terms.ops import const, iota, le, logical_and, logical_or, lt, make, rounded, where
from ...egraph.terms.term import FLOATS, Dim, Term
from ...egraph.terms.traversal import subterms
from ..plan.records import Loop, Range
from ..plan.term_edits import at_place
from .loop_ranges import EVERYWHERE, conjunction, conjuncts, ranges

FAR = -(2.0**15)  # scores that are less than it anyway, all of a row, are left out of account
ABSORBING = -(2.0**100)  # nothing that is added to it changes it
OVERFLOW = 2.0**128  # of float32
LONGEST = 2**24  # no sequence is longer


@dataclass(frozen=True)
class Faint:
    """A gauge that is `seen` where `kept` holds, and far below elsewhere: about `fill`, or it and no other number."""

    kept: Term
    seen: Term
    fill: float
    alike: bool = True

    def beneath(self, inner: Faint | None) -> Faint:
        """With what it sees masked by the same number, to which nothing adds."""
        if inner is None or not inner.alike or inner.fill != self.fill or self.fill > ABSORBING:
            return self
        return Faint(logical_and(self.kept, inner.kept), inner.seen, self.fill)

    def plus(self, other: Term) -> Faint:
        seen = other if self.seen.op == "const" and self.seen.attrs[0] == 0 else self.seen + other
        return Faint(self.kept, seen, self.fill, self.alike and self.fill <= ABSORBING)


def faint(gauge: Term) -> Faint | None:
    """The gauge's mask by a number far below, however it was put on; None if there is none, or two."""
    found = _faint(gauge)
    hidden = lambda n: n.op == "const" and n.attrs[0] == -inf
    if found is None or any(map(hidden, subterms(found.seen))) or any(map(may_mask, addends(found.seen))):
        return None
    return None if any(map(_is_far, addends(found.seen))) else found  # else a row's kept scores may be far below too


def _is_far(x: Term) -> bool:
    """Integers are taken for coordinates until they are larger than any."""
    return x.op == "const" and abs(x.attrs[0]) >= (-FAR if isinstance(x.attrs[0], float) else LONGEST)


def _faint(x: Term) -> Faint | None:
    match x.op:
        case "where":
            kept, yes, no = x.args
            if fill := _far(no):
                return Faint(kept, yes, fill).beneath(_faint(yes))
            return Faint(make("not", (kept,)), no, fill).beneath(_faint(no)) if (fill := _far(yes)) else None
        case "add":
            one, other = map(_faint, x.args)
            if one and other:
                return Faint(logical_and(one.kept, other.kept), one.seen + other.seen, one.fill + other.fill, False)
            return one.plus(x.args[1]) if one else other and other.plus(x.args[0])
        case "mul":
            return _scaled(*x.args) or _scaled(*x.args[::-1])
        case "cast" if x.dtype in FLOATS:
            if (inner := _faint(x.args[0])) and (fill := rounded(inner.fill, x.dtype).item()) > -inf:
                return replace(inner, seen=make("cast", (inner.seen,), x.attrs), fill=fill)
    return None


def _scaled(masked: Term, factor: Term) -> Faint | None:
    """A mask that was put on before the scale: its number is scaled too, and still far below and no -∞."""
    if factor.op != "const" or factor.attrs[0] <= 0 or (inner := _faint(masked)) is None:
        return None
    fill = inner.fill * factor.attrs[0]
    return replace(inner, seen=make("mul", (inner.seen, factor)), fill=fill) if -OVERFLOW < fill <= FAR else None


def _far(x: Term) -> float:
    """The literal, if it is that low; else 0."""
    while x.op == "cast":
        x = x.args[0]
    return float(x.attrs[0]) if x.op == "const" and -inf < x.attrs[0] <= FAR else 0.0


def fainted(loop: Loop, terms: Sequence[Term], known: set[Dim], rows: Dim | None) -> Loop | None:
    """The loop with the mask of its scores as its guard; None where they have none, or where more is asked for of a row
    that keeps nothing than that its scores weigh alike. Limits that are known in front of the loop leave nothing to be
    told by a map, so that it is faint no more. known: the dims whose coordinates are.
    """
    found = [a.gauge and faint(a.gauge) for a in loop.accumulators]
    if loop.guard is not None or not all(x and x.alike for x in found) or len({x.kept for x in found}) != 1:
        return None
    mine = {r for a in loop.accumulators for r in a.reductions}
    if any(n.op == "scale" and n.args[0] in mine for term in terms for n in subterms(term)):
        return None
    guard = conjunction(conjuncts(found[0].kept))
    pairs = list(zip(loop.accumulators, found, strict=True))
    gauged = lambda change: tuple(replace(a, gauge=change(x.seen)) for a, x in pairs)
    limits = ranges(guard, loop.dim, rows) if guard.dims <= known | {loop.dim} else ()
    nothing = _keeps_nothing(limits, loop.dim, rows)
    if nothing.op != "const":
        limits = tuple(_everywhere_if(nothing, r, loop.dim) for r in limits)
        guard = reduce(logical_or, (_inside(r, loop.dim) for r in limits))
        states = gauged(lambda seen: where(nothing, const(0.0), seen))
        return replace(loop, accumulators=states, guard=guard, ranges=limits)
    return replace(loop, accumulators=gauged(lambda seen: seen), guard=guard, ranges=(EVERYWHERE,), faint=True)


def _keeps_nothing(found: Sequence[Range], dim: Dim, rows: Dim | None) -> Term:
    """Where all the ranges are empty; false where they are not known, or rows differ."""
    if not found or not all(r.exact and rows not in _dims_of(r) for r in found):
        return const(False)
    empty = [reduce(logical_or, _crossings(r, length(dim)), const(False)) for r in found]
    return simplify_index(reduce(logical_and, empty))


def _dims_of(found: Range) -> set[Dim]:
    return set().union(*(limit.bound.dims for limit in (*found.uppers, *found.lowers)))


def _everywhere_if(nothing: Term, found: Range, dim: Dim) -> Range:
    """The range, or the whole dim where the predicate holds."""
    ends = ((found.uppers, length(dim)), (found.lowers, const(0)))
    return Range(*(tuple(replace(x, bound=where(nothing, end, x.bound)) for x in limits) for limits, end in ends), True)


def _inside(found: Range, dim: Dim) -> Term:
    j = iota(dim)
    return reduce(logical_and, (*(lt(j, x.bound) for x in found.uppers), *(le(x.bound, j) for x in found.lowers)))


def _crossings(found: Range, size: Term) -> Iterator[Term]:
    """Which two ends of a range in 0 .. size may leave nothing between them."""
    uppers, lowers = ((*(limit.bound for limit in limits), None) for limits in (found.uppers, found.lowers))
    for upper, lower in product(uppers, lowers):
        if upper is not None or lower is not None:
            yield simplify_index(le(size if upper is None else upper, const(0) if lower is None else lower))


def keeps_some(kept: Term, dim: Dim) -> bool:
    """Proved: for whatever the other coordinates are, the predicate holds at some place of the dim."""
    for place in _places(kept, dim):
        inside = logical_and(le(const(0), place), lt(place, length(dim)))
        if simplify_index(logical_and(inside, at_place(kept, dim, place))) is const(True):
            return True
    return False


def _places(kept: Term, dim: Dim) -> Iterator[Term]:
    """Where masks keep something: at the ends of the dim, at the place of a row, counted from either end."""
    yield from (const(0), length(dim) - const(1))
    for row in sorted(kept.dims - {dim}):
        yield iota(row)
        yield iota(row) + length(dim) - length(row)
