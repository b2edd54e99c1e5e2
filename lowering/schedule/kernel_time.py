"""The time of a kernel for a configuration, before anything is compiled: work over rates, what hides under what, waves.

A step is one tile of the loop on every warpgroup of one multiprocessor. The constants have a physical meaning and were
fitted by bench/fit_prediction.py to a measured table; tests leave out each problem in turn. A prediction orders
candidates, and never decides what is right. Example: `seconds(kernel, TritonConfig(128, 64, 8, 3))`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from functools import lru_cache
from math import ceil, inf, prod

import numpy as np

from ...egraph.terms.evaluate import evaluate
from ...egraph.terms.sizes import resolve
from ...egraph.terms.traversal import subterms
from ..analysis.dim_roles import leading_dims
from ..hopper.approximations import RECIPROCAL
from ..hopper.config import EIGHTHS, HopperConfig
from ..hopper.shared_size import staged
from ..plan.device import COSTS, H200, NARROW, HopperGpu
from ..plan.kernel_config import TritonConfig
from ..plan.queries import nodes
from ..plan.records import Kernel, Limit, Loop
from . import pipeline_time
from .from_loop import Counting, Tile, loop_problem, state_of
from .pipeline_time import Demand, HopperTiming
from .problem import Problem

Config = TritonConfig | HopperConfig
Sizes = Mapping[str, int]


@dataclass(frozen=True)
class TritonTiming:
    """Constants of plain Triton kernels, in clocks of a multiprocessor where nothing else is said.

    tensor: time of products over that at peak rate. fma: the same of multiply-adds. two, more: the share of the shorter
    of products and pointwise work that hides under the longer, for two and for more warpgroups. latency: what a step
    waits for tiles with one stage in flight; more stages share it. single: the factor on latency with no tile loaded
    ahead. fixed: of a block. bytes: for each byte of its row tiles. spill: for each register that a thread lacks.
    exchange: for each KiB of weights that cross between warpgroups which share rows. tail: the share of the last wave's
    idle time that is lost. launch: seconds.
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


TRITON_TIMING = TritonTiming(
    tensor=1.43, fma=0.767, two=0.376, more=0.224, latency=1025, single=1.95, fixed=2850, bytes=0.129, spill=66,
    exchange=52, tail=1, launch=1e-5,
)  # fmt: skip
HOPPER_TIMING = HopperTiming()
PRODUCT_REGISTERS = 30  # registers that one product needs beside its accumulator
HOPPER_REGISTERS = 20  # of a thread of a warp-specialised kernel, beside tiles: row states, what the compiler keeps
TRITON_REGISTERS = 28  # of a thread of a plain kernel, beside tiles
GUARD_REGISTERS = 20  # more of them under a guard
SINGLE_STAGE_REGISTERS = 20  # more of them with one tile in flight
BYTES_OF_A_COPY, REGISTERS_OF_AN_ADDRESS = 16, 2  # what a thread copies at once, and what its address takes
SHORT_PRODUCT = 2.0  # time of a product by instructions for 16 rows over that by Hopper's own for 64
MIN_ROWS_OF_A_TILE = 16  # the fewest rows that a matrix product computes


def executor_of(config: Config) -> str:
    """The name of the executor that runs a kernel with these settings: "triton" or "gluon"."""
    return "gluon" if isinstance(config, HopperConfig) else "triton"


