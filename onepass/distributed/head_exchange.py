"""Ranks exchange heads for the sequence: each gets all queries and keys of its heads, and results go home.

Invariant: what went there and comes home is what it was; what all ranks have whole comes home as the sum, added in the
order of the ranks. Example: of 8 heads, rank 1 of 2 sends the first 4 of its tokens to rank 0, and gets the last 4 of
that one's.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch

from .exchange import Ranks, Remembered, Steps
from .laws.head_law import Heads

PLACE = "heads", 0  # of what came there


@dataclass(frozen=True)
class Move:
    """How a tensor goes. axis: the sequence's. lengths: of the ranks' parts. heads: their axis; None goes whole."""

    axis: int
    lengths: Sequence[int]
    heads: int | None


@dataclass(frozen=True)
class HeadExchange:
    """The exchange of one call. moves: of the tensors that are shared out, by their numbers. output: of what the
    attention gives for each query."""

    ranks: Ranks
    heads: Heads
    moves: Mapping[int, Move]
    output: Move

    def there(
        self, tensors: Sequence[torch.Tensor], remembered: Remembered, outputs: Sequence[torch.Tensor] = ()
    ) -> Steps[tuple[list[torch.Tensor], list[torch.Tensor]]]:
        """All tokens of this rank's heads, of tensors and of outputs. remembered: integers that came before."""
        found = self.heads.cut([*tensors], self.ranks.rank, self.ranks.size, self.moves)
        known = remembered.known(PLACE)
        numbers = [k for k in self.moves if k not in known]
        moves = [self.moves[k] for k in numbers] + [self.output] * len(outputs)
        moved = yield from _there(self.ranks, moves, [*(tensors[k] for k in numbers), *outputs])
        came = {**known, **dict(zip(numbers, moved, strict=False))}
        remembered.keep(PLACE, came)
        for number, x in came.items():
            found[number] = x
        return found, moved[len(numbers) :]

    def home(self, outputs: Sequence[torch.Tensor]) -> Steps[list[torch.Tensor]]:
        """All heads of this rank's tokens."""
        return (yield from _home(self.ranks, [self.output] * len(outputs), outputs))

    def gradients_home(self, gradients: Sequence[torch.Tensor | None]) -> Steps[list[torch.Tensor | None]]:
        """The gradients of this rank's tokens, by the tensors' numbers; of the tensors that stay, as they are."""
        found = list(gradients)
        given = {k: g for k in self.moves if (g := gradients[k]) is not None}
        came = yield from _home(self.ranks, [self.moves[k] for k in given], [*given.values()])
        for number, x in zip(given, came, strict=True):
            found[number] = x
        return found


def _there(ranks: Ranks, moves: Sequence[Move], tensors: Sequence[torch.Tensor]) -> Steps[list[torch.Tensor]]:
    """Each rank's tokens of this rank's heads, one after the other."""
    given = [[x] * ranks.size if m.heads is None else x.chunk(ranks.size, m.heads) for m, x in zip(moves, tensors)]
    shapes = [
        [[*parts[0].shape[: m.axis], length, *parts[0].shape[m.axis + 1 :]] for length in m.lengths]
        for m, parts in zip(moves, given, strict=True)
    ]
    came = yield from _swapped(ranks, given, shapes)
    return [torch.cat(parts, m.axis) for m, parts in zip(moves, came, strict=True)]


def _home(ranks: Ranks, moves: Sequence[Move], tensors: Sequence[torch.Tensor]) -> Steps[list[torch.Tensor]]:
    """This rank's tokens of each rank's heads, one after the other; the sum of what each rank found for a whole one."""
    given = [x.split(list(m.lengths), m.axis) for m, x in zip(moves, tensors, strict=True)]
    shapes = [[parts[ranks.rank].shape] * ranks.size for parts in given]
    came = yield from _swapped(ranks, given, shapes)
    found = []
    for move, parts in zip(moves, came, strict=True):
        if move.heads is not None:
            found.append(torch.cat(parts, move.heads))
        else:
            wide = torch.promote_types(parts[0].dtype, torch.float32)
            found.append(sum(part.to(wide) for part in parts).to(parts[0].dtype))
    return found


def _swapped(
    ranks: Ranks, given: Sequence[Sequence[torch.Tensor]], shapes: Sequence[Sequence[Sequence[int]]]
) -> Steps[list[list[torch.Tensor]]]:
    """Of each tensor the parts that the ranks give this one. given: a part for each rank. shapes: of what comes."""
    found = [
        [parts[r] if r == ranks.rank else parts[r].new_empty(shape) for r, shape in enumerate(coming)]
        for parts, coming in zip(given, shapes, strict=True)
    ]
    sends = [(parts[r], r) for r in ranks.others for parts in given]
    exchange = ranks.start(sends, [(parts[r], r) for r in ranks.others for parts in found])
    yield
    exchange.wait()
    return found
