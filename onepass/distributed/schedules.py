"""The order in which a rank sees the keys of the others: a ring between hosts, and in each host a gathering.

In each round of the ring a rank sees the keys that its ring brought it, then those that it gathers from its host; the
exchange of the next keys runs beside the kernels. A host of one rank makes it a plain ring, a ring of one host a plain
all-gather. Invariant: each rank sees every key once, its own first, so the order of its merges is fixed. Example: of
hosts {0, 1} and {2, 3}, rank 0 sees the keys of 0, 1, 2 and 3, and gets those of 3 from rank 1.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field, replace
from functools import partial
from math import inf
from typing import Any

import torch
from torch.fx.experimental.proxy_tensor import make_fx

from ..egraph.forks import lock
from ..lowering.tiled.compiled_tiles import compiled_graph, in_a_thread
from ..process_state import registered
from ..states import State
from .exchange import Exchange, Ranks, Remembered, Steps

Keys = list[torch.Tensor]  # the tensors that belong to keys, in the order of their arguments
Gradients = list[torch.Tensor | None]
Merge = Callable[..., Any]  # of tensors, which gives tensors

# Numbers of this size are 32 or more apart: such a score plus the logarithm of the number of keys is the score.
HIDDEN = {torch.float32: -(2.0**28), torch.float64: -(2.0**57)}
LEAST_TO_FUSE = 1 << 20  # elements of an output: fewer are merged in the time of some launches
MOST_KERNELS = 32  # for tensors of one kind each: parts whose lengths change from call to call are merged call by call
_LOCK = lock()
_KERNELS: dict[tuple, Merge] = registered({}, "runners", _LOCK)

# What the ranks along each dim of the mesh do, hosts first: pass keys in a ring, gather those of all, exchange heads.
SCHEDULES: dict[str, tuple[str, ...]] = {
    "ring": ("ring",),
    "all-gather": ("gather",),
    "ulysses": ("heads",),
    "two-level": ("ring", "gather"),
    "two-level ulysses": ("ring", "heads"),
}


@dataclass(frozen=True)
class Shards:
    """What is known of the keys of all ranks. ring: the ranks that keys go round. gather: those of this rank's host.

    lengths: how many keys each rank of each host has. axes: that of the keys. remembered: integers that came before.
    """

    ring: Ranks
    gather: Ranks
    lengths: Sequence[Sequence[int]]
    axes: Sequence[int]
    remembered: Remembered = field(default_factory=Remembered)

    def like(
        self, own: Sequence[torch.Tensor], host: int, rank: int, dtypes: Sequence[torch.dtype] | None = None
    ) -> Keys:
        """Empty tensors for the keys of a rank of a host. dtypes: other ones than the keys have."""
        found = []
        for number, (x, axis) in enumerate(zip(own, self.axes, strict=True)):
            shape = [*x.shape[:axis], self.lengths[host][rank], *x.shape[axis + 1 :]]
            found.append(x.new_empty(shape, dtype=dtypes[number] if dtypes else None))
        return found

    def only(self, kept: Sequence[int]) -> Shards:
        """The same of some of the tensors."""
        return replace(self, axes=[self.axes[k] for k in kept])

    def of_piece(self, numbers: Collection[int], cut: Collection[int], piece: int) -> Shards:
        """Those of a piece of the work. numbers, cut: of the keys' tensors, as `Remembered` has them."""
        return replace(self, remembered=self.remembered.of(numbers, cut, piece))


def forward(
    shards: Shards,
    own: Keys,
    state_of: Callable[[Keys], State],
    first: State | None = None,
    dtype: torch.dtype | None = None,
) -> State:
    """The state of all keys, and of `first`. state_of: of some. dtype: of its output, without it that of logarithms."""
    merged, seen, left = first, 0, shards.ring.size * min(shards.gather.size, 2)
    for host, keys in _passed(shards, own):
        for some in _gathered(shards, keys, host):
            part, left, count = state_of(some), left - 1, some[0].shape[shards.axes[0]]
            if merged is None and left:
                merged = part  # as it is, as the next merge reads it
            else:
                merged = merged_with(merged, part, None if left else dtype, seen / max(1, seen + count))
            seen += count
    assert merged is not None
    return merged


