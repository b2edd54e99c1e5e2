"""A loop to be scheduled and its schedule, as records that are JSON on both sides of the solver.

Times are slots of `slot` clocks. An operation's copies start every `interval` slots; a copy of iteration n starts at
times[op] + n * interval. Warp 0 issues the copies into shared memory, warps 1.. are consumer warpgroups.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, field

PRODUCER = 0
STATUSES = ("optimal", "feasible", "infeasible", "unknown")


@dataclass(frozen=True)
class Operation:
    """`work`: clocks of each unit that it keeps busy, spread evenly over `duration` slots.

    A synchronous operation occupies the threads of its warpgroup as long as it lasts; an asynchronous one is only
    issued by them. A streaming one loads `bytes` that depend on nothing computed; it belongs to the producer. One that
    is not `private` serves all sub-tiles of rows.
    """

    name: str
    work: dict[str, int]
    duration: int
    latency: int
    synchronous: bool = True
    streaming: bool = False
    private: bool = True
    bytes: int = 0


@dataclass(frozen=True)
class Edge:
    """`after` starts at least `delay` slots after `before` of `distance` iterations ago.

    Across warpgroups the value goes through shared memory: `transfer` slots of the sender's threads, `bytes` of room.
    """

    before: str
    after: str
    delay: int
    distance: int = 0
    transfer: int = 0
    bytes: int = 0


@dataclass(frozen=True)
class Value:
    """Registers a thread holds from the start of `producer` to the end of the last of `readers` (name, distance).

    A carried one (a state) is held always.
    """

    name: str
    producer: str
    readers: tuple[tuple[str, int], ...]
    registers: int
    carried: bool = False


@dataclass(frozen=True)
class Problem:
    """`registers`: (consumer warpgroups, registers a thread of theirs may hold values in), fewest first.

    `resident`: bytes of shared memory held through the loop. `stages`: how many iterations a schedule may span.
    """

    name: str
    slot: int
    operations: tuple[Operation, ...]
    edges: tuple[Edge, ...]
    values: tuple[Value, ...]
    registers: tuple[tuple[int, int], ...]
    shared_bytes: int
    resident: int = 0
    load_latency: int = 0
    stages: int = 3

    @property
    def bound(self) -> int:
        """No schedule has a shorter interval: each unit's work fits in it, and so does each operation."""
        return max(self.resource_bound, max(o.duration for o in self.operations))

    @property
    def resource_bound(self) -> int:
        return max(-(-clocks // self.slot) for clocks in self.work().values())

    def work(self) -> dict[str, int]:
        """Clocks of every unit for one iteration."""
        total: dict[str, int] = {}
        for operation in self.operations:
            for unit, clocks in operation.work.items():
                total[unit] = total.get(unit, 0) + clocks
        return total

    @property
    def bottleneck(self) -> str:
        work = self.work()
        return max(work, key=work.__getitem__)

    def to_json(self) -> str:
        return json.dumps(asdict(self), indent=1)

    @staticmethod
    def from_json(text: str) -> Problem:
        raw = json.loads(text)
        values = (Value(**{**v, "readers": tuple((n, d) for n, d in v["readers"])}) for v in raw["values"])
        return Problem(
            **{
                **raw,
                "operations": tuple(Operation(**o) for o in raw["operations"]),
                "edges": tuple(Edge(**e) for e in raw["edges"]),
                "values": tuple(values),
                "registers": tuple((n, r) for n, r in raw["registers"]),
            }
        )


@dataclass(frozen=True)
class PipelineSchedule:
    """What the solver claims. status: "optimal", "feasible" (not proved best), "infeasible" (proved), "unknown".

    depths: tiles in each load's ring. crossing: bytes from warpgroup to warpgroup in one iteration. waits: pairs of an
    operation and another warp that waits for it. length: the last end. tried: (interval, consumers, verdict) in order.
    """

    status: str
    interval: int = 0
    consumers: int = 0
    times: dict[str, int] = field(default_factory=dict)
    warps: dict[str, int] = field(default_factory=dict)
    depths: dict[str, int] = field(default_factory=dict)
    crossing: int = 0
    waits: int = 0
    length: int = 0
    tried: tuple[tuple[int, int, str], ...] = ()

    @property
    def found(self) -> bool:
        return self.status in ("optimal", "feasible")

    def to_json(self) -> str:
        return json.dumps(asdict(self), indent=1)

    @staticmethod
    def from_json(text: str) -> PipelineSchedule:
        raw = json.loads(text)
        return PipelineSchedule(**{**raw, "tried": tuple((i, c, v) for i, c, v in raw["tried"])})
