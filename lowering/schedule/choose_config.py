"""Which schedule a Hopper kernel gets, and where each of its settings comes from.

Settings that were measured for this class of kernels come first. For others every tile that can run is ranked by its
predicted time, and the solver says of the best whether it has a schedule, in how many clocks a step, and its settings.
Then the choice is cut down to what sizes need and shared memory holds.
"""

from __future__ import annotations

import heapq
from dataclasses import dataclass, fields, replace
from functools import lru_cache
from math import inf, prod

from ...egraph.terms.sizes import resolve
from ..hopper.approximations import branches
from ..hopper.config import ANY, EIGHTH, Row, Schedule, duration
from ..hopper.kernel_form import Binding, Operand, accumulated, crowded, shared_bytes, spares, width
from ..plan.device import BARRIERS, H200, MOST_CONSUMERS, MULTIPROCESSORS, ROWS, WARPGROUP
from ..plan.records import NotPlannable
from . import schedule_store as solving
from .kernel_time import Configuration, demand, layout, loop_seconds, problem_of
from .schedule_store import ScheduleStore, Solved, solved

CONSUMERS, COLUMNS, DEEPEST = (1, 2, 3), (64, 128), 4
SHARED = "cut down to shared memory"
LENGTH = "cut down to the lengths"
ISSUED = 100  # instructions of a step for products, barriers and addresses
CODE, BRANCHED = 2048, 16  # instructions in the cache; of a loop by a thread's scores, with two forms of a function
GAIN, TIE = 1.08, 1.01  # what is worth a change; what is as good
CUTS = ({}, {"send": 64}, {"send": 0}, {"queries": 1}, {"depth": 2}, {"tile": 64}, {"depth": 1})  # in this order


@dataclass(frozen=True)
class Choice:
    """`origins` says of every setting of the schedule where it is from; `solved` is the solver's, if it was asked."""

    schedule: Schedule
    origins: dict[str, str]
    solved: Solved | None = None

    def __str__(self) -> str:
        groups: dict[str, list[str]] = {}
        for name, origin in self.origins.items():
            groups.setdefault(origin, []).append(f"{name} {_said(getattr(self.schedule, name))}")
        return "; ".join(f"{', '.join(names)}: {origin}" for origin, names in groups.items())


def _said(value) -> str:
    return {True: "on", False: "off"}.get(value, str(value)) if isinstance(value, bool) else str(value)


def choose(
    binding: Binding,
    sizes: dict,
    overlays: tuple[Operand, ...],
    row: Row | None,
    places: int = MULTIPROCESSORS,
    store: ScheduleStore | None = None,
) -> Choice | None:
    """The schedule of a kernel whose default row this is, on `places` multiprocessors; None if nothing fits.

    store: where solved schedules outlive the process.
    """
    if row is not None and holds(row, binding):
        return cut(spare(from_row(row, "measured on an H200"), binding), binding, sizes, overlays, places)
    found = best(binding, tuple(sorted(sizes.items())), overlays, store)
    if found is None and row is not None:
        found = from_row(row, "default, of kernels like this one: no schedule was found for it")
    return found and cut(spare(found, binding), binding, sizes, overlays, places)


def holds(row: Row, binding: Binding) -> bool:
    """Whether kernels of this class are what the row was measured on, not only what it is used for.

    A row for short items was, whatever decides which tiles run: a prediction does not know how many a map leaves.
    """
    same = (width(binding), accumulated(binding)) == (row.width, row.columns)
    return same and (row.crowded is not None or row.run < ANY or not crowded(binding))


def spare(choice: Choice, binding: Binding) -> Choice:
    """The choice with special functions spared where that is worth it, in code that the instruction cache holds."""
    choice = changed(choice, "predicted from the units' work", spared=sparing(binding, choice.schedule).spared)
    schedule, kernel = choice.schedule, binding.kernel
    scores = schedule.consumers * schedule.tile * ROWS // WARPGROUP
    if not schedule.spared or scores * BRANCHED <= CODE or not branches(kernel, binding.loop):
        return choice
    narrow = COLUMNS[0]
    consumers = MOST_CONSUMERS if width(binding) <= narrow else schedule.consumers
    return changed(choice, "for the instruction cache", consumers=consumers, tile=narrow)


def sparing(binding: Binding | str, schedule: Schedule) -> Schedule:
    """The schedule with as many special functions spared as the units' work says, if that is worth it.

    On an H200 a step takes the time of its products and that of the busier one of special functions and of issuing
    instructions: measured kernels with none, four, six or eight of eight spared are within a tenth of that.
    """
    if isinstance(binding, str) or not spares(binding):
        return schedule
    c = Configuration.of(schedule)
    times = [_busy(problem_of(binding.kernel, binding.loop, replace(c, spared=n)).work()) for n in range(EIGHTH + 1)]
    most = max(n for n, time in enumerate(times) if time <= TIE * min(times))
    return replace(schedule, spared=most if min(times) * GAIN < times[0] else 0)


def _busy(work: dict[str, float]) -> float:
    """Clocks of a step of one warpgroup."""
    special = work.get("special", 0)
    issued = work.get("fma", 0) + special * H200.special / H200.lanes + ISSUED
    return work.get("tensor", 0) + max(special, issued)


