"""The time of a kernel for a configuration, before anything is compiled: work over rates, what hides under what, waves.

A step is one tile of the loop on every warpgroup of one multiprocessor. Constants of the executors have a physical
meaning and were fitted by bench/fit_prediction.py to a measured table; tests leave each problem out in turn.
Used as the tuner's prior, and to order candidates and executors; never to decide what is right.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import lru_cache
from math import ceil, inf, prod

import numpy as np

from ...egraph.terms.evaluate import evaluate
from ...egraph.terms.sizes import resolve
from ...egraph.terms.traversal import subterms
from ..hopper.approximations import RECIPROCAL
from ..hopper.config import EIGHTH, KNOBS, Knobs, Schedule
from ..hopper.kernel_form import staged
from ..plan.device import BARRIERS, COSTS, H200, NARROW, Machine
from ..plan.records import Kernel, Loop
from . import pipeline_time
from .from_loop import Tile, loop_problem, state_of
from .pipeline_time import Pipeline
from .problem import Problem


@dataclass(frozen=True)
class Executor:
    """How plain kernels run, in clocks of a multiprocessor where nothing else is said.

    tensor: time of products over that at peak rate; fma: of multiply-adds. overlap: the share of the shorter of
    products and pointwise work that hides under the longer, for two and for more warpgroups. latency: a step waits for
    tiles with one stage in flight, shared by more; single: times as long where none is loaded ahead. fixed: of a block;
    bytes: for each byte of its row tiles. spill: for each register that a thread lacks; exchange: for each KiB of
    weights that cross between warpgroups which share rows. tail: the share of the last wave's idle time that is
    lost. launch: seconds.
    """

    tensor: float
    fma: float
    two: float
    more: float
    latency: float
    single: float
    fixed: float
    bytes: float
    spill: float
    exchange: float
    tail: float
    launch: float


EXECUTORS = {
    "ptr": Executor(
        tensor=1.43, fma=0.767, two=0.376, more=0.224, latency=1025, single=1.95, fixed=2850, bytes=0.129, spill=66,
        exchange=52, tail=1, launch=1e-5,
    ),
    "gluon": Pipeline(),
}  # fmt: skip
PRODUCT_ROWS = 64  # of one warpgroup's product: fewer take as long
THREAD_REGISTERS = 255
ADDRESSING = 30  # registers that one product needs beside its accumulator
WORKING_REGISTERS = 20  # of a thread of a warp-specialised kernel, beside tiles: row states, what the compiler keeps
PLAIN_REGISTERS, GUARD_REGISTERS, SINGLE_REGISTERS = 28, 20, 20  # of others: always, under a guard, with one stage
COPIED, ADDRESS_REGISTERS = 16, 2  # bytes that a thread copies at once, by an address of so many registers


@dataclass(frozen=True)
class Configuration(Knobs):
    """rows: of a block; columns: of a loop tile; warps: that compute; stages: tiles in flight of every load; queries:
    row tiles in flight; the knobs are of a Gluon schedule.
    """

    executor: str
    rows: int
    columns: int
    warps: int
    stages: int
    queries: int = 1

    @classmethod
    def of(cls, schedule: Schedule) -> Configuration:
        """A warp-specialised kernel's."""
        rest = {name: getattr(schedule, name) for name in KNOBS}
        rows, warps = PRODUCT_ROWS * schedule.consumers, 4 * schedule.consumers
        return cls("gluon", rows, schedule.tile, warps, schedule.depth, schedule.queries, **rest)

    @property
    def warpgroups(self) -> int:
        return max(1, self.warps // 4)

    @property
    def persistent(self) -> bool:
        """One block stays on every multiprocessor and takes its tiles of rows from a list."""
        return self.executor == "gluon"


def problem_of(kernel: Kernel, loop: Loop, c: Configuration, machine: Machine = H200) -> Problem:
    """The problem of one warpgroup's share of a block."""
    return _problem(kernel, loop, Tile(max(16, c.rows // c.warpgroups), c.columns), machine, c.persistent, c.spared)


@lru_cache(maxsize=1024)
def _problem(kernel: Kernel, loop: Loop, tile: Tile, machine: Machine, persistent: bool, spared: int) -> Problem:
    costs = costs_of(kernel, spared) if persistent else COSTS
    return loop_problem(kernel, loop, tile, machine, costs, persistent, spared / EIGHTH)


def costs_of(kernel: Kernel, spared: int = 0) -> dict[str, tuple[float, float]]:
    """What operations of a warp-specialised kernel cost; spared: as in its schedule."""
    floating = {t.dtype for t in kernel.inputs if "float" in t.dtype}
    costs = NARROW if floating == {"bfloat16"} else COSTS
    fma, special = costs["sigmoid"]
    part = spared / EIGHTH
    return {**costs, "sigmoid": (fma + part * RECIPROCAL.instructions, special - part)} if spared else costs


def shared_bytes(problem: Problem, c: Configuration) -> int:
    """Shared memory of a block: row tiles and the stages of what is loaded each step. Barriers are not counted."""
    rings = sum(o.bytes * (c.warpgroups if o.private else 1) for o in problem.operations if o.streaming)
    return problem.resident * c.warpgroups * c.queries + rings * c.stages


def registers(kernel: Kernel, loop: Loop, c: Configuration, machine: Machine = H200) -> int:
    """Registers of a thread: carried totals, the largest tiles that live at once, and what goes with them.

    Held to what the assembler says of every kernel of the measured table. Plain kernels make weights where scores were,
    and hold addresses of what they copy.
    """
    problem = problem_of(kernel, loop, c, machine)
    carried = sum(v.registers for v in problem.values if v.carried)
    others = [v.registers for v in problem.values if not v.carried]
    if c.persistent:  # states are updated one after the other
        together: dict[str | None, int] = {}
        for value in problem.values:
            if not value.carried:
                together[state_of(value)] = together.get(state_of(value), 0) + value.registers
        every = together.pop(None, 0)
        return carried + every + max(together.values(), default=0) + WORKING_REGISTERS
    copied = sum(o.bytes for o in problem.operations if o.streaming)
    addresses = ceil(ADDRESS_REGISTERS * copied / COPIED / (32 * c.warps))
    beside = PLAIN_REGISTERS + GUARD_REGISTERS * (loop.guard is not None) + SINGLE_REGISTERS * (c.stages == 1)
    return carried + max(others, default=0) + addresses + beside


def granted(c: Configuration) -> int:
    """Registers that a thread may have."""
    return layout(c).registers[1] if c.persistent else THREAD_REGISTERS


@dataclass(frozen=True)
class Demand:
    """What one loop asks of a multiprocessor: clocks of a step on each unit for one warpgroup, and sizes of blocks."""

    tensor: float
    special: float
    fma: float
    copy: float
    weights: float  # bytes of the widest tile that a step makes
    rows: float  # bytes of a block's row tiles
    lacking: float  # registers that a thread has not
    resident: int  # blocks at once; 0 if not even one fits
    blocks: int
    steps: int  # of all blocks
    longest: int
    share: float = 1.0  # of a block's warpgroups and steps, those that have something to do


def demand(kernel: Kernel, loop: Loop, c: Configuration, sizes=None, machine: Machine = H200) -> Demand:
    """Everything about a loop that a prediction needs."""
    problem, sizes = problem_of(kernel, loop, c, machine), sizes or {}
    work, held = problem.work(), registers(kernel, loop, c, machine)
    points = prod(resolve(d.size, sizes) for d in kernel.grid)
    taken = steps(kernel, loop, c, sizes)
    share = c.rows / c.warpgroups
    return Demand(
        tensor=work.get("tensor", 0) * max(1.0, PRODUCT_ROWS / share),
        special=work.get("special", 0),
        fma=work.get("fma", 0),
        copy=work.get("copy", 0),
        weights=2 * share * c.columns if share < PRODUCT_ROWS else 0,
        rows=problem.resident * c.warpgroups,
        lacking=max(0, held - granted(c)),
        resident=_resident(problem, held, c, machine),
        blocks=points * len(taken),
        steps=points * sum(taken),
        longest=max(taken, default=0),
        share=_share(kernel, loop, c, sizes, sum(taken)),
    )


def _share(kernel: Kernel, loop: Loop, c: Configuration, sizes: dict, taken: int) -> float:
    """A warpgroup hands back, unread, what only the others' rows need."""
    if not c.persistent or c.warpgroups == 1 or not taken or not loop.limits:
        return 1.0
    own = replace(c, rows=PRODUCT_ROWS, warps=4)
    return min(1.0, sum(steps(kernel, loop, own, sizes)) / c.warpgroups / taken)


def layout(c: Configuration) -> Schedule:
    """The record of a warp-specialised kernel with these settings."""
    return Schedule(c.warpgroups, c.columns, c.stages, c.queries, **{name: getattr(c, name) for name in KNOBS})


def _resident(problem: Problem, held: int, c: Configuration, machine: Machine) -> int:
    """Blocks at once; 0 if not even one can run."""
    shared = shared_bytes(problem, c)
    if c.persistent:
        found = layout(c)
        widest = max((v.registers for v in problem.values), default=0)
        stored = max((v.registers for v in problem.values if v.carried), default=0)
        shared += 2 * c.rows * staged(2 * stored, c.send)
        fits = shared <= found.shared - BARRIERS // found.residents
        runs = fits and widest + ADDRESSING <= found.registers[0] and found.terminates
        return c.residents if runs else 0
    if shared > machine.shared_bytes:
        return 0
    threads = c.warps * 32
    by_registers = 65536 // (min(THREAD_REGISTERS + 1, -(-held // 8) * 8) * threads)
    return max(1, min(by_registers, (machine.shared_bytes + 1024) // (shared + 1024), 2048 // threads))


def step_clocks(d: Demand, c: Configuration) -> float:
    """Clocks of one step of all resident blocks."""
    executor, groups = EXECUTORS[c.executor], c.warpgroups * d.resident
    tensor = d.tensor * executor.tensor
    pointwise = d.special + d.fma * executor.fma + executor.spill * d.lacking + executor.exchange * d.weights / 1024
    overlap = 0 if groups == 1 else executor.two if groups == 2 else executor.more
    busy = groups * (max(tensor, pointwise) + (1 - overlap) * min(tensor, pointwise))
    waited = executor.latency / (c.stages - 1) if c.stages > 1 else executor.latency * executor.single
    return max(busy, d.copy * d.resident) + waited / d.resident  # other blocks work meanwhile


def loop_seconds(d: Demand, c: Configuration, machine: Machine = H200, interval: int = 0) -> float:
    """Predicted time of one loop's launch; infinite if a block cannot run on a multiprocessor. interval: a step of a
    warp-specialised kernel takes at least so many clocks.
    """
    executor = EXECUTORS[c.executor]
    if not d.resident or not d.blocks:
        return inf if not d.resident else 0.0
    if isinstance(executor, Pipeline):
        return pipeline_time.seconds(executor, d, c, machine, interval)
    ends = executor.fixed + executor.bytes * d.rows
    total = (d.steps * step_clocks(d, c) + d.blocks * ends) / d.resident / machine.processors
    return total * _idle(d, executor, machine) / machine.clock


def _idle(d: Demand, executor: Executor, machine: Machine) -> float:
    """What stands idle while the last blocks end, as a factor."""
    waves = d.blocks / (d.resident * machine.processors)
    lost = ceil(waves) / waves - 1
    return 1 + lost * (executor.tail if waves > 1 else 1.0)


@lru_cache(maxsize=4096)
def _steps(kernel: Kernel, loop: Loop, rows: int, columns: int, sizes: tuple) -> tuple[int, ...]:
    known = dict(sizes)
    length, count = resolve(loop.dim.size, known), resolve(kernel.rows.size, known) if kernel.rows else 1
    last, first = np.full(count, length), np.zeros(count, dtype=int)
    for limits, ends, narrow in ((loop.uppers, last, np.minimum), (loop.lowers, first, np.maximum)):
        for limit in limits:
            if limit.bound.dims <= {kernel.rows} and not any(n.op == "load" for n in subterms(limit.bound)):
                bound = evaluate(limit.bound, {}, (kernel.rows,), known)
                narrow(ends, np.broadcast_to(bound, ends.shape).astype(int), out=ends)
    tiles = range(0, count, rows)
    return tuple(max(0, -(-int(last[t : t + rows].max()) // columns) - int(first[t : t + rows].min()) // columns)
                 for t in tiles)  # fmt: skip


def steps(kernel: Kernel, loop: Loop, c: Configuration, sizes=None) -> list[int]:
    """Tiles of the loop that run for each tile of rows; all of them where a limit is not known before the run."""
    return list(_steps(kernel, loop, c.rows, c.columns, tuple(sorted((sizes or {}).items()))))


def seconds(kernel: Kernel, c: Configuration, sizes=None, machine: Machine = H200, interval: int = 0) -> float:
    """Predicted time of one launch; infinite if a block cannot run on a multiprocessor."""
    loops = (loop_seconds(demand(kernel, loop, c, sizes, machine), c, machine, interval) for loop in kernel.loops)
    return sum(loops) + (EXECUTORS[c.executor].launch if c.executor != "gluon" else 0.0)
