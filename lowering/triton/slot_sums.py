"""Sums along diagonals at a launch: the slots that the tiles of a kernel write, and the kernel that adds them up.

Invariant: slots are added in one order, so that two runs give the same bits. Example: of 4096 rows and columns in tiles
of 64, each of 8191 sums adds up to 128 slots.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import prod

import torch
import triton
import triton.language as tl

from ...egraph.terms.sizes import resolve
from ...egraph.terms.term import Dim
from ..plan.kernel_config import TritonConfig
from ..plan.queries import StoredDiagonal, diagonal
from ..plan.records import Kernel, Store

BLOCK = 256  # places of one program that adds slots


@triton.jit(do_not_specialize=["row_tiles", "column_tiles", "places", "offset", "sign"])
def add_slots(
    slots, sums, row_tiles, column_tiles, places, offset, sign, ROWS: tl.constexpr, COLUMNS: tl.constexpr,
    STEPS: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """sums[point, place] from the slots of one point, tile of rows by tile of rows.

    A diagonal crosses up to STEPS tiles of columns in one tile of rows. offset: the place of the diagonal that begins
    at row 0 and column 0; sign: of column - row in a place.
    """
    blocks = tl.cdiv(places, BLOCK)
    point = (tl.program_id(0) // blocks).to(tl.int64)
    place = tl.program_id(0) % blocks * BLOCK + tl.arange(0, BLOCK)
    distance = (place - offset) * sign
    total = tl.zeros([BLOCK], sums.dtype.element_ty)
    for tile in range(row_tiles):
        below = distance + tile * ROWS + ROWS - 1
        for step in tl.static_range(STEPS):
            column = tl.maximum(below, 0) // COLUMNS - step
            number = below - column * COLUMNS
            exists = (below >= 0) & (column >= 0) & (column < column_tiles) & (number < ROWS + COLUMNS - 1)
            slot = (point * row_tiles + tile) * column_tiles + column
            total += tl.load(slots + slot * (ROWS + COLUMNS) + number, mask=exists, other=0)
    tl.store(sums + point * places + place, total, mask=place < places)


@dataclass(frozen=True)
class SlotSum:
    """The slots of one store at a launch, and how they are added up.

    shape: points, tiles of rows, tiles of columns. tile: rows and columns of one. places: of the sums of a point.
    """

    store: Store
    shape: tuple[int, int, int]
    tile: tuple[int, int]
    offset: int
    sign: int
    places: int

    @classmethod
    def of(
        cls, kernel: Kernel, store: Store, config: TritonConfig, extents: Mapping[Dim, int], sizes: Mapping[str, int]
    ) -> SlotSum:
        """For these tiles. extents: of dims that a tile holds whole."""
        found = diagonal(store)
        order = [*kernel.tiled, *(loop.dim for loop in kernel.loops), *extents]
        rows, columns = sorted((found.rows, found.columns), key=order.index)
        tile = [_extent(kernel, d, config, extents) for d in (rows, columns)]
        length = [resolve(d.size, sizes) for d in (rows, columns)]
        points = prod(resolve(dim.size, sizes) for dim in found.points)
        shape = points, -(-length[0] // tile[0]), -(-length[1] // tile[1])
        offset, sign = _offset(found, sizes), 1 if rows == found.rows else -1
        return cls(store, shape, (tile[0], tile[1]), offset, sign, resolve(store.output.shape[-1], sizes))

    @property
    def dtype(self) -> torch.dtype:
        """Of slots and sums."""
        return getattr(torch, self.store.output.dtype)

    def made(self, device: torch.device) -> torch.Tensor:
        """New slots: what no program writes is 0."""
        return torch.zeros((*self.shape, sum(self.tile)), dtype=self.dtype, device=device)

    def add(self, slots: torch.Tensor, sums: torch.Tensor) -> None:
        """Adds up the slots into the store's tensor."""
        programs, integers, constants = self.call()
        add_slots[(programs,)](slots, sums, **integers, **constants)

    def call(self) -> tuple[int, dict[str, int], dict[str, int]]:
        """The programs that add up slots, their integers and their constants."""
        points, row_tiles, column_tiles = self.shape
        rows, columns = self.tile
        steps = (rows + columns - 2) // columns + 1
        integers = {"row_tiles": row_tiles, "column_tiles": column_tiles, "places": self.places}
        integers |= {"offset": self.offset, "sign": self.sign}
        constants = {"ROWS": rows, "COLUMNS": columns, "STEPS": steps, "BLOCK": BLOCK}
        return points * -(-self.places // BLOCK), integers, constants


def _extent(kernel: Kernel, dim: Dim, config: TritonConfig, extents: Mapping[Dim, int]) -> int:
    if dim in extents:
        return extents[dim]
    return config.row_tile if dim == kernel.rows else config.loop_tile


def _offset(found: StoredDiagonal, sizes: Mapping[str, int]) -> int:
    sums = sum(c * resolve(atom.attrs[0], sizes) for atom, c in found.sizes.items())
    return found.constant + sums
