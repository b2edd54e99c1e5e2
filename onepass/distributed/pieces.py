"""A rank's work in pieces, one after the other: each has some of the heads, and what a piece waits for runs beside the
next one's kernels.

What a rank holds of others is then that of a piece or two. Invariant: pieces are equal parts along axes of which it is
proved that they are computed element by element (laws/head_law.py), so joined results are the results of the whole.
Example: `Pieces(Heads(1, {0: 1, 1: 1, 2: 1}), 4)` computes 16 heads of q, k and v four at a time.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field
from functools import cache

import torch

from .exchange import Steps
from .head_exchange import HeadExchange
from .laws.head_law import Heads
from .schedules import Gradients, Sum

MOST_LANES = 2  # streams of a GPU: two kernels at once keep it busy, and each lane has memory of its own
MOST_AT_ONCE = 3  # pieces: one whose heads come, one that is computed, one whose results go home


@dataclass(frozen=True)
class Pieces:
    """How the work is cut. heads: the axes; None for a single piece. exchange: that of heads for the sequence."""

    heads: Heads | None = None
    count: int = 1
    exchange: HeadExchange | None = None

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
class Joined:
    """A tensor of parts along an axis, which come one by one; what did not come is 0."""

    axis: int
    whole: torch.Tensor | None = None

    def put(self, part: torch.Tensor, number: int, count: int, dtype: torch.dtype) -> None:
        """One of `count` parts."""
        if count == 1:
            self.whole = part.to(dtype)
            return
        if self.whole is None:
            shape = list(part.shape)
            shape[self.axis] *= count
            self.whole = part.new_zeros(shape, dtype=dtype)
        self.whole.chunk(count, self.axis)[number].copy_(part)


@dataclass
class JoinedGradients:
    """The gradients of tensors, from those of pieces: joined along the heads, and added where there are none."""

    pieces: Pieces
    tensors: Sequence[torch.Tensor]
    joined: dict[int, Joined] = field(default_factory=dict)
    rest: Sum = field(default_factory=Sum)

    def put(self, piece: int, found: Found) -> None:
        """Those of a piece."""
        axes = {} if self.pieces.heads is None else self.pieces.heads.axes
        for number, x in enumerate(found):
            if x is not None and number in axes:
                joined = self.joined.setdefault(number, Joined(axes[number]))
                joined.put(x, *self.pieces.place(number, piece), self.tensors[number].dtype)
        self.rest.add([None if number in axes else x for number, x in enumerate(found)])

    def all(self) -> Gradients:
        """The whole ones, in the tensors' dtypes."""
        found = {number: joined.whole for number, joined in self.joined.items()}
        whole = [found.get(number, x) for number, x in enumerate(self.rest.total)]
        return [None if g is None else g.to(t.dtype) for g, t in zip(whole, self.tensors, strict=True)]


# In turn --------------------------------------------------------------------------------------------------------------

Found = Sequence[torch.Tensor | None]  # what a piece gives
Join = Callable[[int, Found], None]  # called with a piece's number


def interleaved(pieces: Iterable[Steps[Found]], join: Join, device: torch.device, lanes: int = MOST_LANES) -> None:
    """Runs all pieces and joins what they give. While one waits for an exchange, those behind it run up to their own.

    lanes: on a GPU, how many streams the pieces take in turn. When the last blocks of a kernel leave multiprocessors
    idle, those of another lane's kernel start there. Results are joined on the current stream, in the pieces' order.
    All ranks run the same pieces, so they start the same exchanges in the same order.
    """
    streams = _streams(device)[:lanes] if device.type == "cuda" and lanes > 1 else ()
    given, running = enumerate(pieces), list[tuple[int, Steps[Found]]]()
    with _beside(streams, device) as lane_of:
        while True:
            following = next(given, None) if len(running) < MOST_AT_ONCE else None
            running = [*([] if following is None else [following]), *running]
            if not running:
                return
            for number, piece in list(running):
                with lane_of(number):
                    found = _advanced(piece)
                if found is not None:
                    running.remove((number, piece))
                    _joined(join, number, found, streams)


def _advanced(piece: Steps[Found]) -> Found | None:
    """What the piece gives, if it ends before it waits again."""
    try:
        next(piece)
    except StopIteration as end:
        return end.value
    return None


def _joined(join: Join, number: int, found: Found, streams: Sequence[torch.cuda.Stream]) -> None:
    if streams:
        current = torch.cuda.current_stream(streams[0].device)
        current.wait_stream(streams[number % len(streams)])
        for x in found:
            if x is not None:
                x.record_stream(current)
    join(number, found)


@contextmanager
def _beside(
    streams: Sequence[torch.cuda.Stream], device: torch.device
) -> Iterator[Callable[[int], AbstractContextManager]]:
    """For a piece's number, a context in which its lane is the current stream. At the end nothing runs on lanes."""
    if not streams:
        yield lambda number: nullcontext()
        return
    current = torch.cuda.current_stream(device)
    for stream in streams:
        stream.wait_stream(current)
    try:
        yield lambda number: torch.cuda.stream(streams[number % len(streams)])
    finally:
        for stream in streams:
            current.wait_stream(stream)


@cache
def _streams(device: torch.device) -> tuple[torch.cuda.Stream, ...]:
    """The same ones in each call: what is made on a stream, such as maps of tiles, serves what runs on it later."""
    return tuple(torch.cuda.Stream(device) for _ in range(MOST_LANES))
