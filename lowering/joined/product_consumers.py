"""What consumers of a joined kernel do that share their rows: each has some of the products of a tile.

The first one computes the products ahead, the weights that need no others, and the sums of these. It gives the parts of
the other weights that it knows to the second one, which has the late products and the remaining sums. Of a sum over the
rows each has half. Invariant: a tile of weights is computed once. Example: of two matrices with 256 columns each, one
warpgroup sums the gradient of values, the other that of keys; the first gives its exponentials to the second.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, ClassVar

from ...egraph.terms.traversal import reduces
from ..codegen.ops import TileValue
from ..gluon.expressions import wait_for
from ..gluon.work_items import Walk
from ..plan.records import Store
from .consumer import ROWS_OF_A_WARPGROUP, JoinedConsumer
from .form import RowSum, early_and_late, early_parts
from .memory import extent_of, part_of


@dataclass(frozen=True)
class Piece:
    """Some columns of a sum over the rows, by their number among those of a warpgroup, and the name of their tile."""

    sum: RowSum
    number: int
    name: str


class ProductConsumer(JoinedConsumer):
    """Writes the lines of a consumer that has some of the products.

    number: of the warpgroup. ready: the barriers of the tiles that its products read of the loop. own: its products.
    mine: its sums over the loop. parts: what of weights the first one gives to the second, by the weights' numbers.
    """

    number: ClassVar[int]

    def __init__(self, *given: Any) -> None:
        super().__init__(*given)
        self.own = (self.binding.ahead, self.binding.late)[self.number]
        tiles = (self.memory.tile(product.columns) for product in self.own)
        self.ready = tuple(sorted({"full" if tile in self.memory.late else "ahead_full" for tile in tiles}))
        self.mine = early_and_late(self.binding)[self.number]
        self.sums = {s: name for s, name in self.sums.items() if s in self.mine}
        self.parts = early_parts(self.binding)
        self.pieces = [
            Piece(s, n, self.writer.names.fresh("added")) for s in self.binding.row_sums for n in range(self._count(s))
        ]

    def _count(self, s: RowSum) -> int:
        """How many pieces of a sum over the rows this warpgroup has: half of them."""
        return extent_of(s.matrix.inner) // 2 // part_of(s.matrix.inner, self.config)

    @abstractmethod
    def _exchange(self) -> None:
        """Computes this warpgroup's weights of a tile, with what the other one knows of them."""

    # The whole of it

    def lines(self, walk: Walk) -> list[str]:
        writer = self.writer
        self.partial = walk.partial
        wait = "mbarrier.wait({}.index({}), {} & 1)".format
        head = [f"count = {walk.count}", "previous = 0", *self._zeros(), wait("held_ahead", 0, "position")]
        head += [wait("held_late", 0, "position")] if len(self.memory.held) > self.memory.first[0] else []
        head += [*(wait(one, "done & 1", "done >> 1") for one in self.ready), *self._issue("done & 1", fresh=True)]
        head += [wait_for(0, [self.products[p] for p in self.own])]
        body = ["for t in range(0, count):", *(f"    {line}" for line in self._step(walk)), *self._last()]
        body += self._finished()
        return [*writer.outer.lines, *head, *body, *self._results()]

    def _step(self, walk: Walk) -> list[str]:
        writer = self.writer
        start = writer.names.fresh(f"{self.loop.dim}_start")
        writer.open(self.loop.dim, start, ragged=True)
        writer.demands = False  # the forward has read the same indices, and would have stopped
        lines = writer.inner.lines
        lines += ["slot = (done + t) & 1", "other = slot ^ 1", "more = t + 1 < count"]
        barriers = ("ahead_full", "full") if self.memory.late else ("ahead_full",)
        lines += [f"mbarrier.wait({barrier}.index(slot), (done + t) >> 1 & 1)" for barrier in barriers]
        self._read_vectors(self.memory.vectors)
        self._read_overlays()
        self._exchange()
        issued = self._sum_over_loop(self.mine, "slot")
        lines += self._wait_for_weights("other", "t > 0")
        lines += [self._piece(piece, "other") for piece in self.pieces[:1]]
        if issued:
            lines.append(wait_for(len(self.pieces[:1]), [*issued, *self._packed(self.mine)]))
        lines.append("mbarrier.arrive(empty.index(slot))")
        adding = self._adding([self._added(piece) for piece in self.pieces], "(done + t - 1) & 1")
        for piece, following in pairwise(self.pieces):
            lines += [self._piece(following, "other"), wait_for(1, [piece.name])]
            lines += ["if t > 0:", *(f"    {line}" for line in _up_to(adding, self._added(piece)))]
        lines += [f"mbarrier.wait({one}.index(other), (done + t + 1) >> 1 & 1, pred=more)" for one in self.ready]
        lines += self._issue("other")
        for piece in self.pieces[-1:]:
            lines += [wait_for(len(self.own), [piece.name]), *self._weights_were_read("other")]
            lines += ["if t > 0:", *(f"    {line}" for line in adding), f"previous = {self.blocks.of_tile()}"]
        # No product may be in flight at the back edge if other instructions read its result: ptxas serialises all.
        lines.append(wait_for(0, [self.products[p] for p in self.own]))
        return [*walk.at("t"), f"{start} = tile * {self.config.loop_tile}", *writer.close_around(), *writer.close()]

    def _issue(self, slot: str, fresh: bool = False) -> list[str]:
        """Issues the products of the tile in a slot, into the registers of those before."""
        zeros = f"gl.zeros([{ROWS_OF_A_WARPGROUP}, {self.config.loop_tile}], gl.float32, SCORE)"
        names = ((p, self.products[p]) for p in self.own)
        return [self._product(p, name, slot, zeros if fresh else name, False) for p, name in names]

    def _last(self) -> list[str]:
        if not self.pieces:
            return []
        lines = ["slot = (done + count - 1) & 1", *self._wait_for_weights("slot", "True")]
        adding = []
        for piece in self.pieces:
            adding += [self._piece(piece, "slot"), wait_for(0, [piece.name]), self._added(piece)]
        return [*lines, *self._adding(adding, "slot")]

    def _piece(self, piece: Piece, slot: str) -> str:
        """Issues a piece of a sum over the rows of the tile in a slot."""
        s, extent = piece.sum, part_of(piece.sum.matrix.inner, self.config)
        start = f"(W * {self._count(s)} + {piece.number}) * {extent}"
        weights, matrix = f"{self.memory.weights[s.weight]}.index({slot})", self._held(s.matrix)
        zeros = f"gl.zeros([{ROWS_OF_A_WARPGROUP}, {extent}], gl.float32, ADDED{extent})"
        factors = f"{weights}.permute((1, 0)), {matrix}.slice({start}, {extent}, 1)"
        return f"{piece.name} = warpgroup_mma({factors}, {zeros}, use_acc=False, is_async=True)"

    def _added(self, piece: Piece) -> str:
        """Adds a piece of the tile before to memory."""
        size = ROWS_OF_A_WARPGROUP * part_of(piece.sum.matrix.inner, self.config)
        at = self.blocks.part_of_warpgroup(piece.sum, "previous")
        return f"add_in_order({at} + {piece.number * size}, {piece.name})"

    def _wait_for_weights(self, slot: str, on: str) -> list[str]:
        """Waits for the weights that the other warpgroup wrote."""
        return []

    def _weights_were_read(self, slot: str) -> list[str]:
        """Tells the other warpgroup that it may write weights again."""
        return []

    # Results

    def _results(self) -> list[str]:
        return [line for store in self._own_results() for line in self._stored(store)]

    def _own_results(self) -> Iterator[Store]:
        """The results of this warpgroup's sums; the first one has those of no sums, too."""
        late = {s.accumulator.reductions[0] for s in early_and_late(self.binding)[1]}
        for store in self.binding.kernel.stores:
            needs_late = not late.isdisjoint(reduces(store.term))
            if not store.adds and needs_late == (self.number == 1):
                yield store


