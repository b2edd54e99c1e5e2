"""Masks that use a large negative number (-1e9, `finfo.min`) instead of -∞.

The weight of a masked score is 0 in float32, unless its row keeps nothing: then all scores of the row weigh alike.
Where each row is proved to keep something, masked scores are as good as absent. Elsewhere a block map, which knows the
rows, decides which tiles are skipped. Example: where(j <= i, s, -1e9) keeps j = i in each row.
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
from ...egraph.terms.traversal import at_place, subterms
from ..plan.records import Accumulator, Loop, Range
from .loop_ranges import EVERYWHERE, conjunction, conjuncts, ranges

MAX_FILL = -(2.0**15)  # masked scores are at most this; scores of a row that are all as low are not considered
ABSORBING_FILL = -(2.0**100)  # at most this, nothing that is added to a fill changes it
FLOAT32_OVERFLOW = 2.0**128
MAX_SEQUENCE_LENGTH = 2**24


@dataclass(frozen=True)
class FiniteMask:
    """Scores that are `seen` where `kept` holds, and about `fill` elsewhere; is_constant: exactly `fill`."""

    kept: Term
    seen: Term
    fill: float
    is_constant: bool = True

    def over(self, inner: FiniteMask | None) -> FiniteMask:
        """This mask and the one of the scores that it sees, if both fill with one number that absorbs what is added."""
        if inner is None or not inner.is_constant or inner.fill != self.fill or self.fill > ABSORBING_FILL:
            return self
        return FiniteMask(logical_and(self.kept, inner.kept), inner.seen, self.fill)

    def plus(self, other: Term) -> FiniteMask:
        """The mask of the sum of these scores and another term."""
        seen = other if self.seen.op == "const" and self.seen.attrs[0] == 0 else self.seen + other
        return FiniteMask(self.kept, seen, self.fill, self.is_constant and self.fill <= ABSORBING_FILL)


def finite_mask(scores: Term) -> FiniteMask | None:
    """The finite mask of the scores, by `where` or by addition; None if there is none, or a second mask."""
    found = _mask_of(scores)
    hidden = lambda n: n.op == "const" and n.attrs[0] == -inf
    if found is None or any(map(hidden, subterms(found.seen))) or any(map(may_mask, addends(found.seen))):
        return None
    return None if any(map(_is_far, addends(found.seen))) else found  # else kept scores of a row may be as low


def _is_far(x: Term) -> bool:
    """Whether this is a literal as large as a fill. An integer below the longest sequence may be a coordinate."""
    if x.op != "const":
        return False
    return abs(x.attrs[0]) >= (-MAX_FILL if isinstance(x.attrs[0], float) else MAX_SEQUENCE_LENGTH)


def _mask_of(x: Term) -> FiniteMask | None:
    match x.op:
        case "where":
            kept, yes, no = x.args
            if fill := _fill(no):
                return FiniteMask(kept, yes, fill).over(_mask_of(yes))
            if fill := _fill(yes):
                return FiniteMask(make("not", (kept,)), no, fill).over(_mask_of(no))
        case "add":
            one, other = map(_mask_of, x.args)
            if one and other:
                kept = logical_and(one.kept, other.kept)
                return FiniteMask(kept, one.seen + other.seen, one.fill + other.fill, is_constant=False)
            return one.plus(x.args[1]) if one else other and other.plus(x.args[0])
        case "mul":
            return _scaled(*x.args) or _scaled(*x.args[::-1])
        case "cast" if x.dtype in FLOATS:
            if (inner := _mask_of(x.args[0])) and (fill := rounded(inner.fill, x.dtype).item()) > -inf:
                return replace(inner, seen=make("cast", (inner.seen,), x.attrs), fill=fill)
    return None


def _scaled(masked: Term, factor: Term) -> FiniteMask | None:
    """The mask of masked scores times a constant, if the scaled fill is still low enough and not -∞."""
    if factor.op != "const" or factor.attrs[0] <= 0 or (inner := _mask_of(masked)) is None:
        return None
    fill = inner.fill * factor.attrs[0]
    is_fill = -FLOAT32_OVERFLOW < fill <= MAX_FILL
    return replace(inner, seen=make("mul", (inner.seen, factor)), fill=fill) if is_fill else None


def _fill(x: Term) -> float:
    """The literal, if it is low enough for a fill; else 0."""
    while x.op == "cast":
        x = x.args[0]
    return float(x.attrs[0]) if x.op == "const" and -inf < x.attrs[0] <= MAX_FILL else 0.0


def with_finite_mask_as_guard(loop: Loop, terms: Sequence[Term], known: set[Dim], rows: Dim | None) -> Loop | None:
    """The loop with the finite mask of its scores as its guard; None if it has none that can be a guard.

    If ranges that are known before the loop say which elements a row keeps, the loop runs them; it runs all where they
    are empty, with scores that are all alike. Otherwise the guard is for a block map, and the loop is marked as
    `finite_mask`. known: the dims whose coordinates are known before the loop.
    """
    masks = _uniform_masks(loop, terms)
    if masks is None:
        return None
    guard = conjunction(conjuncts(masks[0].kept))
    limits = ranges(guard, loop.dim, rows) if guard.dims <= known | {loop.dim} else ()
    nothing = _keeps_nothing(limits, loop.dim, rows)
    if nothing.op == "const":
        return replace(
            loop, accumulators=_with_scores(loop, masks), guard=guard, ranges=(EVERYWHERE,), finite_mask=True
        )
    limits = tuple(_everywhere_if(nothing, r, loop.dim) for r in limits)
    return replace(
        loop,
        accumulators=_with_scores(loop, [replace(m, seen=where(nothing, const(0.0), m.seen)) for m in masks]),
        guard=reduce(logical_or, (_inside(r, loop.dim) for r in limits)),
        ranges=limits,
    )


def _uniform_masks(loop: Loop, terms: Sequence[Term]) -> list[FiniteMask] | None:
    """The masks of the loop's accumulators, where all keep the same and a row that keeps nothing weighs all alike.

    None where the loop has another guard, or where a term reads a scale, which such a row has of its own.
    """
    found = [finite_mask(a.gauge) if a.gauge is not None else None for a in loop.accumulators]
    if loop.guard is not None or not all(m and m.is_constant for m in found) or len({m.kept for m in found}) != 1:
        return None
    mine = {r for a in loop.accumulators for r in a.reductions}
    reads_scale = any(n.op == "scale" and n.args[0] in mine for term in terms for n in subterms(term))
    return None if reads_scale else found


def _with_scores(loop: Loop, masks: Sequence[FiniteMask]) -> tuple[Accumulator, ...]:
    """The accumulators with the scores that their masks leave visible."""
    return tuple(replace(a, gauge=m.seen) for a, m in zip(loop.accumulators, masks, strict=True))


def _keeps_nothing(found: Sequence[Range], dim: Dim, rows: Dim | None) -> Term:
    """The condition under which all ranges are empty; false if they are not known, or differ from row to row."""
    if not found or not all(r.exact and rows not in _dims_of(r) for r in found):
        return const(False)
    empty = [reduce(logical_or, _crossings(r, length(dim)), const(False)) for r in found]
    return simplify_index(reduce(logical_and, empty))


def _dims_of(found: Range) -> set[Dim]:
    return set().union(*(limit.bound.dims for limit in (*found.uppers, *found.lowers)))


def _everywhere_if(nothing: Term, found: Range, dim: Dim) -> Range:
    """The range, or the whole dim where the predicate holds."""
    ends = ((found.uppers, length(dim)), (found.lowers, const(0)))
    uppers, lowers = (tuple(replace(x, bound=where(nothing, end, x.bound)) for x in limits) for limits, end in ends)
    return Range(uppers, lowers, True)


def _inside(found: Range, dim: Dim) -> Term:
    j = iota(dim)
    return reduce(logical_and, (*(lt(j, x.bound) for x in found.uppers), *(le(x.bound, j) for x in found.lowers)))


def _crossings(found: Range, size: Term) -> Iterator[Term]:
    """For each two ends of a range in 0 .. size, the condition under which nothing lies between them."""
    uppers, lowers = ((*(limit.bound for limit in limits), None) for limits in (found.uppers, found.lowers))
    for upper, lower in product(uppers, lowers):
        if upper is not None or lower is not None:
            yield simplify_index(le(size if upper is None else upper, const(0) if lower is None else lower))


def keeps_some(kept: Term, dim: Dim) -> bool:
    """Whether it is proved that the predicate holds at some index of the dim, whatever the other coordinates are."""
    for index in _likely_indices(kept, dim):
        inside = logical_and(le(const(0), index), lt(index, length(dim)))
        if simplify_index(logical_and(inside, at_place(kept, dim, index))) is const(True):
            return True
    return False


def _likely_indices(kept: Term, dim: Dim) -> Iterator[Term]:
    """Where masks usually keep something: at the ends of the dim, and at the index of a row, from either end."""
    yield from (const(0), length(dim) - const(1))
    for row in sorted(kept.dims - {dim}):
        yield iota(row)
        yield iota(row) + length(dim) - length(row)
