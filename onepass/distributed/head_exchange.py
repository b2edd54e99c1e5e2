"""Ranks exchange heads for the sequence: each gets all queries and keys of its heads, and results go home.

Invariant: the backward of the way there is the way home, and the reverse; gradients of what all ranks have whole are
added in the order of the ranks. Example: of 8 heads, rank 1 of 2 sends the first 4 of its tokens to rank 0, and gets
the last 4 of that one's.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch.autograd.function import once_differentiable

from .exchange import Ranks, Remembered
from .head_law import Heads

PLACE = "heads", 0  # of what came there


@dataclass(frozen=True)
class Move:
    """How a tensor goes. axis: the sequence's. lengths: of the ranks' parts. heads: their axis; None goes whole."""

    axis: int
    lengths: Sequence[int]
    heads: int | None


@dataclass(frozen=True)
class HeadExchange:
    """The exchange of one call. moves: of the tensors that are shared out, by their numbers. queries: of each rank.

    remembered: integers that came in an earlier call.
    """

    ranks: Ranks
    heads: Heads
    moves: dict[int, Move]
    queries: Sequence[int]
    remembered: Remembered = field(default_factory=Remembered)

    def there(self, tensors: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        """All tokens of this rank's heads."""
        given = [*tensors.values()]
        found = self.heads.cut(given, self.ranks.rank, self.ranks.size, self.moves)
        known = self.remembered.known(PLACE)
        moves = {k: move for k, move in self.moves.items() if k not in known}
        moved = _Exchanged.apply(self.ranks, [*moves.values()], True, *(given[k] for k in moves))
        came = {**known, **dict(zip(moves, moved, strict=True))}
        self.remembered.keep(PLACE, came, {k: move.axis for k, move in self.moves.items()})
        for number, x in came.items():
            found[number] = x
        return dict(zip(tensors, found, strict=True))

    def home(self, result: torch.Tensor, axis: int) -> torch.Tensor:
        """All heads of this rank's tokens. axis: that of the queries."""
        return _Exchanged.apply(self.ranks, [Move(axis, self.queries, self.heads.axis)], False, result)[0]


class _Exchanged(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, ranks: Ranks, moves: list[Move], there: bool, *tensors: torch.Tensor) -> tuple:
        ctx.call = ranks, moves, there
        found = (_there if there else _home)(ranks, moves, tensors)
        wanted = ctx.needs_input_grad[3:]
        ctx.mark_non_differentiable(*[x for x, needed in zip(found, wanted, strict=True) if not needed])
        return tuple(found)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grads: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        ranks, moves, there = ctx.call
        needed = ctx.needs_input_grad[3:]
        kept = [(move, g) for move, g, n in zip(moves, grads, needed, strict=True) if n]
        found = iter((_home if there else _there)(ranks, [move for move, _ in kept], [g for _, g in kept]))
        return None, None, None, *(next(found) if n else None for n in needed)


def _there(ranks: Ranks, moves: Sequence[Move], tensors: Sequence[torch.Tensor]) -> list[torch.Tensor]:
    """Each rank's tokens of this rank's heads, one after the other."""
    given = [[x] * ranks.size if m.heads is None else x.chunk(ranks.size, m.heads) for m, x in zip(moves, tensors)]
    shapes = [
        [[*parts[0].shape[: m.axis], length, *parts[0].shape[m.axis + 1 :]] for length in m.lengths]
        for m, parts in zip(moves, given, strict=True)
    ]
    return [torch.cat(parts, m.axis) for m, parts in zip(moves, _swapped(ranks, given, shapes), strict=True)]


def _home(ranks: Ranks, moves: Sequence[Move], tensors: Sequence[torch.Tensor]) -> list[torch.Tensor]:
    """This rank's tokens of each rank's heads, one after the other; the sum of what each rank found for a whole one."""
    given = [x.split(list(m.lengths), m.axis) for m, x in zip(moves, tensors, strict=True)]
    shapes = [[parts[ranks.rank].shape] * ranks.size for parts in given]
    found = []
    for move, parts in zip(moves, _swapped(ranks, given, shapes), strict=True):
        if move.heads is not None:
            found.append(torch.cat(parts, move.heads))
        else:
            wide = torch.promote_types(parts[0].dtype, torch.float32)
            found.append(sum(part.to(wide) for part in parts).to(parts[0].dtype))
    return found


def _swapped(
    ranks: Ranks, given: Sequence[Sequence[torch.Tensor]], shapes: Sequence[Sequence[Sequence[int]]]
) -> list[list[torch.Tensor]]:
    """Of each tensor the parts that the ranks give this one. given: a part for each rank. shapes: of what comes."""
    found = [
        [parts[r] if r == ranks.rank else parts[r].new_empty(shape) for r, shape in enumerate(coming)]
        for parts, coming in zip(given, shapes, strict=True)
    ]
    sends = [(parts[r], r) for r in ranks.others for parts in given]
    ranks.start(sends, [(parts[r], r) for r in ranks.others for parts in found]).wait()
    return found
