"""Sums of values of two kinds that alternate along a held dim, as two numbers in a byte do: one sum for each kind.

Σ_j w · v[j, e] at even e and at odd e are two sums over half the columns, whose tiles are multiplied as they are
loaded. They are put side by side once, behind the loop. Example: e = 0 .. 127 of v = where(e % 2 <= 0, x[j, e // 2] %
16, x[j, e // 2] // 16) are two sums of 64 columns.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from ...egraph.terms.term import Dim, Term
from ...egraph.terms.traversal import subterms
from ..codegen.ops import TileValue
from ..codegen.products import alternating_sides, at_parity
from ..codegen.tile_extents import MIN_EXTENT_OF_A_MATRIX
from ..codegen.tile_writer import TileWriter
from ..plan.records import Accumulator, Loop


@dataclass(frozen=True)
class ColumnHalves:
    """A loop whose alternating values are two values each. dims: by accumulator, for each value of the loop as it was,
    the dim along which it alternates, or None."""

    loop: Loop
    dims: tuple[tuple[Dim | None, ...], ...]

    @classmethod
    def of(cls, tiles: TileWriter, loop: Loop) -> ColumnHalves:
        dims = tuple(tuple(_alternates(tiles, loop, a, v) for v in a.values) for a in loop.accumulators)
        pairs = zip(loop.accumulators, dims, strict=True)
        return cls(replace(loop, accumulators=tuple(_in_halves(tiles, a, found) for a, found in pairs)), dims)

    def joined(self, tiles: TileWriter, number: int, components: Sequence[TileValue]) -> list[TileValue]:
        """The components of an accumulator as it was, from those of the loop in halves."""
        rest, dims = list(components), self.dims[number]
        found = rest[: len(rest) - sum(1 if dim is None else 2 for dim in dims)]  # a scale
        rest = rest[len(found) :]
        for dim in dims:
            found.append(rest.pop(0) if dim is None else _side_by_side(tiles, dim, rest.pop(0), rest.pop(0)))
        return found


def _alternates(tiles: TileWriter, loop: Loop, state: Accumulator, value: Term) -> Dim | None:
    """The held dim along which a value alternates, where a sum for each kind is a product of matrices."""
    if not tiles.facts.rows_last or state.gauge is None or state.added_to:
        return None
    found = next(filter(None, (alternating_sides(tiles, n) for n in subterms(value))), None)
    if found is None or found[0] == loop.dim or tiles.resident[found[1]] < MIN_EXTENT_OF_A_MATRIX:
        return None
    return found[0] if found[0] in value.dims else None


def _in_halves(tiles: TileWriter, state: Accumulator, dims: Sequence[Dim | None]) -> Accumulator:
    values: list[Term] = []
    reductions: list[Term] = []
    for value, reduction, dim in zip(state.values, state.reductions, dims, strict=True):
        half = None if dim is None else tiles.half_of(dim)
        new = [value] if half is None else [at_parity(value, dim, half, parity) for parity in range(2)]
        values += new
        reductions += [reduction] * len(new)
    return replace(state, values=tuple(values), reductions=tuple(reductions))


def _side_by_side(tiles: TileWriter, dim: Dim, even: TileValue, odd: TileValue) -> TileValue:
    """Both sums as one tile, whose columns alternate between them."""
    half = tiles.half_of(dim)
    place, rank = even.dims.index(half), len(even.dims)
    text, dims = tiles.call("join", even.text, odd.text), tuple(dim if d == half else d for d in even.dims)
    if place + 1 < rank:
        text = tiles.call("trans", text, *range(place + 1), rank, *range(place + 1, rank))
    return tiles.assign("columns", TileValue(tiles.call("reshape", text, tiles.shape(dims)), dims, even.dtype))
