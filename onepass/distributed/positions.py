"""Which tokens each rank holds, so that all ranks have the same work: positions are data, so any order will do.

Invariant: the parts together hold each token once, and a part holds its tokens in ascending order, so that masked
tiles stay together. Example: `head_tail(8, 2)` is [0, 1, 6, 7] and [2, 3, 4, 5], of the same work under a causal mask.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from ..errors import InputError


def head_tail(length: int, ranks: int) -> list[torch.Tensor]:
    """The positions of each rank for a causal mask: a piece from the front, and its mirror image from the end."""
    if length < 2 * ranks:
        raise InputError(f"{length} tokens are less than two pieces for each of {ranks} ranks")
    pieces = torch.arange(length).tensor_split(2 * ranks)
    return [torch.cat([pieces[rank], pieces[-1 - rank]]) for rank in range(ranks)]


def dealt(work: torch.Tensor, ranks: int, piece: int = 128) -> list[torch.Tensor]:
    """The positions of each rank for any mask. work: of each token, such as the number of keys that it sees.

    Pieces of the sequence go, the largest first, to the rank with the least work. piece: tokens of one.
    """
    pieces = torch.arange(len(work)).split(piece)
    if len(pieces) < ranks:
        raise InputError(f"{len(pieces)} pieces of {piece} tokens are not enough for {ranks} ranks")
    sums = [float(work[p].double().sum()) for p in pieces]
    held: list[list[int]] = [[] for _ in range(ranks)]
    loads = [0.0] * ranks
    for number in sorted(range(len(pieces)), key=lambda n: -sums[n]):
        least = min(range(ranks), key=lambda rank: (loads[rank], len(held[rank])))
        held[least].append(number)
        loads[least] += sums[number]
    return [torch.cat([pieces[n] for n in sorted(numbers)]) for numbers in held]


def shares(work: torch.Tensor, parts: Sequence[torch.Tensor]) -> list[float]:
    """The work of each rank as a part of the mean: 1.0 is balanced, and the largest says how long all wait."""
    sums = [float(work[part.to(work.device)].double().sum()) for part in parts]
    mean = sum(sums) / len(sums)
    return [s / mean if mean else 1.0 for s in sums]
