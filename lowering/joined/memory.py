"""Shared memory of a joined kernel as records: tiles of the rows and of the loop, vectors along the loop, weights.

Example: of the gradients of attention, tiles of keys and values are held; those of queries go through rings.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

from ...egraph.terms.term import Dim, Term
from ..codegen.tile_extents import power_of_two
from ..hopper.kernel_form import MAX_OWN_COLUMNS, Operand
from ..hopper.shared_size import bytes_of
from ..plan.device import H200
from .config import JoinedConfig
from .form import JoinedBinding, early_parts, tile_key

WORDS_OF_COUNTERS = 32  # of a block of a sum over the rows: each warpgroup's counter has 64 bytes of its own
COLUMNS_OF_A_PIECE = 64  # of a sum over the rows beside accumulators of 256 columns: more would take too many registers


@dataclass(frozen=True)
class CopiedTile:
    """Shared memory of one operand: the name of its buffer and of its tensor map, and the bytes of one slot."""

    operand: Operand
    buffer: str
    map: str
    bytes: int


@dataclass(frozen=True)
class Vector:
    """Shared memory of a load along the loop alone: its buffer and its map, which has one axis."""

    load: Term
    buffer: str
    map: str
    bytes: int


@dataclass(frozen=True)
class Memory:
    """What a program has in shared memory.

    held: tiles of the rows. ring: tiles of the loop, two of each. first: how many of either come first, since the
    products ahead read them. overlays: tiles over rows and loop, two of each. weights: tiles of weights that are summed
    over the rows, two of each, by their number. pairs: those of them that leave for memory, by their number. parts:
    tiles that one warpgroup gives to the other, if there are any.
    """

    held: tuple[CopiedTile, ...]
    ring: tuple[CopiedTile, ...]
    first: tuple[int, int]
    overlays: tuple[CopiedTile, ...]
    vectors: tuple[Vector, ...]
    weights: dict[int, str]
    pairs: dict[int, CopiedTile]
    parts: str = ""

    def tile(self, operand: Operand) -> CopiedTile:
        """The tile of an operand, whatever its inner dim is called."""
        return next(t for t in (*self.held, *self.ring) if tile_key(t.operand) is tile_key(operand))

    @property
    def late(self) -> tuple[CopiedTile | Vector, ...]:
        """What of each tile of the loop comes behind what the products ahead read. It may be nothing: a gradient of a
        loss weighs the same columns that its scores are of."""
        return (*self.ring[self.first[1] :], *self.overlays, *self.vectors)

    @property
    def names(self) -> list[str]:
        """The names of all buffers."""
        tiles = [tile.buffer for tile in (*self.held, *self.ring, *self.overlays)]
        parts = [self.parts] if self.parts else []
        return [*tiles, *(vector.buffer for vector in self.vectors), *self.weights.values(), *parts]


def extent_of(inner: Dim) -> int:
    """The places that an inner dim has in a tile."""
    return max(16, power_of_two(inner))


def part_of(inner: Dim, config: JoinedConfig) -> int:
    """Columns of a sum over the rows that are computed at a time.

    Of tiles of 128 columns of the loop a warpgroup has 64, and the whole inner dim. Of tiles of 64 it has all, and half
    of the inner dim; beside wide accumulators it goes through that 64 columns at a time.
    """
    if config.loop_tile == 2 * H200.product_rows:
        return extent_of(inner)
    return min(extent_of(inner) // 2, COLUMNS_OF_A_PIECE if config.by_products else MAX_OWN_COLUMNS)


def columns_of_sums(binding: JoinedBinding) -> int:
    """Columns of all sums over the loop that stay in registers."""
    return sum(extent_of(s.matrix.inner) for s in binding.loop_sums if s.matrix is not None)


def block_size(inner: Dim, config: JoinedConfig) -> int:
    """Elements of a block of 64 columns of the loop in the memory of a sum over the rows, with its counters."""
    return H200.product_rows * extent_of(inner) + (WORDS_OF_COUNTERS if config.in_order else 0)


def shared_bytes(binding: JoinedBinding, overlays: Collection[Operand], config: JoinedConfig) -> int:
    """Bytes of all buffers. overlays: those that are copied."""
    held = sum(extent_of(o.inner) for o in binding.row_operands) * config.row_tile
    ring = sum(extent_of(o.inner) for o in binding.streams) * config.loop_tile * config.stages
    weights = len({s.weight for s in binding.row_sums}) * config.row_tile * config.loop_tile * config.stages
    sums = max((extent_of(s.matrix.inner) for s in binding.loop_sums if s.matrix is not None), default=0)
    sent = sums * config.row_tile if config.runs else 0
    over = sum(bytes_of(o.tensor) for o in overlays) * config.row_tile * config.loop_tile * config.stages
    parts = 2 * len(early_parts(binding)) * config.row_tile * config.loop_tile if config.by_products else 0
    vectors = len(binding.vectors) * config.loop_tile * config.stages
    return 2 * (held + ring + weights + sent + parts) + over + 4 * vectors
