"""The order in which a rank sees the keys of the others: a ring between hosts, and in each host a gathering.

In each round of the ring a rank sees the keys that its ring brought it, then those that it gathers from its host; the
exchange of the next keys runs beside the kernels. A host of one rank makes it a plain ring, a ring of one host a plain
all-gather. Invariant: each rank sees every key once, its own first, so the order of its merges is fixed. Example: of
hosts {0, 1} and {2, 3}, rank 0 sees the keys of 0, 1, 2 and 3, and gets those of 3 from rank 1.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from math import inf

import torch

from ..states import State
from .exchange import Exchange, Ranks

Keys = list[torch.Tensor]  # the tensors that belong to keys, in the order of their arguments
Gradients = list[torch.Tensor | None]

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

    lengths: how many keys each rank of each host has. axes: that of the keys.
    """

    ring: Ranks
    gather: Ranks
    lengths: Sequence[Sequence[int]]
    axes: Sequence[int]

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


def forward(shards: Shards, own: Keys, state_of: Callable[[Keys], State]) -> State:
    """The state of all keys. state_of: of some."""
    merged: State | None = None
    for host, keys in _passed(shards, own):
        for some in _gathered(shards, keys, host):
            merged = merged_with(merged, state_of(some))
    assert merged is not None
    return merged


def backward(
    shards: Shards, own: Keys, gradients_of: Callable[[Keys], tuple[Gradients, Gradients]], rest: Sum
) -> Gradients:
    """The whole gradients of the own keys; those of what does not belong to keys are added to the rest.

    gradients_of: the rest's and the keys', as far as some keys are concerned. Those of keys go home in float32.
    """
    ring, needed = shards.ring, list[int]()
    under_way: tuple[Exchange, Keys] | None = None
    for host, keys in _passed(shards, own):
        found = []
        for some in _gathered(shards, keys, host):
            others, of_keys = gradients_of(some)
            rest.add(others)
            found.append(of_keys)
        needed = [k for k, x in enumerate(found[0]) if x is not None]
        here, travelling = shards.only(needed), [_wide(found[0][k]) for k in needed]
        if len(found) > 1:
            _add_what_others_found(here, host, travelling, [_wide(found[1][k]) for k in needed])
        if under_way is not None:
            under_way[0].wait()
            travelling = [x.add_(y) for x, y in zip(travelling, under_way[1], strict=True)]
        if ring.size > 1 and needed:
            under_way = _sent(here, travelling, [own[k] for k in needed], (host - 1) % ring.size)
    if under_way is not None:
        under_way[0].wait()
        travelling = under_way[1]
    by_place = dict(zip(needed, travelling, strict=True))
    return [by_place.get(k) for k in range(len(own))]


def _passed(shards: Shards, own: Keys) -> Iterator[tuple[int, Keys]]:
    """Each host, and the keys of its rank in this ring, the own first; the next ones are under way meanwhile."""
    ring, host, keys = shards.ring, shards.ring.rank, own
    for following in ring.others:
        coming = shards.like(own, following, shards.gather.rank)
        exchange = ring.start([(x, ring.following) for x in keys], [(x, ring.preceding) for x in coming])
        yield host, keys
        exchange.wait()
        host, keys = following, coming
    yield host, keys


def _gathered(shards: Shards, keys: Keys, host: int) -> Iterator[Keys]:
    """The keys that the ring brought of a host, then at once those that it brought the other ranks of this one."""
    ranks = shards.gather
    coming = [shards.like(keys, host, other) for other in ranks.others]
    sends = [(x, other) for other in ranks.others for x in keys]
    exchange = ranks.start(sends, [(x, other) for other, k in zip(ranks.others, coming, strict=True) for x in k])
    yield keys
    if coming:
        exchange.wait()
        yield [torch.cat(parts, axis) for parts, axis in zip(zip(*coming, strict=True), shards.axes, strict=True)]


def _sent(shards: Shards, travelling: Keys, own: Keys, coming_host: int) -> tuple[Exchange, Keys]:
    """The gradients of keys on their way to the next rank, and the ones that come from the one before."""
    ring = shards.ring
    coming = shards.like(own, coming_host, shards.gather.rank, [x.dtype for x in travelling])
    return ring.start([(x, ring.following) for x in travelling], [(x, ring.preceding) for x in coming]), coming


def _add_what_others_found(shards: Shards, host: int, mine: Keys, theirs: Keys) -> None:
    """Sends each rank of the host the gradients of its keys, and adds what comes to the own ones, in a fixed order."""
    ranks = shards.gather
    lengths = [shards.lengths[host][other] for other in ranks.others]
    parts = [x.split(lengths, axis) for x, axis in zip(theirs, shards.axes, strict=True)]
    sends = [(part[n], other) for n, other in enumerate(ranks.others) for part in parts]
    back = [[torch.empty_like(x) for x in mine] for _ in ranks.others]
    ranks.start(sends, [(x, other) for other, found in zip(ranks.others, back, strict=True) for x in found]).wait()
    for found in back:
        for total, x in zip(mine, found, strict=True):
            total.add_(x)


# Sums ----------------------------------------------------------------------------------------------------------------


def merged_with(merged: State | None, part: State) -> State:
    """The state of what was merged so far and of a part, in the precision of the logarithms.

    It is `onepass.merge` for two states, with the first one's memory used again. Its output counts only where it has a
    key: a softmax without any gives no number.
    """
    total = part.logsumexp
    output = torch.where(total == -inf, 0.0, part.output).to(total.dtype)
    if merged is None:
        return State(output, total)
    whole = torch.logaddexp(merged.logsumexp, total)
    shares = [torch.where(x == -inf, 0.0, torch.exp(x - whole)) for x in (merged.logsumexp, total)]
    return State(merged.output.mul_(shares[0]).addcmul_(output, shares[1]), whole)


class Sum:
    """A sum of gradients, in at least float32; None where nothing was added."""

    def __init__(self) -> None:
        self.total: Gradients = []

    def add(self, found: Gradients) -> None:
        """Adds one gradient to each."""
        if not self.total:
            self.total = [None if x is None else _wide(x) for x in found]
            return
        pairs = zip(self.total, found, strict=True)
        self.total = [total if x is None else _wide(x) if total is None else total.add_(x) for total, x in pairs]


def _wide(x: torch.Tensor) -> torch.Tensor:
    """A copy that may be added to, contiguous, in at least float32."""
    return x.to(torch.promote_types(x.dtype, torch.float32), copy=True, memory_format=torch.contiguous_format)
