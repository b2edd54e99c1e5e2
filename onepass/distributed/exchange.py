"""Tensors sent between the ranks of a group: to the next rank, and to all others, while kernels run.

An exchange is started, and waited for where its result is read. Integers that did not change since an earlier call are
not sent again. Invariant: all ranks of a group start the same exchanges in the same order. Example:
`Ranks.of(group).start([(x, 1)], [(y, 1)])` sends x to rank 1 and fills y.
"""

from __future__ import annotations

import weakref
from collections import OrderedDict
from collections.abc import Collection, Generator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import count
from math import prod
from typing import TypeVar

import torch
from torch import distributed
from torch.distributed import ProcessGroup

from ..lowering.masks.block_map import owner_of, version_of

Message = tuple[torch.Tensor, int]  # and the rank in the group that it goes to, or comes from
T = TypeVar("T")
Steps = Generator[None, None, T]  # it pauses before it waits for an exchange that runs beside none of its own kernels


@dataclass
class Exchange:
    """An exchange under way. It holds what is sent until it ended."""

    works: list[distributed.Work]
    sent: list[torch.Tensor] = field(default_factory=list)

    def wait(self) -> None:
        """Until what was received may be read: on a GPU by what is launched afterwards."""
        for work in self.works:
            work.wait()
        self.works, self.sent = [], []


@dataclass(frozen=True)
class Ranks:
    """The ranks of one group, as this process sees them."""

    group: ProcessGroup | None
    rank: int
    size: int

    @classmethod
    def of(cls, group: ProcessGroup) -> Ranks:
        """Those of a group that this process belongs to."""
        return cls(group, distributed.get_rank(group), distributed.get_world_size(group))

    @property
    def following(self) -> int:
        """The rank that a ring sends to."""
        return (self.rank + 1) % self.size

    @property
    def preceding(self) -> int:
        """The rank that a ring receives from."""
        return (self.rank - 1) % self.size

    @property
    def others(self) -> list[int]:
        """The other ranks, in the order of the ring in which their keys come by."""
        return [(self.rank - step) % self.size for step in range(1, self.size)]

    def start(self, sends: Sequence[Message], receives: Sequence[Message]) -> Exchange:
        """Starts to send and to receive contiguous tensors. What is sent must stay unchanged until the wait."""
        sent = [(x.contiguous(), to) for x, to in sends]
        operations = [self._operation(distributed.isend, x, to) for x, to in sent]
        operations += [self._operation(distributed.irecv, x, source) for x, source in receives]
        works = distributed.batch_isend_irecv(operations) if operations else []
        return Exchange(works, [x for x, _ in sent])

    def _operation(self, kind, tensor: torch.Tensor, other: int) -> distributed.P2POp:
        tensor = tensor.view(torch.uint8) if tensor.dtype == torch.bool else tensor
        return distributed.P2POp(kind, tensor, distributed.get_global_rank(self.group, other), self.group)

    def numbers(self, own: Sequence[int], device: torch.device) -> list[list[int]]:
        """Some numbers of each rank. The CPU waits for them."""
        if self.size == 1:
            return [list(own)]
        given = torch.tensor(list(own), device=device)
        found = [torch.empty_like(given) for _ in range(self.size)]
        distributed.all_gather(found, given, group=self.group)
        return torch.stack(found).tolist()


ALONE = Ranks(None, 0, 1)


# Integers that are known already --------------------------------------------------------------------------------------

Place = tuple[str, int]  # "ring" or "host" and the number of the host whose keys these are, or "heads"
MOST_TABLES = 8  # of integers that are kept: of a training loop, an evaluation, and some lengths
MOST_OF_A_TOKEN = 64  # integers: more are too many to keep
INTEGERS = (torch.int64, torch.int32, torch.int16, torch.bool)  # not bytes, which keys and values may be


def is_remembered(tensor: torch.Tensor, axis: int) -> bool:
    """Whether it is kept, such as positions, documents and paddings. axis: of the tokens, in whose number ranks differ.

    All ranks say the same of their parts of a tensor.
    """
    of_a_token = prod(n for place, n in enumerate(tensor.shape) if place != axis)
    return tensor.dtype in INTEGERS and of_a_token <= MOST_OF_A_TOKEN