def backward(
    shards: Shards, own: Keys, gradients_of: Callable[[Keys], tuple[Gradients, Gradients]], rest: Sum
) -> Steps[Gradients]:
    """The whole gradients of the own keys; those of what does not belong to keys are added to the rest.

    It pauses before it waits for gradients while none of its kernels is left to run beside them.

    gradients_of: the rest's and the keys', as far as some keys are concerned. Sums of those of keys are in float32. On
    the way home, what one rank found goes as it is, and a whole sum is rounded as the keys are: the bits are the same.
    """
    ring, needed, left = shards.ring, list[int](), shards.ring.size - 1
    under_way: tuple[Exchange, Keys] | None = None
    for host, keys in _passed(shards, own):
        found = []
        for some in _gathered(shards, keys, host):
            others, of_keys = gradients_of(some)
            rest.add(others)
            found.append(of_keys)
        needed = [k for k, x in enumerate(found[0]) if x is not None]
        here, travelling = shards.only(needed), (yield from _of_host(shards, host, needed, found))
        if under_way is not None:
            under_way[0].wait()
            travelling = [_added(x, y, own[k].dtype, left) for k, x, y in zip(needed, travelling, under_way[1])]
        left -= 1
        if ring.size > 1 and needed:
            under_way = _sent(here, travelling, [own[k] for k in needed], (host - 1) % ring.size)
    if under_way is not None:
        yield
        under_way[0].wait()
        travelling = under_way[1]
    by_place = dict(zip(needed, travelling, strict=True))
    return [by_place.get(k) for k in range(len(own))]


def _of_host(shards: Shards, host: int, needed: Sequence[int], found: Sequence[Gradients]) -> Steps[Keys]:
    """The gradients of this rank's keys of a host, with what the ranks of this one found of them.

    found: of these keys, as they are, and of those of the others, if there are any.
    """
    mine = [found[0][k] for k in needed]
    if len(found) == 1:
        return mine
    mine = [_wide(x) for x in mine]
    yield from _add_what_others_found(shards.only(needed), host, mine, [_wide(found[1][k]) for k in needed])
    return mine


def _passed(shards: Shards, own: Keys) -> Iterator[tuple[int, Keys]]:
    """Each host, and the keys of its rank in this ring, the own first; the next ones are under way meanwhile."""
    ring, host, keys = shards.ring, shards.ring.rank, own
    for following in ring.others:
        place = "ring", following
        known, coming = shards.remembered.known(place), shards.like(own, following, shards.gather.rank)
        moved = [k for k in range(len(keys)) if k not in known]
        exchange = ring.start(
            [(keys[k], ring.following) for k in moved], [(coming[k], ring.preceding) for k in moved]
        )
        yield host, keys
        exchange.wait()
        host, keys = following, [known.get(k, x) for k, x in enumerate(coming)]
        shards.remembered.keep(place, dict(enumerate(keys)))
    yield host, keys


def _gathered(shards: Shards, keys: Keys, host: int) -> Iterator[Keys]:
    """The keys that the ring brought of a host, then at once those that it brought the other ranks of this one."""
    ranks, place = shards.gather, ("host", host)
    known = shards.remembered.known(place)
    moved = [k for k in range(len(keys)) if k not in known]
    coming = [shards.only(moved).like([keys[k] for k in moved], host, other) for other in ranks.others]
    sends = [(keys[k], other) for other in ranks.others for k in moved]
    exchange = ranks.start(sends, [(x, other) for other, each in zip(ranks.others, coming, strict=True) for x in each])
    yield keys
    if ranks.others:
        exchange.wait()
        parts = dict(zip(moved, zip(*coming, strict=True), strict=True))
        joined = [known[k] if k in known else torch.cat(parts[k], axis) for k, axis in enumerate(shards.axes)]
        shards.remembered.keep(place, dict(enumerate(joined)))
        yield joined


def _sent(shards: Shards, travelling: Keys, own: Keys, coming_host: int) -> tuple[Exchange, Keys]:
    """The gradients of keys on their way to the next rank, and the ones that come from the one before."""
    ring = shards.ring
    coming = shards.like(own, coming_host, shards.gather.rank, [x.dtype for x in travelling])
    return ring.start([(x, ring.following) for x in travelling], [(x, ring.preceding) for x in coming]), coming


def _added(found: torch.Tensor, came: torch.Tensor, dtype: torch.dtype, left: int) -> torch.Tensor:
    """What came, with what was found here. dtype: of the keys. left: how often more is added."""
    if left:
        return came.to(_wide_dtype(came)).add_(found)
    total = came.add_(found)  # of two halves it is rounded once, as their sum in float32 would be
    return total.to(dtype) if dtype.itemsize < total.itemsize else total


def _add_what_others_found(shards: Shards, host: int, mine: Keys, theirs: Keys) -> Steps[None]:
    """Sends each rank of the host the gradients of its keys, and adds what comes to the own ones, in a fixed order."""
    ranks = shards.gather
    lengths = [shards.lengths[host][other] for other in ranks.others]
    parts = [x.split(lengths, axis) for x, axis in zip(theirs, shards.axes, strict=True)]
    sends = [(part[n], other) for n, other in enumerate(ranks.others) for part in parts]
    back = [[torch.empty_like(x) for x in mine] for _ in ranks.others]
    receives = [(x, other) for other, found in zip(ranks.others, back, strict=True) for x in found]
    exchange = ranks.start(sends, receives)
    yield
    exchange.wait()
    for found in back:
        for total, x in zip(mine, found, strict=True):
            total.add_(x)


# Sums ----------------------------------------------------------------------------------------------------------------


