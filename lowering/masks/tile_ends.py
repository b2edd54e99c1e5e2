"""What a guard keeps of a tile, from the least and the largest value of what is compared, without a look at pairs.

A comparison of something of the row with something of the column is decided by their ends: max a <= min b keeps all,
max b < min a keeps none. Invariant: nothing is decided wrongly; where `exact` holds, all is decided. Example: positions
i[0:128] and j[0:128] as data with j <= i: 256 elements are read for a tile instead of 16384 pairs.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

from ...egraph.terms.ops import eq, le, logical_and, logical_not, logical_or, lt, reduce
from ...egraph.terms.term import Dim, Term


@dataclass(frozen=True)
class TileDecision:
    """Of a predicate over a tile, as terms: `all_kept` only if each element is kept, `some_kept` if one is.

    exact: whether "only if" and "if" go both ways.
    """

    all_kept: Term
    some_kept: Term
    exact: bool


@dataclass(frozen=True)
class _Tile:
    """The dims of the indices within a tile: of rows, if there are any, and of columns."""

    inside: Collection[Dim]

    def of(self, x: Term) -> list[Dim]:
        """Those that a term depends on, in order."""
        return [dim for dim in self.inside if dim in x.dims]

    def end(self, monoid: str, x: Term) -> Term:
        """The term folded over the tile."""
        for dim in self.of(x):
            x = reduce(monoid, dim, x)
        return x


def decided(guard: Term, inside: Collection[Dim]) -> TileDecision | None:
    """What is known of the guard over the indices within a tile; None if it takes a look at pairs.

    A comparison is taken as it stands: nothing is moved from one side to the other, so sums that overflow do so as they
    do where each pair is evaluated. Floating-point numbers of rows and columns are not compared by ends: NaN has none.
    """
    return _decided(guard, _Tile(inside))


def _decided(p: Term, tile: _Tile) -> TileDecision | None:
    if len(tile.of(p)) < 2:
        return TileDecision(tile.end("all", p), tile.end("any", p), True)
    if p.op in ("le", "lt", "eq"):
        return _of_ends(p, tile)
    parts = [_decided(a, tile) for a in p.args] if p.op in ("not", "and", "or", "where") else []
    known = [part for part in parts if part is not None]
    if not known or len(known) < len(parts):
        return None
    if p.op == "not":
        return _negated(known[0])
    if p.op == "where":
        condition, yes, no = known
        return _joined("or", _joined("and", condition, yes), _joined("and", _negated(condition), no))
    return _joined(p.op, *known)


def _of_ends(p: Term, tile: _Tile) -> TileDecision | None:
    """A comparison of two integers, each of which depends on the rows or on the columns alone."""
    a, b = p.args
    if not a.dtype == b.dtype == "int64" or len(tile.of(a)) > 1 or len(tile.of(b)) > 1:
        return None
    (least_a, largest_a), (least_b, largest_b) = ((tile.end("min", x), tile.end("max", x)) for x in (a, b))
    if p.op == "eq":
        overlap = logical_and(le(least_a, largest_b), le(least_b, largest_a))
        return TileDecision(logical_and(eq(least_a, largest_b), eq(largest_a, least_b)), overlap, False)
    compare = le if p.op == "le" else lt
    return TileDecision(compare(largest_a, least_b), compare(least_a, largest_b), True)


def _negated(one: TileDecision) -> TileDecision:
    return TileDecision(logical_not(one.some_kept), logical_not(one.all_kept), one.exact)


def _joined(op: str, one: TileDecision, other: TileDecision) -> TileDecision:
    """Two elements may be kept by one part each, so `and` and `or` of decisions are not exact."""
    join = logical_and if op == "and" else logical_or
    return TileDecision(join(one.all_kept, other.all_kept), join(one.some_kept, other.some_kept), False)