@dataclass
class Remembered:
    """Integers of other ranks, as they came in an earlier exchange. As the objects stay the same, so do maps of tiles.

    numbers: which of the exchanged tensors may be kept; ranks compare these in each call. cut: which of them are cut
    with the heads, so that each piece has its own part. All ranks keep the same tensors of the same places, so what one
    rank does not send, no other waits for.
    """

    by_place: dict[tuple[Place, int | None], dict[int, torch.Tensor]] = field(default_factory=dict)
    numbers: frozenset[int] = frozenset()
    cut: frozenset[int] = frozenset()
    piece: int = 0

    def of(self, numbers: Collection[int], cut: Collection[int] = (), piece: int = 0) -> Remembered:
        """The same memory, of these tensors and this piece."""
        return replace(self, numbers=frozenset(numbers), cut=frozenset(cut), piece=piece)

    def known(self, place: Place) -> Mapping[int, torch.Tensor]:
        """Those of a place, by their number among the tensors that are exchanged."""
        return {**self.by_place.get((place, None), {}), **self.by_place.get((place, self.piece), {})}

    def keep(self, place: Place, tensors: Mapping[int, torch.Tensor]) -> None:
        """Keeps the integers among the tensors of a place."""
        for piece, numbers in ((None, self.numbers - self.cut), (self.piece, self.numbers & self.cut)):
            kept = {k: x for k, x in tensors.items() if k in numbers}
            self.by_place.setdefault((place, piece), kept)


class Unchanged:
    """A number for a rank's integers: the same as long as the integers are.

    Inference mode has numbers of its own, as tensors that come in it cannot be saved for a backward.
    """

    def __init__(self) -> None:
        self._numbers, self._tables = count(1), OrderedDict[tuple, Remembered]()
        self._copies = OrderedDict[int, tuple[bool, dict[int, torch.Tensor]]]()
        self._objects = OrderedDict[int, tuple[bool, dict[int, weakref.ref], dict[int, tuple | None]]]()

    def copies(self, tensors: Mapping[int, torch.Tensor]) -> tuple[int, Mapping[int, torch.Tensor]]:
        """The number, 0 without any integers, and copies of them. tensors: the integers, by their number in the call.

        Integers are compared and not versions of tensors, as torch counts no write by NumPy, by most collectives
        (scatter, broadcast), and through a DTensor. The CPU waits for that. A call reads the copies: nobody else writes
        to them, and as the objects stay the same, so do maps of tiles.
        """
        if not tensors:
            return 0, {}
        mode = torch.is_inference_mode_enabled()
        for number, (seen_in, copies) in reversed(self._copies.items()):
            if seen_in == mode and _are_equal(copies, tensors):
                self._copies.move_to_end(number)
                return number, copies
        number = next(self._numbers)
        with torch.inference_mode(False):
            copies = {k: x.clone(memory_format=torch.contiguous_format) for k, x in tensors.items()}
        self._copies[number] = mode, copies
        keep_newest(self._copies)
        return number, copies

    def of_objects(self, tensors: Mapping[int, torch.Tensor]) -> int:
        """The number as `copies` gives it, where the same tensors without a write that torch counts are the same.

        Of a parameter, and of a tensor that was made in inference mode, torch counts none: they are new each time.
        """
        if not tensors:
            return 0
        mode, owners = torch.is_inference_mode_enabled(), {k: owner_of(x) for k, x in tensors.items()}
        versions = {k: version_of(x) for k, x in tensors.items()}
        for number, (seen_in, references, seen) in reversed(self._objects.items()):
            if (seen_in, seen) == (mode, versions) and all(references[k]() is x for k, x in owners.items()):
                self._objects.move_to_end(number)
                return number
        number = next(self._numbers)
        if None not in versions.values() and not any(isinstance(x, torch.nn.Parameter) for x in owners.values()):
            self._objects[number] = mode, {k: weakref.ref(x) for k, x in owners.items()}, versions
            keep_newest(self._objects)
        return number

    def remembered(self, key: tuple) -> Remembered:
        """What came while all ranks' numbers, which the key holds, were the same."""
        found = self._tables.setdefault(key, Remembered())
        self._tables.move_to_end(key)
        keep_newest(self._tables)
        return found


def _are_equal(some: Mapping[int, torch.Tensor], others: Mapping[int, torch.Tensor]) -> bool:
    kind = lambda x: (x.dtype, x.device, x.shape)
    return some.keys() == others.keys() and all(
        kind(x) == kind(others[k]) and torch.equal(x, others[k]) for k, x in some.items()
    )


def keep_newest(table: OrderedDict, most: int = MOST_TABLES) -> None:
    """Drops the oldest entries of too many."""
    while len(table) > most:
        table.popitem(last=False)