def merged_with(
    merged: State | None, part: State, dtype: torch.dtype | None = None, share: float = 0.5
) -> State:
    """The state of what was merged so far and of a part. dtype: of its output, without it that of the logarithms.

    It is `onepass.merge` for two states, in the first one's memory where that is the same in kind. An output counts
    only where it has a key: a softmax without any gives no number. share: that of the first one in the keys, which is
    its weight in rows that are `hidden`.
    """
    total = part.logsumexp
    dtype = dtype or total.dtype
    if merged is None:
        return State(torch.where(total == -inf, 0.0, part.output).to(dtype), total)
    one, other = merged.output, part.output
    into = _JOINED[one.dtype == dtype and one.shape == other.shape, dtype]
    return State(*_fused(into, [*merged, *part, torch.full((), share, dtype=total.dtype, device=total.device)]))


def _joined(
    again: bool,
    dtype: torch.dtype,
    one: torch.Tensor,
    one_total: torch.Tensor,
    other: torch.Tensor,
    other_total: torch.Tensor,
    share: torch.Tensor,
) -> tuple[torch.Tensor, torch.Tensor]:
    """The output and the logarithm of two states. again: whether the output is in the first one's memory."""
    whole = torch.logaddexp(one_total, other_total)
    alike = hidden(one_total) & (one_total == other_total)
    parts = [
        _share(x, total, torch.where(alike, weight, torch.exp(total - whole)))
        for x, total, weight in ((one, one_total, share), (other, other_total, 1 - share))
    ]
    output = (parts[0] + parts[1]).to(dtype)
    return one.copy_(output) if again else output, whole


def _share(output: torch.Tensor, total: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    return torch.where(total == -inf, 0.0, output.to(total.dtype) * weight)


def hidden(total: torch.Tensor) -> torch.Tensor:
    """Of logarithms of sums of exponentials: whether all scores of a row are the number of a mask that is given.

    The number of keys is lost beside it in the logarithm, and all keys are taken to have the same weight.
    """
    return (total <= HIDDEN[total.dtype]) & (total > -inf)


OUTPUTS = (torch.bfloat16, torch.float16, torch.float32, torch.float64)
_JOINED = {(again, dtype): partial(_joined, again, dtype) for again in (False, True) for dtype in OUTPUTS}


def _fused(function: Merge, tensors: list[torch.Tensor]) -> Any:
    """What a function of the tensors gives, as it is run on their kind of device."""
    run = FUSED_ON.get(tensors[0].device.type)
    return run(function, tensors) if run else function(*tensors)


def _by_one_kernel(function: Merge, tensors: list[torch.Tensor]) -> Any:
    """By a kernel that Inductor makes, for large tensors.

    Example: to merge two outputs of 256 MiB takes 0.25 ms by one kernel, and 2.7 ms call by call (one H200).
    """
    if tensors[0].numel() < LEAST_TO_FUSE:
        return function(*tensors)
    key = function, tensors[0].device, *((x.shape, x.stride(), x.dtype) for x in tensors)
    with _LOCK:
        known, is_full = _KERNELS.get(key), len(_KERNELS) >= MOST_KERNELS
    if known is None:
        known = function if is_full else _compiled(function, tensors)
        with _LOCK:
            _KERNELS.setdefault(key, known)
    return known(*tensors)


FUSED_ON: dict[str, Callable[[Merge, list[torch.Tensor]], Any]] = {"cuda": _by_one_kernel}  # by kind of device


def _compiled(function: Merge, tensors: list[torch.Tensor]) -> Merge:
    """The function as Inductor compiles it for such tensors; itself, where Inductor fails."""

    def compiled() -> Merge:
        on_gpu = tensors[0].is_cuda
        with torch.cuda.device(tensors[0].device) if on_gpu else nullcontext():
            return compiled_graph(make_fx(function, tracing_mode="fake")(*tensors), tensors)

    try:
        return in_a_thread(compiled)
    except Exception:  # a compiler's own trouble, such as a machine without a C compiler: the calls give the same
        return function


class Sum:
    """A sum of gradients, in at least float32; None where nothing was added, and one alone as it is."""

    def __init__(self) -> None:
        self.total: Gradients = []
        self._own: list[bool] = []

    def add(self, found: Gradients) -> None:
        """Adds one gradient to each."""
        if not self.total:
            self.total, self._own = list(found), [False] * len(found)
            return
        for number, (total, x) in enumerate(zip(self.total, found, strict=True)):
            if total is None or x is None:
                self.total[number] = x if total is None else total
            elif self._own[number]:
                total.add_(x)
            else:
                self.total[number], self._own[number] = _wide(total).add_(x), True


def _wide_dtype(x: torch.Tensor) -> torch.dtype:
    return torch.promote_types(x.dtype, torch.float32)


def _wide(x: torch.Tensor) -> torch.Tensor:
    """A copy that may be added to, contiguous, in at least float32."""
    return x.to(_wide_dtype(x), copy=True, memory_format=torch.contiguous_format)
