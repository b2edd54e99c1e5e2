"""States of a loop that is read in pieces: each piece has states of its own, which join the totals where it ends.

A piece is a fixed number of coordinates, counted from 0. Joining a state that holds nothing changes no bit, so it does
not matter which tiles of a piece run, or whether a program runs one piece or all of them: the kernel that merges stored
states of pieces has the same lines. Example: row 300 of a causal mask has the pieces 0 .. 255 and 256 .. 511, of which
the second ends at 300.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from ..codegen.dialect import TRITON
from ..codegen.ops import FOLDS, TileValue, joining_text
from ..codegen.tile_writer import TileWriter
from ..plan.records import Accumulator, Loop

Components = Sequence[TileValue]
NO_PIECE = "-1"


class PieceStates:
    """The totals of a loop's accumulators, and the lines that join a piece's states to them.

    begin: the names and first values of an accumulator's components, its scale first if it has one. names: by
    accumulator, of the components of the piece that runs.
    """

    def __init__(
        self,
        tiles: TileWriter,
        loop: Loop,
        names: Sequence[Components],
        begin: Callable[[Accumulator], Sequence[tuple[str, TileValue]]],
    ):
        self.tiles, self.loop, self.names = tiles, loop, names
        self.first = [[value for _, value in begin(state)] for state in loop.accumulators]
        pairs = [(state, begin(state)) for state in loop.accumulators]
        self.totals = [[self._total(*one) for one in components] for _, components in pairs]
        self.number = tiles.assign("piece", TileValue(NO_PIECE), tiles.outer).text

    def _total(self, hint: str, first: TileValue) -> TileValue:
        return self.tiles.assign(f"{hint}_total", first, self.tiles.outer) if hint else first

    def crossing(self, start: str) -> list[str]:
        """What stands before a tile that begins at `start`: where it begins a piece, the last one is joined."""
        piece = self.tiles.names.fresh("piece")
        lines = [*self.joined(), *self._begun(), f"{self.number} = {piece}"]
        found = f"{piece} = {start} // {self.tiles.facts.piece}"
        return [found, f"if {piece} != {self.number}:", *(f"    {line}" for line in lines)]

    def ended(self) -> list[str]:
        """What stands behind a loop inside of another one: the piece is joined, and another one begins."""
        return [*self.joined(), *self._begun(), f"{self.number} = {NO_PIECE}"]

    def joined(self) -> list[str]:
        """Joins the states of the piece to the totals."""
        lines: list[str] = []
        for state, piece, total in zip(self.loop.accumulators, self.names, self.totals, strict=True):
            join = self._plain if state.gauge is None else self._rescaled
            lines += join(state, piece, total)
        return lines

    def _begun(self) -> list[str]:
        """The states of the piece as they begin."""
        pairs = [pair for names, first in zip(self.names, self.first, strict=True) for pair in zip(names, first)]
        return [f"{name.text} = {value.text}" for name, value in pairs if name.text.isidentifier()]

    def _plain(self, state: Accumulator, piece: Components, total: Components) -> list[str]:
        (one,), (all_,) = piece, total
        combined = f"{all_.text} + {one.text}"
        if state.monoid != "sum":
            combined = TRITON.fill(FOLDS[state.monoid].combine, all_.text, one.text)
        return [f"{all_.text} = {combined}"]

    def _rescaled(self, state: Accumulator, piece: Components, total: Components) -> list[str]:
        """Both sums at the larger scale. A scale of -inf stands for nothing, whose weight is 0."""
        tiles, (own, *values), (scale, *totals) = self.tiles, piece, total
        top, shift, kept, added = (tiles.names.fresh(hint) for hint in ("top", "shift", "kept", "added"))
        weight = lambda before: f"tl.exp2({joining_text(before.text, shift)})"
        lines = [
            f"{top} = tl.maximum({scale.text}, {own.text})",
            f'{shift} = tl.where({top} == float("-inf"), 0.0, {top})',
            f"{kept} = {weight(scale)}",
            f"{added} = {weight(own)}",
        ]
        for value, sum_ in zip(values, totals, strict=True):
            if sum_.text.isidentifier():
                before, new = (tiles.align(replace(scale, text=text), sum_.dims) for text in (kept, added))
                lines.append(f"{sum_.text} = {sum_.text} * {before} + {value.text} * {new}")
        return [*lines, f"{scale.text} = {top}"]
