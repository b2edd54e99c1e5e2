"""Random numbers of a tile as torch tensors, four neighbours of a row together.

Invariant: the numbers are those of `uniform` in egraph/terms/philox.py, bit for bit, whatever the tile is.
Example: columns 6 to 9 of a row take two numbers of each of the groups 1 and 2.
"""

from __future__ import annotations

import torch

from ...egraph.terms import philox


def uniform(seed: torch.Tensor, offset: torch.Tensor, row: torch.Tensor, column: torch.Tensor) -> torch.Tensor:
    """The numbers at rows and columns, in float32; all tensors are of int64 and broadcast."""
    return philox.random_bits(seed, offset, row, column).to(torch.float32) * philox.UNIT


def uniform_range(
    seed: torch.Tensor, offset: torch.Tensor, row: torch.Tensor, axis: int, start: int, stop: int
) -> torch.Tensor:
    """The same for the columns from start to stop along an axis of the row's tensor, which has length 1 there."""
    first, last = start // philox.NUMBERS_OF_A_COUNTER, (stop - 1) // philox.NUMBERS_OF_A_COUNTER + 1
    shape = [1] * row.dim()
    shape[axis] = -1
    groups = torch.arange(first, last, device=row.device).view(shape)
    words = philox.words_at(seed, offset, row, groups)
    bits = [(word >> (32 - philox.BITS)).to(torch.float32) for word in torch.broadcast_tensors(*words)]
    numbers = torch.stack(bits, axis + 1).flatten(axis, axis + 1).mul_(philox.UNIT)
    return numbers.narrow(axis, start - first * philox.NUMBERS_OF_A_COUNTER, stop - start)