def from_row(row: Row, origin: str) -> Choice:
    return Choice(row.schedule, {f.name: origin for f in fields(Schedule)})


@lru_cache(maxsize=256)
def best(
    binding: Binding, sizes: tuple, overlays: tuple[Operand, ...] = (), store: ScheduleStore | None = None
) -> Choice | None:
    """The schedule predicted to be the fastest of those for which the solver finds one, or does not end.

    Where it proves all to have none near their bounds, or has had its work, the first of them, which runs, only not as
    well: None only where nothing can run.
    """
    time = lambda c, interval=0: _seconds(binding, c, dict(sizes), interval)
    # Sending pays more than a third tile.
    room = lambda c: (c.send or c.stages == 2) and fits(binding, overlays, layout(c))
    waiting = [(time(c), n, c, None) for n, c in enumerate(candidates()) if room(c)]
    waiting = [w for w in waiting if w[0] < inf]
    tried, refused, room = len(waiting), None, solving.ROOM
    heapq.heapify(waiting)
    while waiting:
        _, n, c, found = heapq.heappop(waiting)
        if found is not None:
            return chosen(c, found, tried)
        found = solved(problem_of(binding.kernel, binding.loop, c), c.warpgroups, c.columns, store)
        room -= found.size
        if found.knobs is None and found.status != "infeasible":
            return chosen(c, found, tried)
        refused = refused or (c, found)
        if room < 0 and found.knobs is None:
            break
        if found.knobs is not None and found.knobs.depth <= c.stages:
            c = replace(c, turns=found.knobs.turns)
            heapq.heappush(waiting, (time(c, found.interval * found.slot), n, c, found))
    return refused and chosen(refused[0], replace(refused[1], knobs=None), tried)


def candidates() -> list[Configuration]:
    """Every tile with every ring; turns are the solver's to say."""
    return [
        Configuration("gluon", ROWS * groups, columns, 4 * groups, depth, queries, residents=residents, send=send)
        for columns in reversed(COLUMNS)
        for groups in CONSUMERS
        for depth in range(2, DEEPEST + 1)
        for queries in (2, 1)
        for send in (256, 64, 0)
        for residents in ((1, 2, 3) if groups == 1 else (1,))
    ]


def _seconds(binding: Binding, c: Configuration, sizes: dict, interval: int) -> float:
    """Predicted, with steps no shorter than the solved interval; infinite for what cannot run or would spill."""
    try:
        needed = demand(binding.kernel, binding.loop, c, sizes)
        return inf if needed.lacking else loop_seconds(needed, c, interval=interval)
    except NotPlannable:
        return inf


def chosen(c: Configuration, found: Solved, tried: int) -> Choice:
    predicted = f"predicted to be the fastest of {tried}"
    origins = dict.fromkeys((f.name for f in fields(Schedule)), "default")
    origins |= dict.fromkeys(("consumers", "tile", "depth", "queries", "residents", "send"), predicted)
    if found.knobs is None:
        origins |= dict.fromkeys(("consumers", "tile"), f"{predicted}, the solver says {found}")
        return Choice(layout(c), origins, found)
    origins |= dict.fromkeys(("consumers", "tile", "turns"), f"solved ({found})")
    origins["depth"] = f"{predicted}, {found.knobs.depth} by the solved schedule"
    return Choice(layout(c), origins, found)


def cut(
    choice: Choice, binding: Binding, sizes: dict, overlays: tuple[Operand, ...], places: int = MULTIPROCESSORS
) -> Choice | None:
    """The choice for these sizes; None if even the least does not fit in shared memory."""
    found, count, length = (
        choice.schedule,
        resolve(binding.kernel.rows.size, sizes),
        resolve(binding.loop.dim.size, sizes),
    )
    points = prod(resolve(d.size, sizes) for d in binding.kernel.grid)
    uneven = bool(binding.loop.limits) or binding.loop.map is not None
    time = lambda consumers: duration(count, points, found, consumers, uneven, places)
    consumers = min(range(1, found.consumers + 1), key=time)
    tile = min(found.tile, max(64, 1 << (length - 1).bit_length()))
    choice = changed(choice, LENGTH, consumers=consumers, tile=tile, turns=found.turns and consumers > 1)
    for smaller in CUTS:
        least = {name: min(value, getattr(choice.schedule, name)) for name, value in smaller.items()}
        choice = changed(choice, SHARED, **least)
        lasting = choice.schedule.lasting
        choice = changed(choice, SHARED, turns=lasting.turns, late=lasting.late)
        if fits(binding, overlays, choice.schedule):
            return choice
    return None


def fits(binding: Binding, overlays: tuple[Operand, ...], schedule: Schedule) -> bool:
    return shared_bytes(binding, overlays, schedule) <= schedule.shared - BARRIERS // schedule.residents


def changed(choice: Choice, origin: str, **values) -> Choice:
    """The choice with other values, whose origin this is where they differ."""
    new = {name: origin for name, value in values.items() if value != getattr(choice.schedule, name)}
    return replace(choice, schedule=replace(choice.schedule, **values), origins={**choice.origins, **new})
