"""Judges a schedule without the solver: every statement of the problem is checked again, slot by slot.

Invariant: no complaint means that the schedule can run. It shares no code with solver.py. A proof of infeasibility is
not checked, only that no interval lies below the bound. Example: a ring that is too short is a complaint.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator

from .problem import PRODUCER, Edge, PipelineSchedule, Problem


def complaints(problem: Problem, schedule: PipelineSchedule) -> list[str]:
    """What is wrong with the schedule; empty if nothing is."""
    names = {o.name for o in problem.operations}
    if set(schedule.times) != names or set(schedule.warps) != names:
        return ["the operations scheduled are not those of the problem"]
    if schedule.interval < problem.bound:
        return [f"interval {schedule.interval} is below the bound {problem.bound}"]
    if min(schedule.times.values()) < 0:
        return ["an operation starts before time 0"]
    if max(schedule.times.values()) >= problem.stages * schedule.interval:
        return [f"the schedule spans more than {problem.stages} iterations"]
    checks = (_warps, _order, _units, _threads, _registers, _shared, _claims)
    return [text for check in checks for text in check(problem, schedule)]


def _warps(problem: Problem, schedule: PipelineSchedule) -> Iterator[str]:
    if schedule.consumers not in dict(problem.registers):
        yield f"{schedule.consumers} consumer warpgroups are not among the problem's"
    for o in problem.operations:
        warp = schedule.warps[o.name]
        if (warp == PRODUCER) != o.streaming or not 0 <= warp <= schedule.consumers:
            yield f"{o.name} is on warp {warp}"


def _crosses(problem: Problem, schedule: PipelineSchedule, edge: Edge) -> bool:
    """Whether a value goes from one consumer warpgroup to another."""
    loaded = schedule.warps[edge.before] == PRODUCER
    return not loaded and schedule.warps[edge.before] != schedule.warps[edge.after]


def _order(problem: Problem, schedule: PipelineSchedule) -> Iterator[str]:
    for e in problem.edges:
        gap = schedule.times[e.after] + e.distance * schedule.interval - schedule.times[e.before]
        needed = e.delay + (e.transfer if _crosses(problem, schedule, e) else 0)
        if gap < needed:
            yield f"{e.after} starts {gap} slots after {e.before}, which takes {needed}"


def _slots(start: int, count: int, interval: int) -> list[int]:
    return [(start + k) % interval for k in range(count)]


def _units(problem: Problem, schedule: PipelineSchedule) -> Iterator[str]:
    used: dict[tuple[str, int], int] = defaultdict(int)
    for o in problem.operations:
        for slot in _slots(schedule.times[o.name], o.duration, schedule.interval):
            for unit, clocks in o.work.items():
                used[unit, slot] += -(-clocks // o.duration)
    for (unit, slot), clocks in used.items():
        if clocks > problem.slot:
            yield f"unit {unit} is asked for {clocks} clocks in slot {slot}"


SlotRuns = dict[int, list[tuple[int, int]]]  # by warpgroup: (first slot, number of slots)


def _threads(problem: Problem, schedule: PipelineSchedule) -> Iterator[str]:
    """Synchronous work and sending occupy slots of a warpgroup; an issue needs a slot boundary that nothing covers."""
    taken, sent = _synchronous_runs(problem, schedule), _sending_runs(problem, schedule)
    for warp in range(1, schedule.consumers + 1):
        work = [s for run in taken[warp] for s in _slots(*run, schedule.interval)]
        writes = {s for run in sent[warp] for s in _slots(*run, schedule.interval)}
        if len(work) != len(set(work)) or writes & set(work):
            yield f"warpgroup {warp} does two things in one slot"
        inner = {s for t, n in (*taken[warp], *sent[warp]) for s in _slots(t + 1, n - 1, schedule.interval)}
        for name in _issued(problem, schedule, warp):
            if schedule.times[name] % schedule.interval in inner:
                yield f"{name} is issued inside something else of warpgroup {warp}"


def _synchronous_runs(problem: Problem, schedule: PipelineSchedule) -> SlotRuns:
    """The slots in which operations occupy the threads of a warpgroup."""
    found: SlotRuns = defaultdict(list)
    for o in problem.operations:
        if o.synchronous and not o.streaming:
            found[schedule.warps[o.name]].append((schedule.times[o.name], o.duration))
    return found


def _sending_runs(problem: Problem, schedule: PipelineSchedule) -> SlotRuns:
    """The slots in which the threads of a warpgroup write what another one reads."""
    found: SlotRuns = defaultdict(list)
    latency = {o.name: o.latency for o in problem.operations}
    for e in problem.edges:
        if _crosses(problem, schedule, e) and e.transfer:
            found[schedule.warps[e.before]].append((schedule.times[e.before] + latency[e.before], e.transfer))
    return found


def _issued(problem: Problem, schedule: PipelineSchedule, warp: int) -> list[str]:
    """The asynchronous operations that a warpgroup issues."""
    return [o.name for o in problem.operations if schedule.warps[o.name] == warp and not o.synchronous]


def _registers(problem: Problem, schedule: PipelineSchedule) -> Iterator[str]:
    duration = {o.name: o.duration for o in problem.operations}
    held: dict[tuple[int, int], int] = defaultdict(int)
    for value in problem.values:
        start = schedule.times[value.producer]
        ends = [schedule.times[n] + d * schedule.interval + duration[n] for n, d in value.readers]
        count = schedule.interval if value.carried else max(0, max(ends) - start)
        warps = {schedule.warps[value.producer], *(schedule.warps[n] for n, _ in value.readers)}
        for warp in warps:
            for slot in _slots(start, count, schedule.interval):
                held[warp, slot] += value.registers
    budget = dict(problem.registers).get(schedule.consumers, 0)
    for (warp, slot), registers in held.items():
        if registers > budget:
            yield f"warpgroup {warp} holds {registers} registers in slot {slot}, more than {budget}"


def _shared(problem: Problem, schedule: PipelineSchedule) -> Iterator[str]:
    duration = {o.name: o.duration for o in problem.operations}
    total = problem.resident + sum(e.bytes for e in problem.edges if _crosses(problem, schedule, e))
    for o in (o for o in problem.operations if o.streaming):
        depth = schedule.depths.get(o.name, 0)
        total += o.bytes * depth
        for e in (e for e in problem.edges if e.before == o.name):
            end = schedule.times[e.after] + e.distance * schedule.interval + duration[e.after]
            if depth * schedule.interval < end - schedule.times[o.name] + problem.load_latency:
                yield f"a ring of {depth} tiles of {o.name} is overwritten before {e.after} has read it"
    if total > problem.shared_bytes:
        yield f"{total} bytes of shared memory, more than {problem.shared_bytes}"


def _claims(problem: Problem, schedule: PipelineSchedule) -> Iterator[str]:
    crossing = [e for e in problem.edges if _crosses(problem, schedule, e)]
    length = max(schedule.times[o.name] + o.duration for o in problem.operations)
    found = {"crossing": sum(e.bytes for e in crossing), "waits": len(crossing), "length": length}
    for name, value in found.items():
        if getattr(schedule, name) != value:
            yield f"{name} is {value}, not {getattr(schedule, name)}"
