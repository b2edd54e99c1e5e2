"""Which settings a Hopper kernel gets, and where each of them comes from.

Settings that the caller gives come first, then those that were measured for this class of kernels. For other kernels
every tile that can run is ranked by its predicted time; the solver says of the best whether it has a schedule, and in
how many clocks a step. Then the settings are reduced to what sizes need and shared memory holds.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterator
from dataclasses import dataclass, fields, replace
from functools import lru_cache
from math import inf, prod
from typing import Any

from ...egraph.terms.sizes import resolve
from ..hopper.approximations import branches
from ..hopper.config import EIGHTHS, REPORTED_AS, HopperConfig, HopperDefault, duration, of_pieces
from ..hopper.form_facts import accumulated, crowded, may_emulate, width
from ..hopper.kernel_form import Binding, Operand
from ..hopper.shared_size import shared_bytes
from ..plan.device import H200
from ..plan.records import NotPlannable
from . import schedule_store
from .kernel_time import Sizes, demand, loop_seconds, problem_of
from .schedule_store import ScheduleStore, SolvedSchedule, solved

CONSUMERS, LOOP_TILES, STAGES = (1, 2, 3), (128, 64), (2, 3, 4)  # that are ranked by their predicted time
NARROW_TILE = 64  # columns
NARROWEST_TILE = 32  # columns, where threads have too few registers for wider ones
MAX_SCORES_OF_TWO_FORMS = 128  # of a thread: the instruction cache holds a loop with two forms of a special function
INSTRUCTIONS_OF_A_STEP = 100  # for products, barriers and addresses
MIN_GAIN = 1.08  # emulation of special functions must make a step shorter by this factor
MAX_TIE = 1.01  # times that differ by less than this factor are equal
FLOAT_BYTES = 4
MEASURED, GIVEN, DEFAULT = "measured on an H200", "given by the caller", "default"
UNSCHEDULED = "default, of kernels like this one: no schedule was found for it"
EMULATED, FOR_CODE = "predicted from the units' work", "for the instruction cache"
SHARED = "cut down to shared memory"
LENGTH = "cut down to the lengths"
REDUCTIONS: tuple[dict[str, int], ...] = (  # tried in this order until a kernel fits in shared memory
    {}, {"send": 64}, {"send": 0}, {"row_buffers": 1}, {"stages": 2}, {"loop_tile": 64}, {"stages": 1},
)  # fmt: skip


@dataclass(frozen=True)
class Choice:
    """Settings, and by name where each is from. `solved` is the solver's answer, if it was asked."""

    config: HopperConfig
    origins: dict[str, str]
    solved: SolvedSchedule | None = None

    @classmethod
    def of(cls, config: HopperConfig, origin: str) -> Choice:
        """A choice whose settings are all from one place."""
        return cls(config, dict.fromkeys(REPORTED_AS, origin))

    def changed(self, origin: str, **values: Any) -> Choice:
        """The choice with other values; those that differ have this origin."""
        new = {name: origin for name, value in values.items() if value != getattr(self.config, name)}
        return replace(self, config=replace(self.config, **values), origins={**self.origins, **new})

    def __str__(self) -> str:
        groups: dict[str, list[str]] = {}
        for name, origin in self.origins.items():
            groups.setdefault(origin, []).append(f"{REPORTED_AS[name]} {_shown(getattr(self.config, name))}")
        return "; ".join(f"{', '.join(names)}: {origin}" for origin, names in groups.items())


def _shown(value: object) -> str:
    return {True: "on", False: "off"}[value] if isinstance(value, bool) else str(value)


def choose(
    binding: Binding,
    sizes: Sizes,
    overlays: tuple[Operand, ...],
    row: HopperDefault | None,
    multiprocessors: int = H200.multiprocessors,
    store: ScheduleStore | None = None,
    given: HopperConfig | None = None,
) -> Choice | None:
    """The settings of a kernel whose default row this is; None if nothing fits.

    store: where solved schedules outlive the process. given: settings that are kept as they are.
    """
    if given is not None:
        return Choice.of(given, GIVEN)
    if row is not None and is_measured_for(row, binding):
        found = Choice.of(row.config, MEASURED)
    else:
        found = best(binding, tuple(sorted(sizes.items())), overlays, store)
        if found is None and row is not None:
            found = Choice.of(row.config, UNSCHEDULED)
    return found and reduced(with_emulation(found, binding), binding, sizes, overlays, multiprocessors)


