"""A rank's work in pieces, one after the other: each has some of the heads, and what a piece waits for runs beside the
next one's kernels.

What a rank holds of others is then that of one piece, or of three where heads are exchanged. Invariant: pieces are
equal parts along axes of which it is proved that they are computed element by element (laws/head_law.py), so joined
results are the results of the whole.
Example: `Pieces(Heads(1, {0: 1, 1: 1, 2: 1}), 4)` computes 16 heads of q, k and v four at a time.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field

import torch

from .exchange import Steps
from .head_exchange import HeadExchange
from .laws.head_law import Heads, NumberedAxes
from .schedules import Gradients, Sum

Found = Sequence[torch.Tensor | None]  # what a piece gives
MOST_AT_ONCE = 3  # pieces: one whose heads come, one that is computed, one whose results go home


@dataclass(frozen=True)
class Pieces:
    """How the work is cut. heads: the axes; None for a single piece. exchange: that of heads for the sequence."""

    heads: Heads | None = None
    count: int = 1
    exchange: HeadExchange | None = None

    @property
    def axes(self) -> NumberedAxes:
        """The axis of each tensor, by number, that is cut."""
        return {} if self.heads is None else self.heads.axes

    def of_tensors(self, tensors: Sequence[torch.Tensor], piece: int) -> list[torch.Tensor]:
        """The tensors with the heads of one piece."""
        return [*tensors] if self.heads is None else self.heads.cut([*tensors], piece, self.count)

    def of_output(self, output: torch.Tensor, piece: int) -> torch.Tensor:
        """What the attention gives for the heads of one piece."""
        return output if self.heads is None else output.chunk(self.count, self.heads.axis)[piece]

    def place(self, number: int, piece: int) -> tuple[int, int]:
        """Of the gradient that a piece finds for a tensor: the number of its part, of how many parts.

        A tensor that has heads and is not exchanged, such as slopes, has a part for each rank and piece.
        """
        if self.exchange is None or number in self.exchange.moves:
            return piece, self.count
        ranks = self.exchange.ranks
        return piece * ranks.size + ranks.rank, self.count * ranks.size


@dataclass
class JoinedHeads:
    """A tensor of parts along an axis, which come one by one. complete: whether all come; else the others are 0."""

    axis: int
    complete: bool = True
    whole: torch.Tensor | None = None

    def put(self, part: torch.Tensor, number: int, count: int, dtype: torch.dtype) -> None:
        """One of `count` parts."""
        if count == 1:
            self.whole = part.to(dtype)
            return
        if self.whole is None:
            shape = list(part.shape)
            shape[self.axis] *= count
            made = part.new_empty if self.complete else part.new_zeros
            self.whole = made(shape, dtype=dtype)
        self.whole.chunk(count, self.axis)[number].copy_(part)


@dataclass
class JoinedGradients:
    """The gradients of tensors, from those of pieces: joined along the heads, and added where there are none."""

    pieces: Pieces
    tensors: Sequence[torch.Tensor]
    joined: dict[int, JoinedHeads] = field(default_factory=dict)
    rest: Sum = field(default_factory=Sum)

    def put(self, piece: int, found: Found) -> None:
        """Those of a piece."""
        axes = self.pieces.axes
        for number, x in enumerate(found):
            if x is not None and number in axes:
                place, count = self.pieces.place(number, piece)
                joined = self.joined.setdefault(number, JoinedHeads(axes[number], count == self.pieces.count))
                joined.put(x, place, count, self.tensors[number].dtype)
        self.rest.add([None if number in axes else x for number, x in enumerate(found)])

    def all(self) -> Gradients:
        """The whole ones, in the tensors' dtypes."""
        found = {number: joined.whole for number, joined in self.joined.items()}
        whole = [found.get(number, x) for number, x in enumerate(self.rest.total)]
        return [None if g is None else g.to(t.dtype) for g, t in zip(whole, self.tensors, strict=True)]


def interleaved(pieces: Iterable[Steps[Found]], join: Callable[[int, Found], None]) -> None:
    """Runs all pieces and joins what they give. While one waits for an exchange, those behind it run up to their own.

    join: called with a piece's number, in their order. All ranks run the same pieces, so they start the same exchanges
    in the same order.
    """
    given, running = enumerate(pieces), list[tuple[int, Steps[Found]]]()
    while True:
        following = next(given, None) if len(running) < MOST_AT_ONCE else None
        running = [*([] if following is None else [following]), *running]
        if not running:
            return
        for number, piece in list(running):
            found = _advanced(piece)
            if found is not None:
                running.remove((number, piece))
                join(number, found)


def _advanced(piece: Steps[Found]) -> Found | None:
    """What the piece gives, if it ends before it waits again."""
    try:
        next(piece)
    except StopIteration as end:
        return end.value
    return None
