"""How long a schedule of ranks takes on GPUs that are not there: its own code runs on tensors without data, by a clock.

A kernel takes what one GPU was measured to take for as many pairs; an exchange takes its bytes on the link that they
go by, beside the kernels; what else the schedule computes takes the bytes it reads and writes. Invariant: all ranks do
the same at the same time, as with parts of equal work, so one of them stands for all. Example: with two GPUs
`simulated("ring", (2,), task, machine).step` is the seconds of a step of training.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any
from unittest.mock import patch

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from ..distributed.exchange import ALONE, Exchange, Message, Ranks
from ..distributed.head_exchange import HeadExchange, Move
from ..distributed.laws.head_law import Heads
from ..distributed.pieces import Pieces
from ..distributed.schedules import FUSED_ON, SCHEDULES, Gradients, Merge, Shards
from ..distributed.shared_attention import Run, Sides
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


def simulated(
    schedule: str, sizes: Sequence[int], task: Task, machine: Machine, pieces: int = 1
) -> SimulatedTimes:
    """What a schedule takes. sizes: the number of ranks along each dim of the mesh, hosts first. pieces: of heads.

    Raises ValueError for heads that do not divide.
    """
    ranks = dict(zip(SCHEDULES[schedule], sizes, strict=True))
    clock = Clock(machine)
    operations = _OperationsTakeTime(clock)
    with operations, torch.device("meta"), patch.dict(FUSED_ON, meta=operations.as_one):
        run, tensors = _run(clock, task, ranks, pieces)
        whole = run.forward(tensors)
        forward, received = clock.now, clock.received
        run.backward(tensors, [True] * len(tensors), whole, torch.empty_like(whole.output))
    return SimulatedTimes(forward, clock.now, received, clock.waited)


def _run(clock: Clock, task: Task, ranks: dict[str, int], count: int) -> tuple[Run, list[torch.Tensor]]:
    """A call and its queries, keys and values. Parts of the sequence are equal, and so is the work of their pairs."""
    ring, gather, swap = (ranks.get(role, 1) for role in ("ring", "gather", "heads"))
    inside, parts = gather * swap, count * swap
    if task.heads % parts or task.key_heads % parts:
        raise ValueError(f"{task.heads} heads and {task.key_heads} of keys are not cut into {parts} equal parts")
    length = task.tokens // (ring * inside)
    of_ring = SimulatedRanks(None, 0, ring, clock=clock, stride=inside)
    of_host, swapping = (
        SimulatedRanks(None, 0, n, clock=clock, stride=1) if n > 1 else ALONE for n in (gather, swap)
    )
    shards = Shards(of_ring, of_host, [[length * swap] * gather] * ring, (2, 2))
    heads, move = Heads(1, dict.fromkeys(range(3), 1)), Move(2, [length] * swap, 1)
    exchange = HeadExchange(swapping, heads, dict.fromkeys(range(3), move), move) if swap > 1 else None
    attention: Any = _Attention(clock, task)
    run = Run(attention, attention, shards, Pieces(heads, count, exchange) if parts > 1 else Pieces())
    drawn = [torch.empty(1, n, length, task.width, dtype=torch.bfloat16) for n in (task.heads, *[task.key_heads] * 2)]
    return run, drawn


class _Attention:
    """Stands for an attention and for a part of it: its kernels let time pass."""

    sides, hides, dtype = Sides({0: 2}, {1: 2, 2: 2}), False, torch.bfloat16

    def __init__(self, clock: Clock, task: Task):
        self.clock, self.task = clock, task

    def part(self, tensors: Sequence[torch.Tensor]) -> _Attention:
        return self

    def beside_keys(self, tensors: Sequence[torch.Tensor]) -> tuple[Callable, None]:
        return lambda *given: given[-1], None

    def state(self, tensors: Sequence[torch.Tensor]) -> State:
        q, k, _ = tensors
        self._kernel(q, k, self.task.forward)
        return State(torch.empty_like(q), torch.empty(*q.shape[:3], 1, dtype=torch.float32))

    def gradients(self, tensors: Sequence[torch.Tensor], needed: object, whole: State, grad: torch.Tensor) -> Gradients:
        q, k, _ = tensors
        assert grad.shape == q.shape == whole.output.shape
        self._kernel(q, k, self.task.backward)
        return [torch.empty_like(x) for x in tensors]

    def _kernel(self, q: torch.Tensor, k: torch.Tensor, of_a_pair: float) -> None:
        self.clock.now += LAUNCH + q.shape[1] * q.shape[2] * k.shape[2] * of_a_pair