def is_measured_for(row: HopperDefault, binding: Binding) -> bool:
    """Whether the row was measured on kernels of this class, and is not only used for them.

    A row for short items was, whatever decides which tiles run: a prediction does not know how many a map leaves.
    """
    same = (width(binding), accumulated(binding)) == (row.width, row.columns)
    return same and (row.crowded is not None or row.is_for_short_items or not crowded(binding))


# Special functions ----------------------------------------------------------------------------------------------------


def with_emulation(choice: Choice, binding: Binding) -> Choice:
    """The choice with special functions emulated where that is faster, in code that the instruction cache holds."""
    choice = choice.changed(EMULATED, emulated_eighths=emulating(binding, choice.config).emulated_eighths)
    config, kernel = choice.config, binding.kernel
    scores = config.row_tile * config.loop_tile // H200.warpgroup
    fits_in_cache = scores <= MAX_SCORES_OF_TWO_FORMS or not branches(kernel, binding.loop)
    if not config.emulated_eighths or fits_in_cache:
        return choice
    consumers = H200.max_consumers if width(binding) <= NARROW_TILE else config.consumers
    return choice.changed(FOR_CODE, consumers=consumers, loop_tile=NARROW_TILE)


def emulating(binding: Binding | str, config: HopperConfig) -> HopperConfig:
    """The settings with as many special functions emulated as the units' work says, if that is worth it.

    On an H200 a step takes the time of its products and that of the busier one of special functions and of issuing
    instructions: measured kernels with none, four, six or eight of eight emulated are within a tenth of that.
    """
    if isinstance(binding, str) or not may_emulate(binding):
        return config
    kernel, loop = binding.kernel, binding.loop
    variants = [replace(config, emulated_eighths=n) for n in range(EIGHTHS + 1)]
    times = [_busy(problem_of(kernel, loop, variant).work()) for variant in variants]
    most = max(n for n, time in enumerate(times) if time <= MAX_TIE * min(times))
    return variants[most if min(times) * MIN_GAIN < times[0] else 0]


def _busy(work: dict[str, int]) -> float:
    """Clocks of a step of one warpgroup."""
    special = work.get("special", 0)
    issued = work.get("fma", 0) + special * H200.special / H200.lanes + INSTRUCTIONS_OF_A_STEP
    return work.get("tensor", 0) + max(special, issued)


# Prediction and solver ------------------------------------------------------------------------------------------------


@lru_cache(maxsize=256)
def best(
    binding: Binding,
    sizes: tuple[tuple[str, int], ...],
    overlays: tuple[Operand, ...] = (),
    store: ScheduleStore | None = None,
) -> Choice | None:
    """The settings predicted to be the fastest of those for which the solver finds a schedule, or does not end.

    Where it proves all to have none near their bounds, or has had its work, the first of them, which runs, only not as
    well: None only where nothing can run.
    """
    waiting = _ranked(binding, dict(sizes), overlays, LOOP_TILES)
    waiting = waiting or _ranked(binding, dict(sizes), overlays, (NARROWEST_TILE,))
    tried, refused, room = len(waiting), None, schedule_store.ROOM
    heapq.heapify(waiting)
    while waiting:
        _, n, config, found = heapq.heappop(waiting)
        if found is not None:
            return chosen(config, found, tried)
        found = solved(problem_of(binding.kernel, binding.loop, config), config.consumers, config.loop_tile, store)
        room -= found.size
        if found.config is None and found.status != "infeasible":
            return chosen(config, found, tried)
        refused = refused or (config, found)
        if room < 0 and found.config is None:
            break
        if found.config is not None and found.config.stages <= config.stages:
            config = replace(config, turns=found.config.turns)
            time = predicted_seconds(binding, config, dict(sizes), found.interval * found.slot)
            heapq.heappush(waiting, (time, n, config, found))
    return refused and chosen(refused[0], replace(refused[1], config=None), tried)


def _ranked(
    binding: Binding, sizes: Sizes, overlays: tuple[Operand, ...], tiles: tuple[int, ...]
) -> list[tuple[float, int, HopperConfig, SolvedSchedule | None]]:
    """The candidates with these tiles that can run, each with its predicted time and a number of its own."""
    return [
        (time, n, config, None)
        for n, config in enumerate(candidates(tiles))
        if _has_room(binding, overlays, config) and (time := predicted_seconds(binding, config, sizes)) < inf
    ]


