"""Tensors sent between the ranks of a group: to the next rank, and to all others, while kernels run.

An exchange is started, and waited for where its result is read. Invariant: all ranks of a group start the same
exchanges in the same order. Example: `Ranks.of(group).start([(x, 1)], [(y, 1)])` sends x to rank 1 and fills y.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
from torch import distributed
from torch.distributed import ProcessGroup

Message = tuple[torch.Tensor, int]  # and the rank in the group that it goes to, or comes from


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
        return [x.tolist() for x in found]


ALONE = Ranks(None, 0, 1)
