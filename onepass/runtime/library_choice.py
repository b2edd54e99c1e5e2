"""Rivals of a plan: torch's own kernels for regions of their form, on a CPU compiled tiles, the original calls where
values are small, and these as Inductor compiles them, unless it is known that the plan takes less time.

Where the calls won, the next graph with such a region keeps them, so that Inductor compiles them with the rest.

A rival is compared with the plan's results and timed against the plan once for each class of sizes (powers of two).
The faster one is kept, in the process and on disk. Nothing is measured while a graph is captured. A plan that must be
deterministic has no rivals: which one is faster is chance.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Collection, Mapping
from contextvars import ContextVar
from functools import lru_cache
from math import inf
from types import MappingProxyType

import torch

from ..compiler import library_kernels
from ..compiler.compiled_region import Fused
from ..compiler.traffic import least_bytes, made_bytes
from ..graph.program import Program
from ..process_state import registered
from . import executors
from .measurements import Measured
from .region_call import RegionCall, Tensors

MAX_BYTES_OF_A_VALUE = {"cpu": 256 << 20, "cuda": 32 << 20}  # that the original calls may make to be tried
MAX_SHARE_OF_TIME = 0.9  # a rival is taken if it needs at most this share of the plan's time
LEAST_SHARE_OF_CALLS = 1 / 3  # of the time of the calls one by one, that they take on a CPU as Inductor compiles them
SECONDS_OF_A_MEASUREMENT = 0.03
MIN_RUNS, MAX_RUNS = 3, 10  # of one measurement
LONG_RUN = 0.25  # seconds of a run that is long enough to be the only one
LEAST_SECONDS_TO_COMPILE_TILES = 0.01  # of a plan's run, whose tiles take seconds to compile
SHORT_RUN = 0.01  # seconds of the original calls, of which a plan may take any number of times as long
MOST_TIMES = 4.0  # the original calls' time after which a plan's first run on a CPU is given up
SECONDS_AHEAD, MOST_AHEAD = 5e-4, 0.05  # that a GPU waits before a measured run
CLOCKS_PER_SECOND = 2e9  # of a GPU, about
BYTES_PER_SECOND = 8e12  # of a GPU whose memory is not known: none has a faster one
SHARE_OF_MEMORY = 0.5  # of what is free, that a training step may take to be tried
CALLERS: set[int] = registered(set(), "runners")  # threads that call graphs: while one compiles, others fail in torch
LEAVES = ContextVar("LEAVES", default=True)  # whether regions may be left to Inductor
LEFT_TO_INDUCTOR: list[str] = registered([], "runners")  # regions whose calls, as Inductor compiles them, won here


def rivals(found: Fused, tensors: Tensors, call: RegionCall) -> dict[str, executors.Prepare]:
    """By name, what prepares each rival for a call, as executors.EXECUTORS does."""
    options, device = found.options, tensors[0].device.type
    if not options.libraries or options.executor != "auto" or call.deterministic:
        return {}
    known: dict[str, executors.Prepare] = {}
    if found.form is not None:
        for kernel in library_kernels.kernels(found.form, device, found.program.output_metas[0].dtype):
            known[kernel.name] = _library(kernel)
    if not known and device == "cpu" and _may_compile(found):
        rounds = executors.rounds_products(found.program)
        known |= {executors.ROUNDING_TILES: executors.rounding_tiles} if rounds else {}
        known[executors.COMPILED_TILES] = executors.compiled_tiles
    return known if options.prefer == "memory" else known | _originals(found, call, device)


def _originals(found: Fused, call: RegionCall, device: str) -> dict[str, executors.Prepare]:
    """The original calls, which may store more than a plan, as they are and compiled.

    They read every entry of a table; a plan may leave out those behind a length, which are then no addresses. On a CPU
    they raise an error for such an entry, and the plan runs. Inductor's code may end the process there, as its threads
    raise the error, and a GPU could not be used any more.
    """
    known: dict[str, executors.Prepare] = {}
    hides = executors.hides_entries(found)
    if device != "cpu" and hides:
        return known
    if max(made_bytes(found.program, call.sizes), default=0) <= MAX_BYTES_OF_A_VALUE.get(device, 0):
        known[executors.ORIGINAL] = executors.original
    is_worth_it = device == "cuda" or executors.ORIGINAL in known
    if is_worth_it and not hides and _may_compile(found) and not found.program.draws:
        known[executors.COMPILED] = executors.compiled
    return known


def _may_compile(found: Fused) -> bool:
    """Whether Inductor may compile for a region now: it has fixed sizes, and no other thread calls graphs."""
    return found.options.inner == "inductor" and not found.program.symbols and len(CALLERS) <= 1


def least_seconds(found: Fused, names: Collection[str], tensors: Tensors, call: RegionCall) -> dict[str, float]:
    """Seconds that the rivals of these names take at least, for those that take long to try: moving their bytes."""
    if executors.COMPILED not in names:
        return {}
    moved = least_bytes(found.program, call.sizes)
    return {executors.COMPILED: moved / _bytes_per_second(tensors[0].device)}


def takes_too_long(least: float | None, taken: float | None) -> bool:
    """Whether a rival cannot win that takes this time at least, None if that is not known. taken: by the plan; None
    if that is not known, and the rival takes long to try."""
    return least is not None and (taken is None or least > MAX_SHARE_OF_TIME * taken)


@lru_cache
def _bytes_per_second(device: torch.device) -> float:
    """What the memory of a GPU can move: twice in each clock, over its whole bus."""
    known = torch.cuda.get_device_properties(device) if device.type == "cuda" else None
    kilohertz, bits = (getattr(known, name, 0) for name in ("memory_clock_rate", "memory_bus_width"))
    return 2e3 * kilohertz * bits / 8 or BYTES_PER_SECOND


def _library(kernel: library_kernels.LibraryKernel) -> executors.Prepare:
    def prepared(found: Fused, tensors: Tensors, call: RegionCall) -> executors.Run:
        run = library_kernels.prepare(found.form, kernel, found.names, call.sizes, tensors)
        return executors.laid_out(lambda given: (run(given),), call)

    return prepared


def share_of_compiled(found: Fused) -> float | None:
    """The share of the plan's time that the calls took as Inductor compiles them, where they were measured to be the
    fastest for the region's fixed sizes, and would run now."""
    options, device = found.options, torch.device(found.program.inputs[0].meta.device)
    if not LEAVES.get() or torch.are_deterministic_algorithms_enabled():
        return None
    if not options.libraries or options.executor != "auto":
        return None
    name, part = Measured.read(found.key).choices.get(size_class(device, {}), ("", 1.0))
    return part if name == executors.COMPILED else None