def _has_room(binding: Binding, overlays: tuple[Operand, ...], config: HopperConfig) -> bool:
    """Whether a candidate fits in shared memory. Results sent through it are worth more than a third tile in flight."""
    return bool(config.send or config.stages == min(STAGES)) and fits(binding, overlays, config)


def candidates(tiles: tuple[int, ...] = LOOP_TILES) -> Iterator[HopperConfig]:
    """Every tile with every ring; the solver decides about turns."""
    for tile in tiles:
        for consumers in CONSUMERS:
            for stages in STAGES:
                for row_buffers in (2, 1):
                    for send in (256, 64, 0):
                        for residents in (1, 2, 3) if consumers == 1 else (1,):
                            yield HopperConfig(consumers, tile, stages, row_buffers, send=send, residents=residents)


def predicted_seconds(binding: Binding, config: HopperConfig, sizes: Sizes, interval: int = 0) -> float:
    """Predicted time, with steps no shorter than `interval` clocks; infinite for what cannot run or would spill."""
    try:
        needed = demand(binding.kernel, binding.loop, config, sizes)
        return inf if needed.lacking else loop_seconds(needed, config, interval=interval)
    except NotPlannable:
        return inf


def chosen(config: HopperConfig, found: SolvedSchedule, tried: int) -> Choice:
    """The choice of a candidate: what was predicted, what was solved, and defaults."""
    predicted = f"predicted to be the fastest of {tried}"
    origins = dict.fromkeys((f.name for f in fields(HopperConfig)), DEFAULT)
    ranked = ("consumers", "loop_tile", "stages", "row_buffers", "residents", "send")
    origins |= dict.fromkeys(ranked, predicted)
    if found.config is None:
        origins |= dict.fromkeys(("consumers", "loop_tile"), f"{predicted}, the solver says {found}")
        return Choice(config, origins, found)
    origins |= dict.fromkeys(("consumers", "loop_tile", "turns"), f"solved ({found})")
    origins["stages"] = f"{predicted}, {found.config.stages} by the solved schedule"
    return Choice(config, origins, found)


# Sizes and shared memory ----------------------------------------------------------------------------------------------


def reduced(
    choice: Choice, binding: Binding, sizes: Sizes, overlays: tuple[Operand, ...], multiprocessors: int
) -> Choice | None:
    """The choice for these sizes; None if even the smallest settings do not fit in shared memory."""
    config, kernel, loop = choice.config, binding.kernel, binding.loop
    rows, length = resolve(kernel.rows.size, sizes), resolve(loop.dim.size, sizes)
    grid = prod(resolve(d.size, sizes) for d in kernel.grid)
    uneven = bool(loop.limits) or loop.map is not None
    time = lambda consumers: duration(rows, grid, config, consumers, uneven, multiprocessors)
    consumers = min(range(1, config.consumers + 1), key=time)
    tile = min(config.loop_tile, max(NARROW_TILE, 1 << (length - 1).bit_length()))
    choice = choice.changed(LENGTH, consumers=consumers, loop_tile=tile, turns=config.turns and consumers > 1)
    for smaller in REDUCTIONS:
        values = {name: min(value, getattr(choice.config, name)) for name, value in smaller.items()}
        choice = choice.changed(SHARED, **values)
        terminating = choice.config.terminating
        choice = choice.changed(SHARED, turns=terminating.turns, late=terminating.late)
        if fits(binding, overlays, choice.config):
            return choice
    return None


def fits(binding: Binding, overlays: tuple[Operand, ...], config: HopperConfig, in_pieces: bool = False) -> bool:
    """Whether a kernel with these settings fits in shared memory. in_pieces: beside the totals of its pieces."""
    totals = FLOAT_BYTES * config.row_tile * accumulated(binding) if in_pieces else 0
    return shared_bytes(binding, overlays, config) + totals <= config.shared - H200.barrier_bytes // config.residents


def choose_in_pieces(binding: Binding, overlays: tuple[Operand, ...], loop_tile: int) -> HopperConfig | None:
    """Settings of a loop in pieces, with as many tiles in flight as fit; None if two do not."""
    most = of_pieces(width(binding), loop_tile)
    found = (replace(most, stages=stages) for stages in range(most.stages, 1, -1))
    return next((one for one in found if fits(binding, overlays, one, in_pieces=True)), None)
