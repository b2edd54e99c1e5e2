"""Schedules of tiles by their content: what ships, else solved once within a fixed amount of work, and checked always.

A problem is named by everything that it says but names of tensors, so plans that differ in these share a schedule.
solved.json ships the usual ones; `python bench/solve.py` makes it.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, replace
from functools import cache, lru_cache
from math import inf
from pathlib import Path
from typing import Protocol

from ...egraph.rewrite.serialization import digest
from ...egraph.search.cp_sat import SolverMissing
from ..hopper.config import HopperConfig
from .checker import complaints
from .problem import STATUSES, PipelineSchedule, Problem
from .read_settings import config_of
from .solver import size, solve
from .subtiling import subtiled

SHIPPED = Path(__file__).with_name("solved.json")
INTERVALS = 3  # from the bound upwards
WORK, ROOM = 0.05, 2400  # of a first use: deterministic units for one interval, about seconds; models' sizes together
SHIPPED_WORK, SHIPPED_ROOM = 10.0, inf  # what solved.json was made with


UNSOLVED = "unknown within the work of a first use"


class ScheduleStore(Protocol):
    """Where solved schedules outlive the process, as JSON data by key. Hashable: memoised functions take it."""

    def read(self, key: str) -> dict | None: ...

    def write(self, key: str, data: dict) -> object: ...

    def __hash__(self) -> int: ...


@dataclass(frozen=True)
class SolvedSchedule:
    """The best schedule that is known of some warpgroups on tiles of `columns`. config is None unless one was found."""

    status: str
    interval: int
    bound: int
    unit: str
    slot: int
    config: HopperConfig | None
    shipped: bool
    size: int = 0  # of all models that a solve would take which is not shipped

    def __str__(self) -> str:
        if self.config is None:
            return UNSOLVED if self.status == "unknown" and not self.shipped else self.status
        bound = f"= the bound of {self.unit}" if self.interval == self.bound else f"bound {self.bound} by {self.unit}"
        return f"{self.status}, a step in {self.interval} slots of {self.slot} clocks, {bound}"


def solved(problem: Problem, consumers: int, columns: int, store: ScheduleStore | None = None) -> SolvedSchedule:
    """Of one warpgroup's problem, for so many warpgroups; status as in PipelineSchedule, "missing" without OR-Tools."""
    return _solved(anonymous(problem).to_json(), consumers, columns, store)


@lru_cache(maxsize=1024)
def _solved(problem: str, consumers: int, columns: int, store: ScheduleStore | None) -> SolvedSchedule:
    tiles = subtiled(Problem.from_json(problem), consumers)
    found, shipped = schedule_of(tiles, consumers, store)
    config = config_of(tiles, found, columns) if found.found else None
    taken = 0 if shipped else sum(size(tiles, interval, count) for interval, count, _ in found.tried)
    unit, slot = tiles.bottleneck, tiles.slot
    return SolvedSchedule(found.status, found.interval, tiles.bound, unit, slot, config, shipped, taken)


def anonymous(problem: Problem) -> Problem:
    """The problem with loads numbered instead of named."""
    loads = [o.name for o in problem.operations if o.streaming]
    said = {name: f"load {n}" for n, name in enumerate(loads)}
    new = lambda name: said.get(name, name)
    return replace(
        problem,
        name="",
        operations=tuple(replace(o, name=new(o.name)) for o in problem.operations),
        edges=tuple(replace(e, before=new(e.before), after=new(e.after)) for e in problem.edges),
        values=tuple(
            replace(v, name=f"value {n}", producer=new(v.producer), readers=tuple((new(r), d) for r, d in v.readers))
            for n, v in enumerate(problem.values)
        ),
    )


def schedule_of(tiles: Problem, consumers: int, store: ScheduleStore | None = None) -> tuple[PipelineSchedule, bool]:
    """The schedule, and whether it ships. One that the checker refuses counts as none.

    What is solved here is written to the store.
    """
    key = key_of(tiles, consumers)
    shipped = shipped_schedules().get(key)
    if shipped is not None and not (shipped.found and complaints(tiles, shipped)):
        return shipped, True
    if (stored := _stored(key, tiles, consumers, store)) is not None:
        return stored, False
    try:
        found = solve(tiles, INTERVALS, (consumers,), WORK, ROOM)
    except SolverMissing:
        return PipelineSchedule("missing"), False
    if store is not None:
        store.write(key, asdict(found))
    return found, False


def _stored(key: str, tiles: Problem, consumers: int, store: ScheduleStore | None) -> PipelineSchedule | None:
    """What outlived another process, if it is a schedule that may run, at an interval that is looked at here."""
    body = store.read(key) if store is not None else None
    if body is None:
        return None
    looked_at = range(tiles.bound, tiles.bound + INTERVALS)
    try:
        found = PipelineSchedule.from_json(json.dumps(body))
        known = found.status in STATUSES and all(i in looked_at and n == consumers for i, n, _ in found.tried)
        runs = not found.found or (found.interval in looked_at and not complaints(tiles, found))
        return found if known and runs else None
    except (ArithmeticError, AttributeError, LookupError, TypeError, ValueError):  # no schedule at all
        return None


def key_of(tiles: Problem, consumers: int) -> str:
    return digest([json.loads(replace(tiles, name="").to_json()), consumers, INTERVALS])[:40]


@cache
def shipped_schedules() -> dict[str, PipelineSchedule]:
    raw = json.loads(SHIPPED.read_text()) if SHIPPED.exists() else {}
    return {key: PipelineSchedule.from_json(json.dumps(body)) for key, body in raw.items()}