def _up_to(lines: list[str], line: str) -> list[str]:
    """Takes the lines up to one out of a list."""
    found = lines[: lines.index(line) + 1]
    del lines[: len(found)]
    return found


class GivingConsumer(ProductConsumer):
    """The consumer with the products ahead."""

    number = 0

    def _exchange(self) -> None:
        lines = self.writer.inner.lines
        for s in self.mine:
            self._weight(s.weight)
        values = [self._early_part(number) for number in self.parts]
        lines += ["sync(TAKEN, t > 0)"] if values else []
        lines += [f"give({self.memory.parts}, {v.text}, {n})" for n, v in enumerate(values) if v is not None]
        lines.append("fence_async_shared()")  # what was read is written by copies
        lines += ["arrive(GIVEN, True)"] if values else []

    def _wait_for_weights(self, slot: str, on: str) -> list[str]:
        return [f"sync(WRITTEN + 2 * W + {slot}, {on})"] if self.binding.row_sums else []

    def _weights_were_read(self, slot: str) -> list[str]:
        return [f"arrive(READ + 2 * (1 - W) + {slot}, (t > 0) & more)"]


class TakingConsumer(ProductConsumer):
    """The consumer with the late products."""

    number = 1

    def _exchange(self) -> None:
        writer, tile = self.writer, (self.rows, self.loop.dim)
        lines = writer.inner.lines
        lines += ["sync(GIVEN, True)"] if self.parts else []
        for n, number in enumerate(self.parts):
            value = TileValue(f"taken({self.memory.parts}, {n}, SCORE)", tile)
            writer.inner.memo["early part", number] = writer.assign("part", value)
        lines += ["arrive(TAKEN, more)"] if self.parts else []
        numbers = [*(s.weight for s in self.mine), *(s.weight for s in self.binding.row_sums)]
        for number in dict.fromkeys(numbers):
            self._weight(number)
        self._hand_over()
        self._packed(self.mine)
