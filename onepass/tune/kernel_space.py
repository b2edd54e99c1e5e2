"""What can be tried for a plan's kernels: every setting by name, as a space with constraints.

What the form, the shared memory and the registers of a thread refuse is never in the space. What only a run shows, the
tuner learns.
Example: a configuration of plain Triton is ("triton", 128, 64, 4, 3, ...), in the order of NAMES.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache, lru_cache, partial
from math import inf

from ..egraph.terms.sizes import resolve
from ..lowering.hopper.config import HopperConfig
from ..lowering.hopper.form_facts import chains
from ..lowering.hopper.kernel_form import Binding, bind, sent
from ..lowering.hopper.shared_size import staged
from ..lowering.plan.device import H200
from ..lowering.plan.records import Kernel, NotPlannable
from ..lowering.schedule.kernel_time import (
    Config,
    Sizes,
    executor_of,
    granted,
    problem_of,
    registers,
    seconds,
    shared_bytes,
)
from ..lowering.schedule.setting_values import (
    GLUON,
    HOPPER_ONLY,
    HOPPER_TILES,
    NAMES,
    SEARCHED,
    SETTINGS,
    TRITON,
    TRITON_TILES,
    WARPS_OF_A_WARPGROUP,
    config_of,
)
from .search_space import Constraint, Parameter, Space

Point = tuple  # values of the settings, in the order of NAMES


def configuration(point: Point) -> Config:
    """The configuration of a point."""
    return config_of(dict(zip(NAMES, point)))


def point(config: Config) -> Point:
    """The point of a configuration; settings that it lacks have the values that are usual."""
    found = {"executor": executor_of(config)}
    return tuple(found[n] if n in found else getattr(config, n, SETTINGS[n][0]) for n in NAMES)


def predicted(kernels: tuple[Kernel, ...], config: Config, sizes: Sizes) -> float:
    """Seconds of all kernels; 1 where nothing is predicted, infinite for what cannot run."""
    try:
        return sum(seconds(kernel, config, sizes) for kernel in kernels)
    except NotPlannable:
        return 1.0


def needs(kernels: tuple[Kernel, ...], config: Config) -> tuple[float, ...]:
    """Of the loop that needs most: registers of a thread, those that it lacks, bytes of shared memory of a block."""
    loops = [(kernel, loop) for kernel in kernels for loop in kernel.loops]
    try:
        held = max(registers(kernel, loop, config) for kernel, loop in loops)
        shared = max(shared_bytes(problem_of(kernel, loop, config), config) for kernel, loop in loops)
    except NotPlannable:
        return 0.0, 0.0, 0.0
    return held, max(0, held - granted(config)), shared


def space_of(kernels: tuple[Kernel, ...], sizes: Sizes, executors: tuple[str, ...] = (TRITON, GLUON)) -> Space:
    """Everything that may be tried, with these executors."""
    values: dict[str, tuple] = {"executor": executors, **{name: () for name in TRITON_TILES}}
    for executor in executors:
        tiles = TRITON_TILES if executor == TRITON else HOPPER_TILES
        values |= {name: tuple(dict.fromkeys((*values[name], *tiles[name]))) for name in TRITON_TILES}
    values |= HOPPER_ONLY if GLUON in executors else {name: some[:1] for name, some in HOPPER_ONLY.items()}
    parameters = tuple(Parameter(name, tuple(values[name])) for name in NAMES)
    return Space(parameters, tuple(_constraints(kernels, sizes)))


def _constraints(kernels: tuple[Kernel, ...], sizes: Sizes) -> Iterator[Constraint]:
    """Each over the fewest names, so that a branch of the tree ends early."""
    bindings = tuple(b for b in map(bind, kernels) if isinstance(b, Binding))
    yield Constraint(("executor", *TRITON_TILES), _shaped)
    for name, (usual, *_) in HOPPER_ONLY.items():
        yield Constraint(("executor", name), lambda executor, value, usual=usual: executor == GLUON or value == usual)
    yield Constraint(("executor", "row_tile", "stages", "turns", "late"), _terminates)
    yield Constraint(("executor", "row_buffers", "chained"), lambda executor, buffers, chained: not chained or all(
        chains(b, HopperConfig(row_buffers=buffers, chained=True), b.overlays) for b in bindings))  # fmt: skip
    wide = any(binding.is_wide for binding in bindings)
    yield Constraint(("executor", "row_tile", "turns", "value_warpgroups"), partial(_holds_values, wide))
    yield Constraint(("send",), lambda send: send in _distinct(bindings))
    names = ("executor", *TRITON_TILES, "row_buffers", "send", "residents", "turns", "late", "value_warpgroups")
    known = tuple(sorted(sizes.items()))
    yield Constraint(names, lambda *values: _runs(kernels, known, names, values))


def _shaped(executor: str, row_tile: int, loop_tile: int, warps: int, stages: int) -> bool:
    """Whether an executor has tiles of this shape; warps of Hopper kernels follow from their rows."""
    if executor == GLUON:
        consumers = row_tile // H200.product_rows
        fits = warps == WARPS_OF_A_WARPGROUP * consumers and row_tile in HOPPER_TILES["row_tile"]
        return fits and loop_tile in HOPPER_TILES["loop_tile"]
    shape = {"row_tile": row_tile, "loop_tile": loop_tile, "warps": warps, "stages": stages}
    return all(value in TRITON_TILES[name] for name, value in shape.items())


def _terminates(executor: str, row_tile: int, stages: int, turns: bool, late: bool) -> bool:
    config = HopperConfig(row_tile // H200.product_rows, stages=stages, turns=turns, late=late)
    return executor == TRITON or config.terminates


def _holds_values(wide: bool, executor: str, row_tile: int, turns: bool, value_warpgroups: int) -> bool:
    """Whether a Hopper kernel has another warpgroup for columns of values just where these are wide; all have the same
    64 rows then, and take no turns."""
    if executor != GLUON:
        return True
    return value_warpgroups == wide and (not wide or (row_tile == H200.product_rows and not turns))


@cache
def _distinct(bindings: tuple[Binding, ...]) -> tuple[int, ...]:
    """Of the ways by which results leave, the first of those that are one and the same for what these store."""
    extents = {resolve(o.inner.size, {}) for b in bindings for o in sent(b)}
    found = {tuple(staged(e, send) for e in extents) if send else (): send for send in reversed(SEARCHED["send"])}
    return tuple(found.values()) or SEARCHED["send"][:1]


@lru_cache(maxsize=1 << 16)
def _runs(kernels: tuple[Kernel, ...], sizes: tuple, names: tuple[str, ...], values: tuple) -> bool:
    """Whether kernels are predicted to run with these settings, and Hopper kernels without spilling."""
    config = config_of(dict(zip(names, values)))
    runs = predicted(kernels, config, dict(sizes)) < inf
    return runs and not (isinstance(config, HopperConfig) and spills(kernels, config))


def spills(kernels: tuple[Kernel, ...], config: Config) -> bool:
    """Whether a thread surely lacks registers for what its loop holds."""
    return needs(kernels, config)[1] > 0