def problem_of(
    kernel: Kernel, loop: Loop, c: Config, device: HopperGpu = H200, refined: bool = False
) -> Problem:
    """The problem of one warpgroup's share of a block. refined: as in `loop_problem`."""
    least = 1 if _shares_out_batches(kernel) else MIN_ROWS_OF_A_TILE
    tile = Tile(max(least, c.row_tile // c.row_groups), c.loop_tile)
    eighths = c.emulated_eighths if isinstance(c, HopperConfig) else None
    return _problem(kernel, loop, tile, device, eighths, refined)


@lru_cache(maxsize=1024)
def _shares_out_batches(kernel: Kernel) -> bool:
    """Whether warps share out products of matrices among them, instead of the rows of one: tiles have a leading dim."""
    return bool(leading_dims(kernel, nodes(kernel)))


@lru_cache(maxsize=1024)
def _problem(
    kernel: Kernel, loop: Loop, tile: Tile, device: HopperGpu, emulated_eighths: int | None, refined: bool
) -> Problem:
    """emulated_eighths: as in a HopperConfig; None for a plain kernel."""
    if emulated_eighths is None:
        return loop_problem(kernel, loop, tile, device, counting=Counting(refined=refined))
    counting = Counting(True, emulated_eighths / EIGHTHS, refined)
    return loop_problem(kernel, loop, tile, device, costs_of(kernel, emulated_eighths), counting)


def costs_of(kernel: Kernel, emulated_eighths: int = 0) -> dict[str, tuple[float, float]]:
    """What operations of a warp-specialised kernel cost; emulated_eighths: as in its HopperConfig."""
    floating = {t.dtype for t in kernel.inputs if "float" in t.dtype}
    costs = NARROW if floating == {"bfloat16"} else COSTS
    if not emulated_eighths:
        return costs
    (fma, special), share = costs["sigmoid"], emulated_eighths / EIGHTHS
    return {**costs, "sigmoid": (fma + share * RECIPROCAL.instructions, special - share)}


def shared_bytes(problem: Problem, c: Config) -> int:
    """Shared memory of a block: row tiles and the stages of what is loaded each step. Barriers are not counted."""
    rings = sum(o.bytes * (c.row_groups if o.private else 1) for o in problem.operations if o.streaming)
    buffers = c.row_buffers if isinstance(c, HopperConfig) else 1
    return problem.resident * c.row_groups * buffers + rings * c.stages


def registers(
    kernel: Kernel, loop: Loop, c: Config, device: HopperGpu = H200, refined: bool = False
) -> int:
    """Registers of a thread: carried totals, the largest tiles that live at once, and what goes with them.

    Held to what the assembler says of every kernel of the measured table. Plain kernels make weights where scores were,
    and hold addresses of what they copy.
    """
    problem = problem_of(kernel, loop, c, device, refined)
    carried = sum(v.registers for v in problem.values if v.carried)
    if isinstance(c, HopperConfig):
        return carried // (1 + c.value_warpgroups) + _largest_state(problem) + HOPPER_REGISTERS
    copied = sum(o.bytes for o in problem.operations if o.streaming)
    addresses = ceil(REGISTERS_OF_AN_ADDRESS * copied / BYTES_OF_A_COPY / (32 * c.warps))
    largest = max((v.registers for v in problem.values if not v.carried), default=0)
    beside = GUARD_REGISTERS * (loop.guard is not None) + SINGLE_STAGE_REGISTERS * (c.stages == 1)
    return carried + largest + addresses + TRITON_REGISTERS + beside


def _largest_state(problem: Problem) -> int:
    """Registers of the tiles that live at once: those of no state, and of the largest, since states take turns."""
    together: dict[str | None, int] = {}
    for value in (v for v in problem.values if not v.carried):
        together[state_of(value)] = together.get(state_of(value), 0) + value.registers
    shared = together.pop(None, 0)
    return shared + max(together.values(), default=0)


def granted(c: Config, device: HopperGpu = H200) -> int:
    """Registers that a thread may have."""
    return c.registers[1] if isinstance(c, HopperConfig) else device.thread_registers


def demand(
    kernel: Kernel,
    loop: Loop,
    c: Config,
    sizes: Sizes | None = None,
    device: HopperGpu = H200,
    refined: bool = False,
) -> Demand:
    """Everything about a loop that a prediction needs."""
    problem, sizes = problem_of(kernel, loop, c, device, refined), sizes or {}
    work, held = problem.work(), registers(kernel, loop, c, device, refined)
    points = prod(resolve(d.size, sizes) for d in kernel.grid)
    taken = steps(kernel, loop, c, sizes)
    share = c.row_tile / c.row_groups
    return Demand(
        tensor=work.get("tensor", 0) * _padding(share, c, device),
        special=work.get("special", 0),
        fma=work.get("fma", 0),
        copy=work.get("copy", 0),
        weights=2 * share * c.loop_tile if share < device.product_rows else 0,
        rows=problem.resident * c.row_groups,
        lacking=max(0, held - granted(c, device)),
        resident=_resident(problem, held, c, device),
        blocks=points * len(taken),
        steps=points * int(taken.sum()),
        longest=int(taken.max(initial=0)),
        share=_share(kernel, loop, c, sizes, int(taken.sum())),
    )


def _padding(rows: float, c: Config, device: HopperGpu) -> float:
    """The factor on products of tiles with fewer rows than Hopper's instruction. Triton takes an older one then."""
    factor = max(1.0, device.product_rows / rows)
    return factor if isinstance(c, HopperConfig) else min(factor, SHORT_PRODUCT)


def _share(kernel: Kernel, loop: Loop, c: Config, sizes: Sizes, taken: int) -> float:
    """The share of tiles that a warpgroup computes: it hands back, unread, what only the rows of others need."""
    if not isinstance(c, HopperConfig) or c.consumers == 1 or not taken or not loop.limits:
        return 1.0
    own = int(steps(kernel, loop, replace(c, consumers=1), sizes).sum())
    return min(1.0, own / c.consumers / taken)


def _resident(problem: Problem, held: int, c: Config, device: HopperGpu) -> int:
    """Blocks at once; 0 if not even one can run."""
    if isinstance(c, HopperConfig):
        return c.residents if _runs(problem, c, device) else 0
    shared = shared_bytes(problem, c)
    if shared > device.shared_bytes:
        return 0
    threads = c.warps * 32
    by_registers = device.registers // (min(device.thread_registers + 1, -(-held // 8) * 8) * threads)
    by_shared = (device.shared_bytes + device.reserved_bytes) // (shared + device.reserved_bytes)
    return max(1, min(by_registers, by_shared, device.threads // threads))


def _runs(problem: Problem, c: HopperConfig, device: HopperGpu) -> bool:
    """Whether a warp-specialised kernel fits in shared memory and registers, and ends."""
    widest = max((v.registers for v in problem.values), default=0) // (1 + c.value_warpgroups)
    stored = max((v.registers for v in problem.values if v.carried), default=0)
    shared = shared_bytes(problem, c) + 2 * c.row_tile * staged(2 * stored, c.send)
    fits = shared <= c.shared - device.barrier_bytes // c.residents
    return fits and widest + PRODUCT_REGISTERS <= c.registers[0] and c.terminates


def step_clocks(d: Demand, c: TritonConfig) -> float:
    """Clocks of one step of all resident blocks of a plain kernel."""
    timing, groups = TRITON_TIMING, c.warpgroups * d.resident
    tensor = d.tensor * timing.tensor
    pointwise = d.special + d.fma * timing.fma + timing.spill * d.lacking + timing.exchange * d.weights / 1024
    overlap = 0.0 if groups == 1 else timing.two if groups == 2 else timing.more
    busy = groups * (max(tensor, pointwise) + (1 - overlap) * min(tensor, pointwise))
    waited = timing.latency / (c.stages - 1) if c.stages > 1 else timing.latency * timing.single
    return max(busy, d.copy * d.resident) + waited / d.resident  # other blocks work meanwhile


def loop_seconds(d: Demand, c: Config, device: HopperGpu = H200, interval: int = 0) -> float:
    """Predicted time of one loop's launch; infinite if a block cannot run on a multiprocessor.

    interval: a step of a warp-specialised kernel takes at least so many clocks.
    """
    launch = HOPPER_TIMING.launch if isinstance(c, HopperConfig) and d.resident and d.blocks else 0.0
    return sum(loop_spent(d, c, device, interval)) + launch


def loop_spent(
    d: Demand, c: Config, device: HopperGpu = H200, interval: int = 0
) -> tuple[float, float, float]:
    """Predicted seconds of one loop: of steps, of what items add to them, and idle ones at its end."""
    if not d.resident or not d.blocks:
        return (inf if not d.resident else 0.0, 0.0, 0.0)
    if isinstance(c, HopperConfig):
        return pipeline_time.spent(HOPPER_TIMING, d, c, device, interval)
    timing, d = TRITON_TIMING, together(d, device)
    scale = d.resident * device.multiprocessors * device.clock
    steps, ends = d.steps * step_clocks(d, c) / scale, d.blocks * (timing.fixed + timing.bytes * d.rows) / scale
    return steps, ends, (steps + ends) * (_idle(d, timing, device) - 1)


def together(d: Demand, device: HopperGpu = H200) -> Demand:
    """The demand with as many blocks at once as there are."""
    return replace(d, resident=min(d.resident, ceil(d.blocks / device.multiprocessors)))


def _idle(d: Demand, timing: TritonTiming, device: HopperGpu) -> float:
    """The factor by which idle time at the end of the last blocks makes a launch longer."""
    waves = d.blocks / (d.resident * device.multiprocessors)
    lost = ceil(waves) / waves - 1
    return 1 + lost * (timing.tail if waves > 1 else 1.0)


@lru_cache(maxsize=4096)
def _steps(kernel: Kernel, loop: Loop, rows: int, columns: int, sizes: tuple) -> np.ndarray:
    known = dict(sizes)
    length, count = resolve(loop.dim.size, known), resolve(kernel.rows.size, known) if kernel.rows else 1
    starts, most = np.arange(0, count, rows), -(-length // columns)
    spans = []
    for one in loop.ranges:
        last = _bounds(one.uppers, kernel, known, np.minimum)
        first = _bounds(one.lowers, kernel, known, np.maximum)
        ends = np.full(len(starts), length) if last is None else np.maximum.reduceat(np.minimum(last, length), starts)
        begins = np.zeros(len(starts), int) if first is None else np.minimum.reduceat(np.maximum(first, 0), starts)
        spans.append((begins // columns, np.clip(-(-ends // columns), 0, most)))
    if len(spans) == 1:
        ((begins, ends),) = spans
        run = np.maximum(ends - begins, 0)
    else:
        tiles, each = np.arange(most), [(begins[:, None], ends[:, None]) for begins, ends in spans]
        run = np.any([(begins <= tiles) & (tiles < ends) for begins, ends in each], axis=0).sum(1)
    return run * prod(resolve(d.size, known) for d in loop.outer)


def _bounds(
    limits: Iterable[Limit], kernel: Kernel, known: Mapping[str, int], narrow: np.ufunc
) -> np.ndarray | None:
    """For each row, the limit that these make together; None where none is known before the run."""
    found: np.ndarray | None = None
    for limit in limits:
        if limit.bound.dims <= {kernel.rows} and not any(n.op == "load" for n in subterms(limit.bound)):
            bound = evaluate(limit.bound, {}, (kernel.rows,), known)
            count = resolve(kernel.rows.size, known) if kernel.rows else 1
            bound = np.broadcast_to(bound, (count,)).astype(int)
            found = bound if found is None else narrow(found, bound)
    return found


def steps(kernel: Kernel, loop: Loop, c: Config, sizes: Sizes | None = None) -> np.ndarray:
    """Tiles of the loop that run for each tile of rows; all of them where a limit is not known before the run."""
    columns = c.loop_tile if loop.tile else 1
    return _steps(kernel, loop, c.row_tile, columns, tuple(sorted((sizes or {}).items())))


def seconds(
    kernel: Kernel, c: Config, sizes: Sizes | None = None, device: HopperGpu = H200, interval: int = 0
) -> float:
    """Predicted time of one launch; infinite if a block cannot run on a multiprocessor."""
    loops = (loop_seconds(demand(kernel, loop, c, sizes, device), c, device, interval) for loop in kernel.loops)
    return sum(loops) + (0.0 if isinstance(c, HopperConfig) else TRITON_TIMING.launch)
