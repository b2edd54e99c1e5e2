"""Actors that share the units of a multiprocessor, in time: who computes, copies or waits when.

An actor does its instructions in order. A unit is taken in turn, or shared evenly by all who use it. Invariant: each
instruction is done once, and nobody passes a wait before the signals that it names. Example: two warpgroups with a
product of 100 clocks each are done after 200.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from math import inf


@dataclass(frozen=True)
class Work:
    """Clocks of a unit, drawn on a lane under a label. signals: a counter that rises by one when it is done.

    unit: empty for time that nobody else's work makes longer. waits: whether the actor does nothing else meanwhile.
    """

    unit: str
    clocks: float
    lane: str = ""
    kind: str = ""
    label: str = ""
    step: int = 0
    signals: str = ""
    waits: bool = True


@dataclass(frozen=True)
class Await:
    """A wait until a counter has risen to a number."""

    counter: str
    number: int


@dataclass(frozen=True)
class Raise:
    """A signal: a counter rises by one."""

    counter: str


Instruction = Work | Await | Raise


@dataclass(frozen=True)
class Span:
    """When a work was done, in clocks from the beginning."""

    work: Work
    start: float
    end: float


class Deadlock(RuntimeError):
    """Every actor waits for another one."""


@dataclass
class _Running:
    """A work that has begun. actor: who waits for it, if anybody does."""

    work: Work
    actor: int | None
    start: float
    left: float


def simulated(
    actors: Sequence[Sequence[Instruction]], shared: Collection[str] = (), counters: Mapping[str, int] | None = None
) -> list[Span]:
    """What was done when, in the order of beginnings. shared: units that all users have a part of; others are taken in
    turn. counters: those that begin above 0. Raises Deadlock.
    """
    return _Simulation(actors, shared, counters or {}).run()


class _Simulation:
    def __init__(self, actors: Sequence[Sequence[Instruction]], shared: Collection[str], counters: Mapping[str, int]):
        self.actors, self.shared, self.counters = actors, shared, Counter(counters)
        self.places = [0] * len(actors)
        self.busy: set[int] = set()
        self.begun: list[_Running] = []
        self.queues: dict[str, list[tuple[Work, int | None]]] = {}
        self.now, self.done = 0.0, list[Span]()

    def run(self) -> list[Span]:
        while True:
            self._go_on()
            if not self.begun:
                break
            self._advance()
        waiting = [n for n, actor in enumerate(self.actors) if self.places[n] < len(actor)]
        if waiting:
            raise Deadlock(", ".join(str(self.actors[n][self.places[n]]) for n in waiting))
        return sorted(self.done, key=lambda span: (span.start, span.end))

    def _go_on(self) -> None:
        """Every actor does what it can without waiting; signals let others go on."""
        moved = True
        while moved:
            moved = any([self._moves(n) for n in range(len(self.actors))])

    def _moves(self, n: int) -> bool:
        actor, began = self.actors[n], self.places[n]
        while n not in self.busy and self.places[n] < len(actor):
            found = actor[self.places[n]]
            if isinstance(found, Await) and self.counters[found.counter] < found.number:
                break
            self.places[n] += 1
            if isinstance(found, Raise):
                self.counters[found.counter] += 1
            elif isinstance(found, Work):
                self._begin(found, n)
        return self.places[n] > began

    def _begin(self, work: Work, n: int) -> None:
        actor = n if work.waits else None
        if work.waits:
            self.busy.add(n)
        taken = work.unit and work.unit not in self.shared and any(one.work.unit == work.unit for one in self.begun)
        if taken:
            self.queues.setdefault(work.unit, []).append((work, actor))
        else:
            self.begun.append(_Running(work, actor, self.now, work.clocks))

    def _advance(self) -> None:
        """Time goes on to the next end of a work."""
        users = Counter(one.work.unit for one in self.begun)
        slower = lambda one: users[one.work.unit] if one.work.unit in self.shared else 1
        step = min((one.left * slower(one) for one in self.begun), default=inf)
        self.now += step
        for one in self.begun:
            one.left -= step / slower(one)
        ended = [one for one in self.begun if one.left <= 1e-9 * max(1.0, one.work.clocks)]
        self.begun = [one for one in self.begun if one not in ended]
        for one in ended:
            self._end(one)

    def _end(self, one: _Running) -> None:
        self.done.append(Span(one.work, one.start, self.now))
        if one.actor is not None:
            self.busy.discard(one.actor)
        if one.work.signals:
            self.counters[one.work.signals] += 1
        if waiting := self.queues.get(one.work.unit):
            work, actor = waiting.pop(0)
            self.begun.append(_Running(work, actor, self.now, work.clocks))
