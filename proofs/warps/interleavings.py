"""Every order in which the groups of warps of a program can run, tried on what they did in one order.

What a group does, it does in any order: which tiles it reads and where it waits depends on no value in shared memory.
So events of one run are enough to go through all interleavings of arrivals, waits and ends of copies. A kernel is right
if in each of them all groups come to their end, no access is a race, and each read sees the write that it saw in the
run whose values were compared. Example: a wait that is left out may do no harm unless one consumer is far ahead of the
other; `Orders(100_000).try_of(program)` finds that order.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np

from ..kernels.memory import KernelFault
from .barriers import BOTH, THREADS
from .events import Access, Arrive, Copied, Ended, Event, Fence, Meet, Wait
from .warp_schedule import RunningProgram

AWAKE = -1
NO_WRITE = -1
Knowledge = tuple[int, int]  # accesses that are over, as bits by number, and those that are so for copies and products
Element = tuple[int, int]  # the last write, and the reads after it as bits


@dataclass(frozen=True)
class BarrierState:
    """A barrier in shared memory, as `barriers.Barrier` has it."""

    count: int
    pending: int
    bytes: int = 0
    phases: int = 0
    arrived: Knowledge = (0, 0)
    released: Knowledge = (0, 0)

    def settled(self, known: Knowledge, count: int = 0, bytes_: int = 0) -> BarrierState:
        """After arrivals or the end of a copy, of who knows so much."""
        arrived, pending, left = _both(self.arrived, known), self.pending - count, self.bytes + bytes_
        if pending or left:
            return replace(self, pending=pending, bytes=left, arrived=arrived)
        released = _both(self.released, arrived)
        return BarrierState(self.count, self.count, 0, self.phases + 1, (0, 0), released)


@dataclass(frozen=True)
class MeetingState:
    """A numbered barrier: the threads that arrived."""

    threads: int = 0
    arrived: Knowledge = (0, 0)


@dataclass(frozen=True)
class Groups:
    """What all groups of warps have done. at: the next event of each. asleep: at which numbered barrier. flying: copies
    under way. elements: by number, for places that all accesses treat alike."""

    at: tuple[int, ...]
    known: tuple[Knowledge, ...]
    asleep: tuple[int, ...]
    barriers: tuple[BarrierState, ...]
    meetings: tuple[MeetingState, ...]
    elements: tuple[Element, ...]
    flying: frozenset[Copied] = frozenset()


@dataclass
class Orders:
    """How many states of programs may be visited, and how many were. all: whether no program has others."""

    most: int
    states: int = 0
    all: bool = True

    def try_of(self, program: RunningProgram) -> None:
        """Visits the states that a program can be in, the last ones first. Raises KernelFault for a fault there."""
        orders = Interleavings(program)
        seen: set[int] = set()
        waiting = [orders.start()]
        while waiting:
            state = waiting.pop()
            if (key := hash(state)) in seen:
                continue
            if self.states == self.most:
                self.all = False
                return
            seen.add(key)
            self.states += 1
            waiting += orders.after(state)


class Interleavings:
    """The states of a program and what may come after each."""

    def __init__(self, program: RunningProgram):
        _, *rest = program.partitions
        self.what, self.names = program.memory.what, [each.warps.name for each in rest]
        self.starts = [each.warps.start for each in rest]
        self.before, *self.events = [_that_count(program, each.warps.events) for each in program.partitions]
        everything = [e for events in (self.before, *self.events) for e in events]
        self.barriers = list(dict.fromkeys(e.barrier for e in everything if isinstance(e, Arrive | Copied | Wait)))
        self.number_of = {id(barrier): n for n, barrier in enumerate(self.barriers)}
        self.meetings = sorted({e.number for e in everything if isinstance(e, Meet)})
        accesses = [e for e in everything if isinstance(e, Access)]
        self.elements, self.count = _elements(accesses)
        self.saw: dict[tuple[int, int], int] = {}
        self._note_reads(accesses)

    def _note_reads(self, accesses: Sequence[Access]) -> None:
        """Which write each read saw: accesses have numbers in the order of the run."""
        last = [NO_WRITE] * self.count
        for access in sorted(accesses, key=lambda each: each.number):
            for element in self.elements[access.number]:
                if access.writes:
                    last[element] = access.number
                else:
                    self.saw[access.number, element] = last[element]

    def start(self) -> Groups:
        """When the groups of warps begin."""
        barriers = tuple(BarrierState(barrier.count, barrier.count) for barrier in self.barriers)
        groups = len(self.events)
        elements = [(NO_WRITE, 0)] * self.count
        for access in self.before:
            if isinstance(access, Access):
                self._access(elements, access, -1)
        meetings = (MeetingState(),) * len(self.meetings)
        state = Groups((0,) * groups, tuple(self.starts), (AWAKE,) * groups, barriers, meetings, tuple(elements))
        for group in range(groups):
            state = self._to_next_point(state, group)
        return state

    def after(self, state: Groups) -> Iterator[Groups]:
        """The states that one step leads to. Raises KernelFault where none does and a group is not through."""
        found = False
        for group, (events, at) in enumerate(zip(self.events, state.at)):
            if at < len(events) and state.asleep[group] == AWAKE and self._may(state, events[at]):
                found = True
                yield self._to_next_point(self._step(state, group, events[at]), group)
        for copy in state.flying:
            found = True
            barrier = state.barriers[self.number_of[id(copy.barrier)]]
            if copy.bytes > barrier.bytes:
                raise KernelFault(f"more bytes come to {copy.barrier.name} than are expected, in some order")
            settled = barrier.settled((1 << copy.number,) * 2, 0, -copy.bytes)
            yield self._with_barrier(replace(state, flying=state.flying - {copy}), copy.barrier, settled)
        if not found:
            for name, events, at, asleep in zip(self.names, self.events, state.at, state.asleep):
                if at < len(events) or asleep != AWAKE:
                    raise KernelFault(f"{name} waits for ever in some order")

    def _may(self, state: Groups, event: Event) -> bool:
        if not isinstance(event, Wait):
            return True
        return (state.barriers[self.number_of[id(event.barrier)]].phases ^ event.parity) & 1 == 1

    def _step(self, state: Groups, group: int, event: Event) -> Groups:
        """After an event at which the order matters."""
        known, at = state.known[group], state.at[group] + 1
        state = replace(state, at=_put(state.at, group, at))
        match event:
            case Wait(barrier, _):
                learned = _both(known, state.barriers[self.number_of[id(barrier)]].released)
                return replace(state, known=_put(state.known, group, learned))
            case Arrive(barrier, count, bytes_):
                before = state.barriers[self.number_of[id(barrier)]]
                if count > before.pending:
                    raise KernelFault(f"{barrier.name} has more arrivals than its {before.count}, in some order")
                return self._with_barrier(state, barrier, before.settled(known, count, bytes_))
            case Meet():
                return self._met(state, group, event)
        raise KernelFault(f"no meaning for {event}")

    def _met(self, state: Groups, group: int, event: Meet) -> Groups:
        """After an arrival at a numbered barrier: the second one wakes who sleeps there."""
        place = self.meetings.index(event.number)
        before = state.meetings[place]
        arrived, threads = _both(before.arrived, state.known[group]), before.threads + THREADS
        asleep = _put(state.asleep, group, event.number) if event.waits else state.asleep
        if threads < BOTH:
            return replace(state, asleep=asleep, meetings=_put(state.meetings, place, MeetingState(threads, arrived)))
        woken = [n for n, where in enumerate(asleep) if where == event.number]
        known, asleep = list(state.known), tuple(AWAKE if n in woken else where for n, where in enumerate(asleep))
        for n in woken:
            known[n] = _both(known[n], arrived)
        state = replace(state, asleep=asleep, known=tuple(known), meetings=_put(state.meetings, place, MeetingState()))
        for n in woken:
            state = self._to_next_point(state, n) if n != group else state
        return state

    def _with_barrier(self, state: Groups, barrier: object, settled: BarrierState) -> Groups:
        return replace(state, barriers=_put(state.barriers, self.number_of[id(barrier)], settled))

    def _to_next_point(self, state: Groups, group: int) -> Groups:
        """Runs a group up to where the order matters: accesses are compared by what their groups know, in any order."""
        if state.asleep[group] != AWAKE:
            return state
        events, at, (known, fenced) = self.events[group], state.at[group], state.known[group]
        elements, flying = list(state.elements), state.flying
        while at < len(events) and isinstance(event := events[at], Access | Ended | Fence | Copied):
            at += 1
            match event:
                case Access():
                    self._access(elements, event, fenced if event.asynchronous else known)
                    known |= 0 if event.asynchronous else 1 << event.number
                case Ended(number):
                    known, fenced = known | 1 << number, fenced | 1 << number
                case Fence():
                    fenced |= known
                case Copied():
                    flying = flying | {event}
        known_of_all = _put(state.known, group, (known, fenced))
        return replace(
            state, at=_put(state.at, group, at), known=known_of_all, elements=tuple(elements), flying=flying
        )

    def _access(self, elements: list[Element], access: Access, known: int) -> None:
        for element in self.elements[access.number]:
            last, reads = elements[element]
            needed = (0 if last == NO_WRITE else 1 << last) | (reads if access.writes else 0)
            if needed & ~known:
                other = self.what[(needed & ~known).bit_length() - 1]
                raise KernelFault(f"{self.what[access.number]} while {other} may be under way, in some order")
            if access.writes:
                elements[element] = access.number, 0
            elif self.saw[access.number, element] != last:
                raise KernelFault(f"{self.what[access.number]} sees another write in some order")
            else:
                elements[element] = last, reads | 1 << access.number


def _that_count(program: RunningProgram, events: Sequence[Event]) -> list[Event]:
    """Events without what products read that are issued in vain."""
    products = program.memory.products
    vain = {number for number, product in products.items() if not product.used}
    return [e for e in events if not (isinstance(e, Access) and e.number in vain)]


def _put(values: tuple, place: int, value) -> tuple:
    return (*values[:place], value, *values[place + 1 :])


def _both(one: Knowledge, other: Knowledge) -> Knowledge:
    return one[0] | other[0], one[1] | other[1]


def _elements(accesses: Iterable[Access]) -> tuple[dict[int, tuple[int, ...]], int]:
    """The elements of each access by number, and how many there are: places that each access has all or none of."""
    found: dict[int, tuple[int, ...]] = {}
    first = 0
    by_buffer: dict[int, list[Access]] = {}
    for access in accesses:
        by_buffer.setdefault(id(access.buffer), []).append(access)
    for group in by_buffer.values():
        patterns: dict[bytes, np.ndarray] = {}
        keys: dict[tuple, bytes] = {}
        pattern_of = {}
        for access in group:
            places = access.places
            where = places.__array_interface__
            view = (where["data"][0], where["shape"], where["strides"])
            if view not in keys:
                mask = np.zeros(len(access.buffer.written), bool)
                mask[places] = True
                keys[view] = mask.tobytes()
                patterns[keys[view]] = mask
            pattern_of[access.number] = keys[view]
        columns, label = np.unique(np.stack(list(patterns.values())), axis=1, return_inverse=True)
        label = label.reshape(-1)
        own = {key: tuple(int(n) + first for n in np.unique(label[mask])) for key, mask in patterns.items()}
        found |= {number: own[key] for number, key in pattern_of.items()}
        first += columns.shape[1]
    return found, first