def size_class(device: torch.device, sizes: dict[str, int]) -> str:
    """The device, and every symbolic size rounded up to a power of two: one decision for all of them."""
    name = torch.cuda.get_device_name(device) if device.type == "cuda" else device.type
    return " ".join([name, *(f"{s}:{(n - 1).bit_length()}" for s, n in sorted(sizes.items()))])


@torch.no_grad()
def fastest(
    own: executors.Run,
    others: dict[str, executors.Run],
    tensors: Tensors,
    wrong: Callable,
    least: Mapping[str, float] = MappingProxyType({}),
    known: float = 0.0,
) -> tuple[str, float]:
    """The rival to take and its part of the plan's time; "" and 1 if none is worth it.

    wrong: says of a rival's name and results why they cannot be used, or None. least: seconds that a rival takes at
    least, by name; it is not tried where that is too long. known: seconds of a run of the plan, 0 if none was timed.
    Raises what the original calls raise for an index out of range, which the program itself does.
    """
    taken = known if known > LONG_RUN or not others else seconds(own, tensors)
    times: dict[str, float] = {}
    for name, run in others.items():
        if takes_too_long(least.get(name), taken) or not _is_worth_a_try(name, times, taken, tensors):
            continue
        try:
            if wrong(name, run(tensors)) is None:
                times[name] = seconds(run, tensors, with_host=name == executors.ORIGINAL)
        except Exception as error:  # a kernel that does not take these tensors
            if is_lost(error) or (name == executors.ORIGINAL and is_of_the_program(error)):
                raise
    name = min(times, key=times.__getitem__, default="")
    part = times[name] / max(taken, 1e-9) if name else 1.0
    return (name, part) if part <= MAX_SHARE_OF_TIME else ("", 1.0)


