"""The time of a kernel for a configuration, before anything is compiled: work over rates, what hides under what, waves.

A step is one tile of the loop on every warpgroup of one multiprocessor. Constants of the executors have a physical
meaning and were fitted by bench/fit_prediction.py on some cells of a measured table; tests look at the others.
Used as the tuner's prior, and to order candidates; never to decide what is right.
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
    """How kernels of one kind run. overlap: the share of the shorter of products and pointwise work that hides under
    the longer where warpgroups are many; alone: the same where there is one. step: clocks a step for barriers and
    control. issue: clocks a warpgroup spends for each of its rounds of 16 bytes a thread copied. latency: clocks a step
    waits for its tiles when one stage is in flight, shared by more. ahead: stages in flight over those declared.
    shared_rows: row tiles in shared memory.
    """

    name: str
    overlap: float
    alone: float
    step: float
    issue: float
    latency: float
    ahead: int
    shared_rows: int


EXECUTORS = {
    e.name: e
    for e in (
        Executor("ptr", overlap=0.57, alone=0.40, step=0, issue=2, latency=920, ahead=-1, shared_rows=1),
        Executor("tma", overlap=0.57, alone=0.40, step=34, issue=0, latency=920, ahead=-1, shared_rows=1),
        Executor("ws", overlap=0.73, alone=0.0, step=97, issue=0, latency=0, ahead=0, shared_rows=2),
        Executor("gluon", overlap=0.44, alone=0.5, step=72, issue=0, latency=0, ahead=0, shared_rows=1),
    )
}
TENSOR_EFFICIENCY = 0.8  # of the peak rate: measured with a large product of random numbers
WORKING_REGISTERS = 48  # of a thread, beside tiles: addresses, row states, what the compiler keeps
FILL, DRAIN = 1500, 1500  # clocks of a block before its first step, and after its last


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


@lru_cache(maxsize=4096)
def problem_of(kernel: Kernel, loop: Loop, configuration: Configuration, machine: Machine = H200) -> Problem:
    """The problem of one warpgroup's share of a block."""
    rows = max(16, configuration.rows // configuration.warpgroups)
    return loop_problem(kernel, loop, Tile(rows, configuration.columns), machine)


def shared_bytes(problem: Problem, c: Configuration) -> int:
    """Shared memory of a block: row tiles and the stages of what is loaded each step."""
    executor = EXECUTORS[c.executor]
    rings = sum(o.bytes * (c.warpgroups if o.private else 1) for o in problem.operations if o.streaming)
    return problem.resident * c.warpgroups * executor.shared_rows * c.queries + rings * c.stages


def registers(problem: Problem) -> int:
    """Registers of a thread: carried totals, and the largest tiles that live at once."""
    carried = sum(v.registers for v in problem.values if v.carried)
    return carried + sum(v.registers for v in problem.values if not v.carried) + WORKING_REGISTERS


def resident_blocks(problem: Problem, c: Configuration, machine: Machine = H200) -> int:
    """Blocks that one multiprocessor runs at once; 0 if not even one fits."""
    shared = shared_bytes(problem, c)
    if shared > machine.shared_bytes:
        return 0
    if c.executor in ("ws", "gluon"):
        return 1
    threads = c.warps * 32
    by_registers = 65536 // (min(255, -(-registers(problem) // 8) * 8) * threads)
    return max(1, min(by_registers, (machine.shared_bytes + 1024) // (shared + 1024), 2048 // threads))


def step_clocks(problem: Problem, c: Configuration, blocks: int, machine: Machine = H200) -> float:
    """Clocks of one step of all `blocks` resident blocks."""
    executor, groups = EXECUTORS[c.executor], c.warpgroups * blocks
    work = problem.work()
    copied = sum(o.bytes * (1 if o.private else 1 / c.warpgroups) for o in problem.operations if o.streaming)
    tensor = work.get("tensor", 0) / TENSOR_EFFICIENCY
    issue = executor.issue * copied / (machine.warpgroup * 16)
    pointwise = work.get("special", 0) + work.get("fma", 0) + issue + executor.step
    overlap = executor.alone + (executor.overlap - executor.alone) * (1 - 1 / groups)
    busy = groups * (max(tensor, pointwise) + (1 - overlap) * min(tensor, pointwise))
    exposed = executor.latency / max(1, c.stages + executor.ahead) / blocks  # other blocks work meanwhile
    return max(busy, work.get("copy", 0) * blocks) + exposed


def steps(kernel: Kernel, loop: Loop, c: Configuration, sizes=None) -> list[int]:
    """Tiles of the loop that run for each tile of rows; all of them where a limit is not known before the run."""
    sizes = sizes or {}
    length = int(sizes.get(loop.dim.size, loop.dim.size))
    count = int(sizes.get(kernel.rows.size, kernel.rows.size)) if kernel.rows else 1
    last, first = np.full(count, length), np.zeros(count, dtype=int)
    for limits, ends, narrow in ((loop.uppers, last, np.minimum), (loop.lowers, first, np.maximum)):
        for limit in limits:
            if limit.bound.dims <= {kernel.rows} and not any(n.op == "load" for n in subterms(limit.bound)):
                bound = evaluate(limit.bound, {}, (kernel.rows,), sizes)
                narrow(ends, np.broadcast_to(bound, ends.shape).astype(int), out=ends)
    tiles = range(0, count, c.rows)
    return [
        max(0, -(-int(last[t : t + c.rows].max()) // c.columns) - int(first[t : t + c.rows].min()) // c.columns)
        for t in tiles
    ]


def seconds(kernel: Kernel, c: Configuration, sizes=None, machine: Machine = H200) -> float:
    """Predicted time of one launch; infinite if a block does not fit on a multiprocessor."""
    sizes = sizes or {}
    points = prod(int(sizes.get(d.size, d.size)) for d in kernel.grid)
    clocks = 0.0
    for loop in kernel.loops:
        problem = problem_of(kernel, loop, c, machine)
        blocks = resident_blocks(problem, c, machine)
        if not blocks:
            return inf
        per_block = steps(kernel, loop, c, sizes)
        step = step_clocks(problem, c, blocks, machine)
        total = points * sum(n * step + FILL + DRAIN for n in per_block) / blocks
        clocks += _with_last_wave(total, points * len(per_block), blocks * machine.processors, c, machine)
    return clocks / machine.clock


def _with_last_wave(total: float, blocks: int, places: int, c: Configuration, machine: Machine) -> float:
    """Clocks of the whole grid: the mean work of a multiprocessor, and what stands idle while the last blocks end."""
    waves = blocks / places
    idle = ceil(waves) / waves if waves > 0 else 1.0
    return total / machine.processors * (1 + (idle - 1) * 0.5 if waves > 1 else idle)
