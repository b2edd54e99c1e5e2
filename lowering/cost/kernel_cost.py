"""The time of one launch of a kernel with a schedule: a roofline over memory, caches and the units of multiprocessors.

A schedule is what an executor is given: places of a tile, stages, warps (TritonConfig, HopperConfig). Loops take the
time that schedule/kernel_time.py predicts; memory is what cost/traffic.py counts. What takes most is the bound, and
what is close to it adds to it. The time of a kernel whose tiles do not fit is infinite. An estimate ranks choices, and
never decides what is right. Example: `estimate(kernel, TritonConfig(128, 64, 8, 3)).bound` is "matrix products".
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from math import ceil, inf, prod

from ...egraph.terms.sizes import resolve
from ..hopper.config import HopperConfig
from ..hopper.kernel_form import bind, entered, sent
from ..hopper.shared_size import shared_bytes as shared_bytes_of
from ..launch.split_loops import program_count
from ..plan.device import H200, HopperGpu
from ..plan.kernel_config import TritonConfig
from ..plan.queries import states_of
from ..plan.records import Kernel, Loop
from ..schedule import kernel_time
from ..schedule.kernel_time import Config, Sizes
from ..schedule.pipeline_time import Demand, corner
from . import work
from .traffic import ProgramTiles, Traffic, loads, traffic

THREADS_OF_A_SHORT_PROGRAM = 256  # of a kernel without loops
STEPS, ENDS, IDLE = "steps of the loop", "beginnings and ends of work items", "idle when the last items run"
BESIDE, WAITS, LAUNCH = "outside of the loop", "waits for memory", "launch"
UNITS = {"tensor": "matrix products", "special": "special functions", "fma": "multiply-adds"}


@dataclass(frozen=True)
class Timing:
    """Constants of a launch, fitted by bench/cost.py to the suites.

    corner: how the times of memory and of multiprocessors add up, as an exponent. launch: seconds of a launch by
    itself. next_launch: of each further one, which is launched while another runs; an H100 takes 1.4 us for an empty
    kernel. pointers: the share of the memory's rate at which a warp-specialised kernel moves tiles through pointers
    behind its loop, which nothing else in the program hides.
    """

    corner: float = 2.1
    launch: float = 7.3e-6
    next_launch: float = 2e-6
    pointers: float = 0.25


TIMING = Timing()


@dataclass(frozen=True)
class Estimate:
    """Seconds of a launch. parts: by bound, what it takes alone at peak rates. traffic: bytes of each tensor. spent: by
    what they are for, all of the seconds.

    why: of a kernel that cannot run, what it lacks; its seconds are infinite.
    """

    seconds: float
    parts: Mapping[str, float] = field(default_factory=dict)
    traffic: tuple[Traffic, ...] = ()
    why: str = ""
    spent: Mapping[str, float] = field(default_factory=dict)

    @property
    def bound(self) -> str:
        """What takes most: "memory", "cache", one of the units, or "launch"."""
        return max(self.parts, key=lambda name: self.parts[name]) if self.parts else ""


def estimate(
    kernel: Kernel,
    config: Config,
    sizes: Sizes | None = None,
    device: HopperGpu = H200,
    kept: float = 1.0,
) -> Estimate:
    """The time of one launch in seconds. kept: the share of a loop's tiles that run where a block map decides which.

    Raises NotPlannable where a dim that is held whole has no known size.
    """
    sizes = sizes or {}
    demands = [demand_of(kernel, loop, config, sizes, device, kept) for loop in kernel.loops]
    if why := next((_lack(kernel, config) for d in demands if not d.resident), ""):
        return Estimate(inf, why=why)
    launch = _launch(kernel, config, sizes, device, demands)
    moved = tuple(traffic(launch, device))
    outside = work.clocks(launch, device)
    parts = {
        "memory": sum(t.memory for t in moved) / device.memory_bytes,
        "cache": sum(t.programs for t in moved) / (device.copy_bytes * device.multiprocessors * device.clock),
        **_units(outside, demands, config, device),
        "launch": TIMING.launch,
    }
    loops = [kernel_time.loop_spent(d, config, device) for d in demands]
    steps, ends, idle = (sum(found[n] for found in loops) for n in range(3))
    beside = sum(outside.values()) / _busy(launch, device) / device.clock
    beside += _waiting(launch, moved, device) if not demands else _behind_the_loop(kernel, config, moved, device)
    computing = steps + ends + idle + beside
    # A loop's predicted time contains its reads from the L2, so the L2 bounds the sum and adds nothing to it.
    total = max(corner(TIMING.corner, computing, parts["memory"]), parts["cache"])
    spent = {STEPS: steps, ENDS: ends, IDLE: idle, BESIDE: beside, WAITS: total - computing, LAUNCH: TIMING.launch}
    return Estimate(TIMING.launch + total, parts, moved, spent=spent)


def _launch(kernel: Kernel, c: Config, sizes: Sizes, device: HopperGpu, demands: list[Demand]) -> ProgramTiles:
    # A size may be 0 with nominal sizes of symbols, as 128 // 1024 is: such a launch is counted as one program.
    programs = max(1, program_count(kernel, c.row_tile, c.loop_tile, sizes))
    together = min((d.resident for d in demands), default=max(1, device.threads // THREADS_OF_A_SHORT_PROGRAM))
    steps = tuple(d.steps for d in demands)
    return ProgramTiles(kernel, sizes, c.row_tile, c.loop_tile, steps, programs, device.multiprocessors * together)


def _busy(launch: ProgramTiles, device: HopperGpu) -> float:
    """Multiprocessors that work all the time, in waves of programs."""
    waves = ceil(launch.programs / launch.together)
    return device.multiprocessors * max(1e-9, launch.programs / (waves * launch.together))


def demand_of(
    kernel: Kernel, loop: Loop, c: Config, sizes: Sizes, device: HopperGpu = H200, kept: float = 1.0
) -> Demand:
    """What a loop asks for, of the tiles that run."""
    found = kernel_time.demand(kernel, loop, c, sizes, device, refined=True)
    if isinstance(c, HopperConfig):
        plain = kernel_time.demand(kernel, loop, replace(c, emulated_eighths=0), sizes, device, refined=True)
        # The fitted factor on multiply-adds stands for waits. Instructions of an emulation do not wait.
        emulated = (found.fma - plain.fma) / kernel_time.HOPPER_TIMING.fma
        found = replace(found, fma=plain.fma + max(0.0, emulated), resident=_residents(kernel, c, found))
    elif not found.resident:
        found = _rereading(kernel, loop, c, found, device)
    tiles = prod(-(-resolve(d.size, sizes) // c.loop_tile) for d in kernel.columns)
    found = replace(found, steps=found.steps * tiles, blocks=found.blocks * tiles)
    if loop.part is not None:
        parts = resolve(loop.part.size, sizes)
        found = replace(found, steps=ceil(found.steps / parts), longest=ceil(found.longest / parts))
    if loop.map is not None and kept < 1:
        steps = max(found.blocks, ceil(found.steps * kept))
        found = replace(found, steps=steps, longest=min(found.longest, ceil(steps / found.blocks) + 1))
    return found


def _rereading(kernel: Kernel, loop: Loop, c: TritonConfig, found: Demand, device: HopperGpu) -> Demand:
    """A plain kernel whose tiles of rows do not fit beside those of its loop reads them again at every step."""
    problem = kernel_time.problem_of(kernel, loop, c, device, refined=True)
    if kernel_time.shared_bytes(replace(problem, resident=0), replace(c, stages=1)) > device.shared_bytes:
        return found
    return replace(found, resident=1, copy=found.copy + found.rows / device.copy_bytes)


def _residents(kernel: Kernel, c: HopperConfig, found: Demand) -> int:
    """Programs of a warp-specialised kernel on a multiprocessor; 0 if it does not fit. Known exactly where it binds."""
    binding = bind(kernel)
    if isinstance(binding, str):
        return found.resident
    fits = shared_bytes_of(binding, binding.overlays, c) <= c.shared - H200.barrier_bytes // c.residents
    return c.residents if fits and c.terminates else 0


def _lack(kernel: Kernel, c: Config) -> str:
    return f"{kernel.name} does not fit with {c}: it needs more shared memory or registers than a program may have"


def _waiting(launch: ProgramTiles, moved: tuple[Traffic, ...], device: HopperGpu) -> float:
    """Seconds that programs without a loop wait for what they load, as many at a time as have room for it."""
    each = sum(t.programs for t in moved) / launch.programs
    together = min(launch.together // device.multiprocessors, max(1, int(device.shared_bytes / each)))
    timing = kernel_time.TRITON_TIMING
    clocks = launch.programs * (timing.fixed + timing.latency * timing.single) / together
    return clocks / device.multiprocessors / device.clock


def _behind_the_loop(kernel: Kernel, c: Config, moved: tuple[Traffic, ...], device: HopperGpu) -> float:
    """Seconds that a warp-specialised kernel waits for what it reads and writes through pointers behind its loop."""
    if not isinstance(c, HopperConfig) or isinstance(binding := bind(kernel), str):
        return 0.0
    exits = sent(binding)  # in half precision; through pointers these take little longer than through shared memory
    copied = {one.tensor.name for pair in entered(binding, exits, c.send) for one in pair}
    copied |= {one.tensor.name for one in (*binding.row_operands, *binding.streams, *exits)}
    stores = kernel.written_by(None)
    read = {node.attrs[0].name for node in loads([store.term for store in stores], states_of(kernel))}
    # What leaves through pointers anyway is counted with the items' ends, and nothing waits for it.
    written = set() if c.value_warpgroups else {store.output.name for store in stores}
    mine = (read | written) - copied
    waited = sum(t.memory for t in moved if t.tensor in mine)
    return waited / (TIMING.pointers * device.memory_bytes)


def _units(outside: Mapping[str, float], demands: list[Demand], c: Config, device: HopperGpu) -> dict[str, float]:
    """Seconds of each unit alone at its peak rate, all multiprocessors busy. outside: clocks of what no loop does."""
    total = {}
    for unit, name in UNITS.items():
        inside = sum(d.steps * c.row_groups * getattr(d, unit) * d.share for d in demands)
        total[name] = (inside + outside[unit]) / device.multiprocessors / device.clock
    return total
