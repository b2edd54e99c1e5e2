"""What a schedule says to a skeleton: a solved pipeline read as the few settings that an emitter of kernels has.

Only schedules that checker.py accepts are read. What a skeleton cannot express (which part of which tile when) is lost;
what the schedule leaves open (grid order, buffers of row tiles) stays with the skeleton's defaults or the tuner.
"""

from __future__ import annotations

from dataclasses import dataclass

from ..plan.device import H200, Machine
from .checker import complaints
from .problem import PRODUCER, Problem, Schedule


class NotRunnable(ValueError):
    """There is no schedule, or it is wrong; the message says which."""


@dataclass(frozen=True)
class Knobs:
    """consumers: warpgroups; columns: of a loop tile; depth: tiles in every ring; prefetch: the next scores are issued
    before the weights of the present ones are done; turns: each warpgroup issues its products in one run, then another
    does; order: the tensor operations of one interval; registers: of a consumer's thread; rescale_first: the totals are
    rescaled before the weights are made.
    """

    consumers: int
    columns: int
    depth: int
    prefetch: bool
    turns: bool
    order: tuple[str, ...]
    registers: int
    rescale_first: bool

    def skeleton(self) -> dict[str, object]:
        """The fields that the Gluon skeleton's Schedule record has."""
        return {"consumers": self.consumers, "tile": self.columns, "depth": self.depth, "turns": self.turns}


def knobs(problem: Problem, schedule: Schedule, columns: int, machine: Machine = H200) -> Knobs:
    """The settings of a checked schedule for loop tiles of `columns`. Raises NotRunnable."""
    if not schedule.found:
        raise NotRunnable(f"{problem.name}: {schedule.status}")
    if wrong := complaints(problem, schedule):
        raise NotRunnable(f"{problem.name}: {wrong[0]}")
    tensor = [o for o in problem.operations if "tensor" in o.work]
    order = sorted(tensor, key=lambda o: (schedule.times[o.name] % schedule.interval, o.name))
    return Knobs(
        consumers=schedule.consumers,
        columns=columns,
        depth=max(schedule.depths.values(), default=1),
        prefetch=_prefetches(problem, schedule),
        turns=_in_turns([schedule.warps[o.name] for o in order]),
        order=tuple(o.name for o in order),
        registers=dict(machine.registers)[schedule.consumers],
        rescale_first=_rescales_first(problem, schedule),
    )


def _prefetches(problem: Problem, schedule: Schedule) -> bool:
    """Some value in registers is made again before the last reader of the present copy has ended."""
    duration = {o.name: o.duration for o in problem.operations}
    for value in problem.values:
        ends = [schedule.times[n] + d * schedule.interval + duration[n] for n, d in value.readers]
        if not value.carried and max(ends) - schedule.times[value.producer] > schedule.interval:
            return True
    return False


def _in_turns(warps: list[int]) -> bool:
    """Around the interval, every warpgroup's operations are one run."""
    changes = sum(a != b for a, b in zip(warps, warps[1:] + warps[:1]))
    used = len(set(warps) - {PRODUCER})
    return used > 1 and changes == used


def _rescales_first(problem: Problem, schedule: Schedule) -> bool:
    """Every rescaled total is rescaled before the weights of its sub-tile begin."""
    start = schedule.times
    pairs = [
        (rescale.before, weight.after)
        for first in problem.edges
        for rescale in problem.edges
        for weight in problem.edges
        if first.after == rescale.before and first.before == weight.before and rescale.before != weight.after
        if rescale.distance == weight.distance == first.distance == 0 and _carries(problem, rescale.before)
        if weight.before != weight.after and not _carries(problem, weight.after)
    ]
    return bool(pairs) and all(start[a] < start[b] for a, b in pairs)


def _carries(problem: Problem, name: str) -> bool:
    return any(v.carried and v.producer == name for v in problem.values)
