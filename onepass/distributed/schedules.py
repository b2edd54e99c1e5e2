"""The order in which a rank sees the keys of the others: ring and all-gather, forward and backward.

In both, the exchange of the next keys runs beside the kernel of those that are there, and gradients of keys go back to
their owner. Invariant: each rank sees every key once, its own first, so the order of its merges is fixed. Example: with
three ranks, rank 0 sees the keys of 0, 2 and 1 in a ring, and those of 0, then of 2 and 1 at once, in an all-gather.
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


@dataclass(frozen=True)
class Shards:
    """What is known of the keys of all ranks. lengths: how many keys each rank has. axes: that of the keys."""

    ranks: Ranks
    lengths: Sequence[int]
    axes: Sequence[int]

    def like(self, own: Sequence[torch.Tensor], owner: int, dtypes: Sequence[torch.dtype] | None = None) -> Keys:
        """Empty tensors for the keys of an owner. dtypes: other ones than the keys have."""
        found = []
        for number, (x, axis) in enumerate(zip(own, self.axes, strict=True)):
            shape = [*x.shape[:axis], self.lengths[owner], *x.shape[axis + 1 :]]
            found.append(x.new_empty(shape, dtype=dtypes[number] if dtypes else None))
        return found

    def only(self, kept: Sequence[int]) -> Shards:
        """The same of some of the tensors."""
        return replace(self, axes=[self.axes[k] for k in kept])


class RingSchedule:
    """Each rank sends the keys that it has to the next one, and their gradients follow them home."""

    name = "ring"

    def forward(self, shards: Shards, own: Keys, state_of: Callable[[Keys], State]) -> State:
        """The state of all keys. state_of: of some."""
        merged: State | None = None
        for keys in self._keys(shards, own):
            merged = merged_with(merged, state_of(keys))
        assert merged is not None
        return merged

    def backward(
        self, shards: Shards, own: Keys, gradients_of: Callable[[Keys], tuple[Gradients, Gradients]]
    ) -> tuple[Gradients, Gradients]:
        """The sum of what does not belong to keys, and the whole gradients of the own keys.

        gradients_of: both, as far as some keys are concerned.
        """
        ranks, rest, needed = shards.ranks, Sum(), list[int]()
        under_way: tuple[Exchange, Keys] | None = None
        for step, keys in enumerate(self._keys(shards, own)):
            owner = (ranks.rank - step) % ranks.size
            others, found = gradients_of(keys)
            rest.add(others)
            needed = [k for k, x in enumerate(found) if x is not None]
            travelling = [_wide(x) for x in found if x is not None]
            if under_way is not None:
                under_way[0].wait()
                travelling = [x.add_(y) for x, y in zip(travelling, under_way[1], strict=True)]
            if ranks.size > 1 and needed:
                following = (owner - 1) % ranks.size
                under_way = self._sent(shards.only(needed), travelling, [own[k] for k in needed], following)
        if under_way is not None:
            under_way[0].wait()
            travelling = under_way[1]
        return rest.total, _spread(travelling, needed, own)

    def _keys(self, shards: Shards, own: Keys) -> Iterator[Keys]:
        """The keys of each rank, the own first; the next ones are under way meanwhile."""
        ranks, keys = shards.ranks, own
        for owner in [*ranks.others, None]:
            if owner is None:
                yield keys
                return
            coming = shards.like(own, owner)
            exchange = ranks.start([(x, ranks.following) for x in keys], [(x, ranks.preceding) for x in coming])
            yield keys
            exchange.wait()
            keys = coming

    def _sent(self, shards: Shards, travelling: Keys, own: Keys, coming_owner: int) -> tuple[Exchange, Keys]:
        """The gradients of keys on their way to the next rank, and the ones that come from the one before."""
        ranks = shards.ranks
        coming = shards.like(own, coming_owner, [x.dtype for x in travelling])
        sends, receives = [(x, ranks.following) for x in travelling], [(x, ranks.preceding) for x in coming]
        return ranks.start(sends, receives), coming


class AllGatherSchedule:
    """Each rank gets the keys of all others at once, beside the kernel of its own; gradients go to the owners."""

    name = "all-gather"

    def forward(self, shards: Shards, own: Keys, state_of: Callable[[Keys], State]) -> State:
        """The state of all keys. state_of: of some."""
        exchange, coming = self._started(shards, own)
        merged = merged_with(None, state_of(own))
        if coming:
            exchange.wait()
            merged = merged_with(merged, state_of(self._joined(shards, coming)))
        return merged

    def backward(
        self, shards: Shards, own: Keys, gradients_of: Callable[[Keys], tuple[Gradients, Gradients]]
    ) -> tuple[Gradients, Gradients]:
        """As a ring's."""
        rest = Sum()
        exchange, coming = self._started(shards, own)
        others, found = gradients_of(own)
        rest.add(others)
        needed = [k for k, x in enumerate(found) if x is not None]
        mine = [_wide(x) for x in found if x is not None]
        if coming:
            exchange.wait()
            others, theirs = gradients_of(self._joined(shards, coming))
            rest.add(others)
            self._add_what_others_found(shards.only(needed), mine, [_wide(theirs[k]) for k in needed])
        return rest.total, _spread(mine, needed, own)

    def _started(self, shards: Shards, own: Keys) -> tuple[Exchange, list[Keys]]:
        ranks = shards.ranks
        coming = [shards.like(own, owner) for owner in ranks.others]
        sends = [(x, owner) for owner in ranks.others for x in own]
        receives = [(x, owner) for owner, keys in zip(ranks.others, coming, strict=True) for x in keys]
        return ranks.start(sends, receives), coming

    def _add_what_others_found(self, shards: Shards, mine: Keys, theirs: Keys) -> None:
        """Sends each rank the gradients of its keys, and adds what comes to those of the own ones, in a fixed order."""
        ranks = shards.ranks
        lengths = [shards.lengths[owner] for owner in ranks.others]
        parts = [x.split(lengths, axis) for x, axis in zip(theirs, shards.axes, strict=True)]
        sends = [(part[n], owner) for n, owner in enumerate(ranks.others) for part in parts]
        back = [[torch.empty_like(x) for x in mine] for _ in ranks.others]
        receives = [(x, owner) for owner, found in zip(ranks.others, back, strict=True) for x in found]
        ranks.start(sends, receives).wait()
        for found in back:
            for total, x in zip(mine, found, strict=True):
                total.add_(x)

    def _joined(self, shards: Shards, coming: Sequence[Keys]) -> Keys:
        return [torch.cat(parts, axis) for parts, axis in zip(zip(*coming, strict=True), shards.axes, strict=True)]


SCHEDULES = {schedule.name: schedule for schedule in (RingSchedule(), AllGatherSchedule())}


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
        self.total = [total if x is None else x if total is None else total.add_(x) for total, x in pairs]


def _wide(x: torch.Tensor) -> torch.Tensor:
    """A copy that may be added to, contiguous, in at least float32."""
    return x.to(torch.promote_types(x.dtype, torch.float32), copy=True, memory_format=torch.contiguous_format)


def _spread(found: Sequence[torch.Tensor], places: Sequence[int], own: Keys) -> Gradients:
    by_place = dict(zip(places, found, strict=True))
    return [by_place.get(k) for k in range(len(own))]
