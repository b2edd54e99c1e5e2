"""Random numbers of a tile as torch tensors: those that share a counter are made together where a tile has them.

Invariant: the numbers are those of `uniform` in egraph/terms/philox.py, bit for bit, whatever the tile is.
Example: rows 20 to 60 take parts of the blocks of rows 16 to 63.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from ...egraph.terms import philox

MAX_COUNTERS_ON_A_CPU = 1 << 15  # a quarter of a MiB for each of their words


@dataclass(frozen=True)
class Places:
    """Rows or columns from `start` to `stop`, along an axis."""

    axis: int
    start: int
    stop: int

    @property
    def is_long(self) -> bool:
        """Whether whole blocks are not much more than what is asked for."""
        return self.stop - self.start >= philox.BLOCK_SIZE

    @property
    def first(self) -> int:
        """The place with which the first block begins."""
        return self.start // philox.BLOCK_SIZE * philox.BLOCK_SIZE

    def halves(self, rank: int, device: torch.device) -> torch.Tensor:
        """The places of all blocks without their bit 3, along the axis."""
        last = -(-self.stop // philox.BLOCK_SIZE) * philox.BLOCK_SIZE
        shape = [-1 if axis == self.axis else 1 for axis in range(rank)]
        return torch.arange(self.first // 2, last // 2, device=device).view(shape)


def uniform(
    seed: torch.Tensor, offset: torch.Tensor, matrix: torch.Tensor, row: torch.Tensor, column: torch.Tensor
) -> torch.Tensor:
    """The numbers at places, in float32; all tensors are of int64 and broadcast."""
    return philox.random_bits(seed, offset, matrix, row, column).to(torch.float32) * philox.UNIT


def uniform_tile(
    seed: torch.Tensor, offset: torch.Tensor, matrix: torch.Tensor, rows: Places, columns: Places
) -> torch.Tensor:
    """The same for ranges of places along two axes of the matrix's tensor, which has length 1 there."""
    of_rows, of_columns = (places.halves(matrix.dim(), matrix.device) for places in (rows, columns))

    def numbers(part: torch.Tensor) -> torch.Tensor:
        bits = torch.broadcast_tensors(*philox.bits_of_block(seed, offset, matrix, part, of_columns))
        return philox.spread_out([one.to(torch.float32) for one in bits], rows.axis, columns.axis, torch.stack)

    parts = of_rows.split(_rows_together(matrix, of_rows, of_columns), rows.axis)
    whole = torch.cat([numbers(part) for part in parts], rows.axis)
    for places in (rows, columns):
        whole = whole.narrow(places.axis, places.start - places.first, places.stop - places.start)
    return whole * philox.UNIT


def _rows_together(matrix: torch.Tensor, of_rows: torch.Tensor, of_columns: torch.Tensor) -> int:
    """Halves of rows whose counters go together: all, or on a CPU so many that what is computed stays in its cache."""
    if matrix.device.type != "cpu":
        return of_rows.numel()
    fitting = MAX_COUNTERS_ON_A_CPU // (matrix.numel() * of_columns.numel())
    return max(philox.HALF, fitting // philox.HALF * philox.HALF)
