"""How long a schedule of ranks takes on GPUs that are not there: its own code runs on tensors without data, by a clock.

A kernel takes what one GPU was measured to take for as many pairs; an exchange takes its bytes on the link that they
go by, beside the kernels; what else the schedule computes takes the bytes it reads and writes. Invariant: all ranks do
the same at the same time, as with parts of equal work, so one of them stands for all. Example: with two GPUs
`simulated("ring", (2,), task, machine).step` is the seconds of a step of training.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from unittest.mock import patch

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from ..distributed.exchange import ALONE, Exchange, Message, Ranks
from ..distributed.head_exchange import HeadExchange, Move
from ..distributed.head_law import Heads
from ..distributed.schedules import FUSED_ON, SCHEDULES, Gradients, Keys, Merge, Shards, Sum, backward, forward
from ..states import State

LAUNCH = 5e-6  # seconds of a kernel without bytes


@dataclass(frozen=True)
class Machine:
    """GPUs of hosts. memory, link, network: bytes a second of a GPU's memory, and that it receives from a GPU of its
    host, and from one of another. start: seconds of an exchange without bytes. host: GPUs of a host."""

    memory: float
    link: float
    network: float
    start: float
    host: int


@dataclass(frozen=True)
class Task:
    """An attention of one sequence. forward, backward: seconds of one GPU for a pair of a query and a key of one head,
    with what a mask leaves out counted in. heads: of queries; key_heads: of keys."""

    tokens: int
    heads: int
    key_heads: int
    width: int
    forward: float
    backward: float


@dataclass
class Clock:
    """The time of one rank. free: when each link will have brought what was asked of it. waited: for exchanges."""

    machine: Machine
    now: float = 0.0
    waited: float = 0.0
    received: int = 0
    free: dict[str, float] = field(default_factory=lambda: dict.fromkeys(("link", "network"), 0.0))

    def brings(self, receives: Sequence[tuple[int, bool]]) -> float:
        """When an exchange will have ended. receives: bytes of each message, and whether it is of this host."""
        ends = [self.now]
        for name, is_here in (("link", True), ("network", False)):
            size = sum(bytes_ for bytes_, here in receives if here is is_here)
            if size:
                speed = getattr(self.machine, name)
                self.free[name] = max(self.now, self.free[name]) + self.machine.start + size / speed
                ends.append(self.free[name])
            self.received += size
        return max(ends)

    def waits(self, end: float) -> None:
        """Until then, if that is not past."""
        self.waited += max(0.0, end - self.now)
        self.now = max(self.now, end)


@dataclass
class SimulatedExchange(Exchange):
    """An exchange that ends by the clock."""

    clock: Clock | None = None
    end: float = 0.0

    def wait(self) -> None:
        """Lets time pass."""
        assert self.clock is not None
        self.clock.waits(self.end)


@dataclass(frozen=True)
class SimulatedRanks(Ranks):
    """The ranks along one dim of a mesh, as the first one sees them. stride: from one to the next, in GPUs."""

    clock: Clock = field(kw_only=True)
    stride: int = field(kw_only=True)

    def start(self, sends: Sequence[Message], receives: Sequence[Message]) -> Exchange:
        """Counts what comes. Ranks are at the same place, so what is asked for is already sent."""
        here = lambda source: source * self.stride < self.clock.machine.host
        end = self.clock.brings([(x.nbytes, here(source)) for x, source in receives])
        return SimulatedExchange([], clock=self.clock, end=end)


class _OperationsTakeTime(TorchDispatchMode):
    """What is computed beside the kernels takes the bytes that it reads and writes."""

    def __init__(self, clock: Clock):
        super().__init__()
        self.clock = clock

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        result = func(*args, **(kwargs or {}))
        is_view = any(r.alias_info is not None and not r.alias_info.is_write for r in func._schema.returns)
        if not is_view and "empty" not in func._schema.name and "detach" not in func._schema.name:
            self._takes((args, kwargs, result))
        return result

    def _takes(self, moved: object) -> None:
        given = [x for x in torch.utils._pytree.tree_leaves(moved) if isinstance(x, torch.Tensor)]
        self.clock.now += LAUNCH + sum(x.nbytes for x in given) / self.clock.machine.memory

    def as_one(self, function: Merge, tensors: list[torch.Tensor]) -> object:
        """What a function gives that is one kernel: it reads its tensors and writes its results."""
        started = self.clock.now
        result = function(*tensors)
        self.clock.now = started
        self._takes((tensors, result))
        return result


@dataclass(frozen=True)
class SimulatedTimes:
    """Seconds of a forward, and of a step with its backward; bytes that a rank receives in the forward; seconds of the
    step that it waits for exchanges."""

    forward: float
    step: float
    received: int
    waited: float


def simulated(schedule: str, sizes: Sequence[int], task: Task, machine: Machine) -> SimulatedTimes:
    """What a schedule takes. sizes: the number of ranks along each dim of the mesh, hosts first.

    Raises ValueError for heads that do not divide.
    """
    ranks = dict(zip(SCHEDULES[schedule], sizes, strict=True))
    clock = Clock(machine)
    operations = _OperationsTakeTime(clock)
    with operations, torch.device("meta"), patch.dict(FUSED_ON, meta=operations.as_one):
        run = _Run(clock, task, ranks)
        run.forward()
        forward, received = clock.now, clock.received
        run.backward()
    return SimulatedTimes(forward, clock.now, received, clock.waited)


class _Run:
    """One step. The parts of queries and keys are equal, and so is the work of each pair of parts."""

    def __init__(self, clock: Clock, task: Task, ranks: dict[str, int]):
        self.clock, self.task = clock, task
        ring, gather, self.swap = (ranks.get(role, 1) for role in ("ring", "gather", "heads"))
        inside = gather * self.swap
        if task.heads % self.swap or task.key_heads % self.swap:
            raise ValueError(f"{self.swap} ranks do not divide {task.heads} heads and {task.key_heads} of keys")
        self.heads = (task.heads, task.key_heads, task.key_heads)  # of queries, keys and values
        self.part = task.tokens // (ring * inside)
        of_ring = SimulatedRanks(None, 0, ring, clock=clock, stride=inside)
        of_host = SimulatedRanks(None, 0, gather, clock=clock, stride=1) if gather > 1 else ALONE
        lengths = [[self.part * self.swap] * gather] * ring
        self.shards = Shards(of_ring, of_host, lengths, (2, 2))
        self.swapping = SimulatedRanks(None, 0, self.swap, clock=clock, stride=1)

    def forward(self) -> None:
        """Queries, keys and values of all the rank's heads; then the result, brought home."""
        self.q, *self.own = self._there([self._drawn(heads) for heads in self.heads])
        self._home(forward(self.shards, self.own, self._state, dtype=torch.bfloat16).output, self.task.heads)

    def backward(self) -> None:
        """The gradients of the rank's queries, keys and values."""
        (grad,) = self._there([self._drawn(self.task.heads)])
        rest = Sum()
        of_keys = backward(self.shards, self.own, self._gradients, rest)
        of_query = rest.total[0]
        assert grad.shape == of_query.shape
        for x, heads in zip((of_query, *of_keys), self.heads, strict=True):
            self._home(x.bfloat16(), heads)

    def _drawn(self, heads: int) -> torch.Tensor:
        return torch.empty(1, heads, self.part, self.task.width, dtype=torch.bfloat16)

    def _exchange(self, tensors: Sequence[torch.Tensor]) -> HeadExchange:
        lengths = [self.part] * self.swap
        moves = {k: Move(2, lengths, 1) for k in range(len(tensors))}
        return HeadExchange(self.swapping, Heads(1, dict.fromkeys(moves, 1)), moves, lengths)

    def _there(self, tensors: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        if self.swap == 1:
            return list(tensors)
        names = map(str, range(len(tensors)))
        return [*self._exchange(tensors).there(dict(zip(names, tensors, strict=True))).values()]

    def _home(self, x: torch.Tensor, heads: int) -> torch.Tensor:
        assert x.shape[1] == heads // self.swap
        return x if self.swap == 1 else self._exchange([x]).home(x, 2)

    def _kernel(self, keys: Keys, of_a_pair: float) -> None:
        heads, rows = self.q.shape[1:3]
        self.clock.now += LAUNCH + heads * rows * keys[0].shape[2] * of_a_pair

    def _state(self, keys: Keys) -> State:
        self._kernel(keys, self.task.forward)
        return State(torch.empty_like(self.q), torch.empty(*self.q.shape[:3], 1, dtype=torch.float32))

    def _gradients(self, keys: Keys) -> tuple[Gradients, Gradients]:
        self._kernel(keys, self.task.backward)
        return [torch.empty_like(self.q)], [torch.empty_like(x) for x in keys]
