"""The time of a kernel for a configuration, before anything is compiled: work over rates, what hides under what, waves.

A step is one tile of the loop on every warpgroup of one multiprocessor. Constants of the executors have a physical
meaning and were fitted by bench/fit_prediction.py on some problems of a measured table; tests look at the others.
Used as the tuner's prior, and to order candidates and executors; never to decide what is right.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from math import ceil, inf, prod

import numpy as np

from ...egraph.evaluate import evaluate
from ...egraph.term import subterms
from ..plan import Kernel, Loop
from .graph import Tile, loop_problem
from .machine import H200, Machine
from .problem import Problem


@dataclass(frozen=True)
class Executor:
    """How kernels of one kind run, in clocks of a multiprocessor where nothing else is said.

    tensor: time of products over that at peak rate; fma: of multiply-adds. overlap: the share of the shorter of
    products and pointwise work that hides under the longer, for two and for more warpgroups; rows are (alone, with
    late), then (in turns, in turns and late). step: barriers and control of a step. latency: a step waits for tiles
    with one stage in flight, shared by more; single: times as long where none is loaded ahead. fixed: of a block;
    bytes: for each byte of its row tiles; ends: of its steps, one that hides nothing; hidden: the share of these
    that a second buffer of row tiles hides. spill: for each register that a thread lacks; exchange: for each KiB of
    weights that cross between warpgroups which share rows. tail: the share of the last wave's idle time that is
    lost. launch: seconds.
    """

    name: str
    tensor: float
    fma: float
    overlap: tuple[tuple[float, float, float, float], tuple[float, float, float, float]]
    step: float
    latency: float
    single: float
    fixed: float
    bytes: float
    ends: float
    hidden: float
    spill: float
    exchange: float
    tail: float
    launch: float


EXECUTORS = {
    e.name: e
    for e in (
        Executor(
            "ptr", tensor=1.42, fma=1.0, overlap=((0.62,) * 4, (0.4,) * 4), step=0, latency=960,
            single=3.3, fixed=1800, bytes=0.005, ends=0, hidden=0, spill=90, exchange=65, tail=0.99, launch=2e-6,
        ),
        Executor(
            "gluon", tensor=0.87, fma=0.9, overlap=((0.52, 0.5, 0.5, 0.51), (0.89, 0.81, 0.93, 0.95)), step=117,
            latency=0, single=1, fixed=790, bytes=0.145, ends=0.76, hidden=0.085, spill=0, exchange=0,
            tail=1.0, launch=8e-6,
        ),
    )
}  # fmt: skip
PRODUCT_ROWS = 64  # of one warpgroup's product: fewer take as long
THREAD_REGISTERS = 255
WORKING_REGISTERS = 20  # of a thread, beside tiles: addresses, row states, what the compiler keeps


@dataclass(frozen=True)
class Configuration:
    """rows: of a block; columns: of a loop tile; warps: that compute; stages: tiles in flight of every load; queries:
    row tiles in flight; turns, late: of a Gluon schedule.
    """

    executor: str
    rows: int
    columns: int
    warps: int
    stages: int
    queries: int = 1
    turns: bool = False
    late: bool = False

    @property
    def warpgroups(self) -> int:
        return max(1, self.warps // 4)

    @property
    def persistent(self) -> bool:
        """One block stays on every multiprocessor and takes its tiles of rows from a list."""
        return self.executor == "gluon"


@lru_cache(maxsize=4096)
def problem_of(kernel: Kernel, loop: Loop, configuration: Configuration, machine: Machine = H200) -> Problem:
    """The problem of one warpgroup's share of a block."""
    rows = max(16, configuration.rows // configuration.warpgroups)
    return loop_problem(kernel, loop, Tile(rows, configuration.columns), machine)


def shared_bytes(problem: Problem, c: Configuration) -> int:
    """Shared memory of a block: row tiles and the stages of what is loaded each step. Barriers are not counted."""
    rings = sum(o.bytes * (c.warpgroups if o.private else 1) for o in problem.operations if o.streaming)
    return problem.resident * c.warpgroups * c.queries + rings * c.stages


def registers(problem: Problem) -> int:
    """Registers of a thread: carried totals, and the largest tiles that live at once."""
    carried = sum(v.registers for v in problem.values if v.carried)
    return carried + sum(v.registers for v in problem.values if not v.carried) + WORKING_REGISTERS


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


def demand(kernel: Kernel, loop: Loop, c: Configuration, sizes=None, machine: Machine = H200) -> Demand:
    """Everything about a loop that a prediction needs."""
    problem, sizes = problem_of(kernel, loop, c, machine), sizes or {}
    work, held = problem.work(), registers(problem)
    points = prod(int(sizes.get(d.size, d.size)) for d in kernel.grid)
    taken = steps(kernel, loop, c, sizes)
    share = c.rows / c.warpgroups
    return Demand(
        tensor=work.get("tensor", 0) * max(1.0, PRODUCT_ROWS / share),
        special=work.get("special", 0),
        fma=work.get("fma", 0),
        copy=work.get("copy", 0),
        weights=2 * share * c.columns if share < PRODUCT_ROWS else 0,
        rows=problem.resident * c.warpgroups,
        lacking=max(0, held - THREAD_REGISTERS) if not c.persistent else 0,
        resident=_resident(problem, held, c, machine),
        blocks=points * len(taken),
        steps=points * sum(taken),
        longest=max(taken, default=0),
    )


def _resident(problem: Problem, held: int, c: Configuration, machine: Machine) -> int:
    shared = shared_bytes(problem, c)
    if shared > machine.shared_bytes:
        return 0
    if c.persistent:
        return 1
    threads = c.warps * 32
    by_registers = 65536 // (min(THREAD_REGISTERS + 1, -(-held // 8) * 8) * threads)
    return max(1, min(by_registers, (machine.shared_bytes + 1024) // (shared + 1024), 2048 // threads))


def step_clocks(d: Demand, c: Configuration, machine: Machine = H200) -> float:
    """Clocks of one step of all resident blocks."""
    executor, groups = EXECUTORS[c.executor], c.warpgroups * d.resident
    tensor = d.tensor * executor.tensor
    pointwise = d.special + d.fma * executor.fma + executor.step + executor.spill * d.lacking
    pointwise += executor.exchange * d.weights / 1024
    overlap = executor.overlap[groups > 2][2 * c.turns + c.late]
    busy = groups * (max(tensor, pointwise) + (1 - overlap * (groups > 1)) * min(tensor, pointwise))
    waited = executor.latency / (c.stages - 1) if c.stages > 1 else executor.latency * executor.single
    return max(busy, d.copy * d.resident) + waited / d.resident  # other blocks work meanwhile


def loop_seconds(d: Demand, c: Configuration, machine: Machine = H200) -> float:
    """Predicted time of one loop's launch; infinite if a block does not fit on a multiprocessor."""
    if not d.resident or not d.blocks:
        return inf if not d.resident else 0.0
    executor, step = EXECUTORS[c.executor], step_clocks(d, c, machine)
    ends = executor.fixed + executor.bytes * d.rows
    ends = ends * (1 - executor.hidden * (c.queries > 1)) + executor.ends * step / c.warpgroups
    total = (d.steps * step + d.blocks * ends) / d.resident / machine.processors
    return total * _idle(d, c, machine) / machine.clock


def _idle(d: Demand, c: Configuration, machine: Machine) -> float:
    """What stands idle while the last blocks end, as a factor; a list of uneven tiles is dealt out evenly."""
    waves = d.blocks / (d.resident * machine.processors)
    if c.persistent and d.longest * d.blocks > d.steps and waves > 1:
        return 1.0
    lost = ceil(waves) / waves - 1
    return 1 + lost * (EXECUTORS[c.executor].tail if waves > 1 else 1.0)


@lru_cache(maxsize=4096)
def _steps(kernel: Kernel, loop: Loop, rows: int, columns: int, sizes: tuple) -> tuple[int, ...]:
    known = dict(sizes)
    length = int(known.get(loop.dim.size, loop.dim.size))
    count = int(known.get(kernel.rows.size, kernel.rows.size)) if kernel.rows else 1
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


def seconds(kernel: Kernel, c: Configuration, sizes=None, machine: Machine = H200) -> float:
    """Predicted time of one launch; infinite if a block does not fit on a multiprocessor."""
    loops = (loop_seconds(demand(kernel, loop, c, sizes, machine), c, machine) for loop in kernel.loops)
    return sum(loops) + EXECUTORS[c.executor].launch