def _is_worth_a_try(name: str, times: Mapping[str, float], taken: float, tensors: Tensors) -> bool:
    """Whether a rival can win that is only now compiled, which takes seconds on a CPU: not where the calls one by one
    take many times as long as the plan."""
    tiles = [times[one] for one in executors.TILES if one in times]
    if name in executors.TILES:
        return taken >= LEAST_SECONDS_TO_COMPILE_TILES and not tiles  # where products may be rounded, they are
    if name != executors.COMPILED or tensors[0].is_cuda or executors.ORIGINAL not in times:
        return True
    shortest = min(MAX_SHARE_OF_TIME * taken, *tiles) if tiles else MAX_SHARE_OF_TIME * taken
    return shortest > LEAST_SHARE_OF_CALLS * times[executors.ORIGINAL]


def share_of_step(taken: float, step: executors.Run, tensors: Tensors, least: float) -> float:
    """The part that another training step takes of the plans' time, at least 1 where it is not worth it.

    taken: seconds of the plans' step. least: seconds that the other one takes at least.
    """
    if takes_too_long(least, taken):
        return 1.0
    try:
        step(tensors)  # compiles
        part = seconds(step, tensors) / max(taken, 1e-9)
    except Exception as error:  # such as of memory, or of a compiler
        if is_lost(error):
            raise
        return 1.0
    return part if part <= MAX_SHARE_OF_TIME else 1.0


def takes_much_memory(program: Program, device: torch.device, sizes: Mapping[str, int]) -> bool:
    """Whether the values of a step would not fit well into a GPU's free memory: a model in training may need the rest.
    Each is taken to have a gradient."""
    free = torch.cuda.mem_get_info(device)[0] if device.type == "cuda" else inf
    return 2 * sum(made_bytes(program, sizes)) > SHARE_OF_MEMORY * free


def is_of_the_program(error: Exception) -> bool:
    """Whether the original calls failed as the program does in eager: at an index out of range, which plans clamp. An
    entry that a plan leaves out is no such index."""
    return executors.is_out_of_range(error) and not isinstance(error, executors.EntryNotRead)


def is_lost(error: Exception) -> bool:
    """Whether a kernel failed so that this process cannot use the GPU any more: no other rival can be tried."""
    return isinstance(error, torch.AcceleratorError) and not isinstance(error, torch.OutOfMemoryError)


def seconds(run: executors.Run, tensors: Tensors, with_host: bool = False) -> float:
    """The median time of a few runs; on a GPU the device's alone, or the host's where it counts and is longer.

    Call by call, the host may take several times as long as the device. Example: gradients of small values by autograd.
    """
    taken: list[float] = []
    ahead = SECONDS_AHEAD
    while len(taken) < MIN_RUNS or (sum(taken) < SECONDS_OF_A_MEASUREMENT and len(taken) < MAX_RUNS):
        device, host = _times(run, tensors, ahead)
        if host > ahead < MOST_AHEAD:  # the device has waited for the host: once more
            ahead = min(2 * host, MOST_AHEAD)
            continue
        taken.append(max(device, host) if with_host else device)
        if taken[-1] > LONG_RUN:
            break
    return statistics.median(taken)


def seconds_once(run: executors.Run, tensors: Tensors) -> float:
    """The time of one run; on a GPU the device's alone."""
    return _times(run, tensors, SECONDS_AHEAD)[0]


def _times(run: executors.Run, tensors: Tensors, ahead: float) -> tuple[float, float]:
    """The device's seconds of one run, and the host's; on a CPU they are not told apart. ahead: for which a GPU waits
    before the run, so that the host's time is not in the device's."""
    if not tensors[0].is_cuda:
        start = time.perf_counter()
        run(tensors)
        return time.perf_counter() - start, 0.0
    before, after = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    torch.cuda._sleep(int(CLOCKS_PER_SECOND * ahead))
    before.record()
    start = time.perf_counter()
    run(tensors)
    host = time.perf_counter() - start
    after.record()
    after.synchronize()
    return 1e-3 * before.elapsed_time(after), host
