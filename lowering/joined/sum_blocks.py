"""Where sums over the rows lie in memory, and the warps that keep the order in which programs add to them.

A sum lies in blocks of 64 columns of the loop, for each index of the dims of its grid. Behind a block are counters of
the programs that have added to it, one for each warpgroup. Invariant: a program adds to a block after all programs with
later rows that do. Example: of a causal mask, the program whose rows are on the diagonal adds first.
"""

from __future__ import annotations

from collections.abc import Collection

from ...egraph.terms.term import Dim
from ..gluon.expressions import GluonWriter
from ..gluon.work_items import Walk
from ..plan.device import H200
from ..plan.records import Store
from .config import WARPGROUPS, JoinedConfig
from .form import JoinedBinding, RowSum
from .memory import WORDS_OF_COUNTERS, block_size, extent_of

COLUMNS_OF_A_BLOCK = H200.product_rows


class SumBlocks:
    """Writes where the blocks of a kernel's sums over the rows are."""

    def __init__(self, writer: GluonWriter, binding: JoinedBinding, config: JoinedConfig):
        self.writer, self.binding, self.config = writer, binding, config
        self.loop = binding.loop
        self.one = config.loop_tile == COLUMNS_OF_A_BLOCK  # in a tile of the loop; else there are two

    def of_tile(self) -> str:
        """The number of a tile's first block, among those of all indices of the dims around the loop."""
        point = self._point(self.binding.row_sums[0].store, {*self.loop.outer})
        tile = "tile" if self.one else "2 * tile"
        return tile if point == "0" else f"{point} * ({self._count()}) + {tile}"

    def part_of_warpgroup(self, s: RowSum, block: str) -> str:
        """Where a warpgroup's part of a tile's sum lies: half of the inner dim of one block, or one of two blocks."""
        half = COLUMNS_OF_A_BLOCK * extent_of(s.matrix.inner) // 2
        return f"{self._at(s, block)} + W * {half if self.one else block_size(s.matrix.inner, self.config)}"

    def counter(self, block: str) -> str:
        """Where it is counted how many programs have added this warpgroup's part of a tile's sums."""
        s = self.binding.row_sums[0]
        behind = COLUMNS_OF_A_BLOCK * extent_of(s.matrix.inner)
        return f"{self._at(s, block)} + {behind} + W * {WORDS_OF_COUNTERS // WARPGROUPS}"

    def _at(self, s: RowSum, block: str) -> str:
        pointer, _ = self.writer.pointers[s.store.output]
        point, size = self._point(s.store, {*self.binding.kernel.grid}), block_size(s.matrix.inner, self.config)
        return f"{pointer} + (gl.cast({point}, gl.int64) * ({self._count()}) + {block}) * {size}"

    def _count(self) -> str:
        """How many blocks the loop's dim has: two for each 128 columns."""
        return f"2 * gl.cdiv({self.writer.sizes[self.loop.dim]}, {2 * COLUMNS_OF_A_BLOCK})"

    def _point(self, store: Store, dims: Collection[Dim]) -> str:
        """The number of the grid point among those that a store has, as far as these dims say it."""
        place = "0"
        for dim in store.order:
            if dim in self.binding.kernel.grid or dim in self.loop.outer:
                index = self.writer.starts[dim] if dim in dims else "0"
                place = index if place == "0" else f"({place} * {self.writer.sizes[dim]} + {index})"
        return place


def next_ticket(writer: GluonWriter, binding: JoinedBinding) -> str:
    """The place of a program's item: how many programs have begun before. Behind the first block's counters it is
    counted, in memory that is zero before each launch.
    """
    s = binding.row_sums[0]
    pointer, _ = writer.pointers[s.store.output]
    place = COLUMNS_OF_A_BLOCK * extent_of(s.matrix.inner) + WORDS_OF_COUNTERS // WARPGROUPS // 2
    return f"gl.atomic_add(({pointer} + {place}).to(gl.pointer_type(gl.int32), bitcast=True), 1, sem='relaxed')"


def keeper_lines(
    writer: GluonWriter, binding: JoinedBinding, config: JoinedConfig, walk: Walk, first: str
) -> list[str]:
    """What one warp does for one item, for the warpgroup W: says when it is this program's turn to add to a block, and
    tells the next program when that is done. A warpgroup that did so itself would wait for memory in each tile.

    first: the name of the item's first row. `visits` has for each tile of the loop the last tile of rows that adds.
    """
    blocks = SumBlocks(writer, binding, config)
    step = [f"counter = {blocks.counter(blocks.of_tile())}"]
    step += [f"wait_for_programs(counter, gl.load(visits + tile) - {first} // {config.row_tile})"]
    step += ["mbarrier.arrive(turn_come.index(W))", "mbarrier.wait(added_to.index(W), (done + t) & 1)"]
    step = [*walk.at("t"), *writer.close_around(), *step, "signal_program(counter)"]
    lines = [*writer.outer.lines, f"count = {walk.count}", "for t in range(0, count):"]
    return [*lines, *(f"    {line}" for line in step), "done += count"]
