"""What can be tried for a plan's kernels: every setting by name, as a space whose constraints are what is known before.

What the form, the shared memory and the registers of a thread refuse is never in the space. What only a run shows, the
tuner learns.
"""

from __future__ import annotations

from functools import cache, lru_cache
from math import inf

from ..lowering.hopper.config import Schedule
from ..lowering.hopper.kernel_form import Binding, bind, chains, sent, staged
from ..lowering.plan.records import Kernel, NotPlannable
from ..lowering.schedule.kernel_time import Configuration, granted, problem_of, registers, seconds, shared_bytes
from ..lowering.schedule.setting_values import KNOWN, NAMES, PLAIN, SCHEDULED, SEARCHED
from .search_space import Constraint, Parameter, Space


def configuration(point: tuple) -> Configuration:
    return Configuration(**dict(zip(NAMES, point)))


def point(c: Configuration) -> tuple:
    return tuple(getattr(c, name) for name in NAMES)


def predicted(kernels: tuple[Kernel, ...], c: Configuration, sizes: dict) -> float:
    """Seconds of all kernels; 1 where nothing is predicted, infinite for what cannot run."""
    try:
        return sum(seconds(kernel, c, sizes) for kernel in kernels)
    except NotPlannable:
        return 1.0


def needs(kernels: tuple[Kernel, ...], c: Configuration) -> tuple[float, ...]:
    """Of the loop that needs most: registers of a thread, those that it has not, bytes of shared memory of a block."""
    loops = [(kernel, loop) for kernel in kernels for loop in kernel.loops]
    try:
        held = max(registers(kernel, loop, c) for kernel, loop in loops)
        shared = max(shared_bytes(problem_of(kernel, loop, c), c) for kernel, loop in loops)
    except NotPlannable:
        return 0.0, 0.0, 0.0
    return held, max(0, held - granted(c)), shared


def space_of(kernels: tuple[Kernel, ...], sizes: dict, executors: tuple[str, ...] = ("ptr", "gluon")) -> Space:
    """Everything that may be tried, with these executors."""
    values = {"executor": executors, **{name: () for name in PLAIN}}
    for executor in executors:
        mine = PLAIN if executor == "ptr" else SCHEDULED
        values |= {name: tuple(dict.fromkeys((*values[name], *mine[name]))) for name in PLAIN}
    values |= KNOWN if "gluon" in executors else {name: KNOWN[name][:1] for name in KNOWN}
    parameters = tuple(Parameter(name, tuple(values[name])) for name in NAMES)
    return Space(parameters, tuple(_constraints(kernels, sizes)))


def _constraints(kernels: tuple[Kernel, ...], sizes: dict):
    """Each over the fewest names, so that a branch of the tree ends early."""
    bindings = [b for b in map(bind, kernels) if isinstance(b, Binding)]
    yield Constraint(("executor", *PLAIN), _shaped)
    for name, (usual, *_) in KNOWN.items():
        yield Constraint(("executor", name), lambda executor, value, usual=usual: executor != "ptr" or value == usual)
    ends = lambda executor, rows, stages, turns, late: (
        executor == "ptr" or Schedule(rows // 64, 64, stages, turns=turns, late=late).terminates
    )
    yield Constraint(("executor", "rows", "stages", "turns", "late"), ends)
    yield Constraint(("executor", "queries", "chained"), lambda executor, queries, chained: not chained or all(
        chains(b, Schedule(queries=queries, chained=True), b.overlays) for b in bindings))  # fmt: skip
    yield Constraint(("send",), lambda send: send in _distinct(tuple(bindings)))
    held = ("executor", *PLAIN, "queries", "send", "residents", "turns", "late")
    yield Constraint(held, lambda *some: _runs(kernels, tuple(sorted(sizes.items())), some))


def _shaped(executor: str, rows: int, columns: int, warps: int, stages: int) -> bool:
    if executor == "gluon":
        return warps == rows // 16 and rows // 64 in SEARCHED["consumers"] and columns in SEARCHED["tile"]
    return all(value in PLAIN[name] for name, value in zip(PLAIN, (rows, columns, warps, stages)))


@cache
def _distinct(bindings: tuple[Binding, ...]) -> tuple[int, ...]:
    """Of the ways by which results leave, the first of those that are one and the same for what these store."""
    extents = {o.inner.size for b in bindings for o in sent(b)}
    found = {tuple(staged(e, send) for e in extents) if send else (): send for send in reversed(SEARCHED["send"])}
    return tuple(found.values()) or SEARCHED["send"][:1]


@lru_cache(maxsize=1 << 16)
def _runs(kernels: tuple[Kernel, ...], sizes: tuple, some: tuple) -> bool:
    executor, *shape, queries, send, residents, turns, late = some
    c = Configuration(executor, *shape, queries, send=send, residents=residents, turns=turns, late=late)
    return predicted(kernels, c, dict(sizes)) < inf and not (c.persistent and spills(kernels, c))


def spills(kernels: tuple[Kernel, ...], c: Configuration) -> bool:
    """Whether a thread surely lacks registers for what its loop holds."""
    return needs(kernels, c)[1] > 0
