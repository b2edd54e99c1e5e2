"""The settings that a solved pipeline stands for.

Only schedules that checker.py accepts are read. A kernel cannot express which part of which tile runs when; what a
schedule leaves open (grid order, buffers of row tiles) keeps its default. Example: a schedule on two warps, whose
products form one run each, gives `turns=True`.
"""

from __future__ import annotations

from ..hopper.config import HopperConfig
from .checker import complaints
from .problem import PRODUCER, PipelineSchedule, Problem


class NotRunnable(ValueError):
    """There is no schedule, or it is wrong; the message says which."""


def config_of(problem: Problem, schedule: PipelineSchedule, columns: int) -> HopperConfig:
    """The settings of a schedule for loop tiles of `columns`. Raises NotRunnable."""
    if not schedule.found:
        raise NotRunnable(f"{problem.name}: {schedule.status}")
    if wrong := complaints(problem, schedule):
        raise NotRunnable(f"{problem.name}: {wrong[0]}")
    products = [o for o in problem.operations if "tensor" in o.work]
    products.sort(key=lambda o: (schedule.times[o.name] % schedule.interval, o.name))
    return HopperConfig(
        consumers=schedule.consumers,
        loop_tile=columns,
        stages=max(schedule.depths.values(), default=1),
        turns=_in_turns([schedule.warps[o.name] for o in products]),
    )


def _in_turns(warps: list[int]) -> bool:
    """Whether each warpgroup's products are one run, around the interval. `warps`: of the products, in order."""
    changes = sum(a != b for a, b in zip(warps, warps[1:] + warps[:1]))
    used = len(set(warps) - {PRODUCER})
    return used > 1 and changes == used
