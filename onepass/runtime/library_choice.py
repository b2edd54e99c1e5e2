"""Rivals of a plan: torch's own kernels for regions of their form, and the original calls where values are small.

A rival is compared with the plan's results and timed against the plan once for each class of sizes (powers of two).
The faster one is kept, in the process and on disk. Nothing is measured while a graph is captured. A plan that must be
deterministic has no rivals: which one is faster is chance.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable

import torch

from ..compiler import library_kernels
from ..compiler.compiled_region import Fused
from ..compiler.traffic import made_bytes
from . import executors
from .region_call import RegionCall, Tensors

MAX_BYTES_OF_A_VALUE = {"cpu": 16 << 20, "cuda": 32 << 20}  # that the original calls may make to be tried
MAX_SHARE_OF_TIME = 0.9  # a rival is taken if it needs at most this share of the plan's time
SECONDS_OF_A_MEASUREMENT = 0.03
MIN_RUNS, MAX_RUNS = 3, 10  # of one measurement


def rivals(found: Fused, tensors: Tensors, call: RegionCall) -> dict[str, executors.Prepare]:
    """By name, what prepares each rival for a call, as executors.EXECUTORS does."""
    options, device = found.options, tensors[0].device.type
    if not options.libraries or options.executor != "auto" or call.deterministic:
        return {}
    known: dict[str, executors.Prepare] = {}
    if found.form is not None:
        for kernel in library_kernels.kernels(found.form, device, found.program.output_metas[0].dtype):
            known[kernel.name] = _library(kernel)
    if max(made_bytes(found.program, call.sizes), default=0) <= MAX_BYTES_OF_A_VALUE.get(device, 0):
        known[executors.ORIGINAL] = executors.original
    return known


def _library(kernel: library_kernels.LibraryKernel) -> executors.Prepare:
    def prepared(found: Fused, tensors: Tensors, call: RegionCall) -> executors.Run:
        run = library_kernels.prepare(found.form, kernel, found.names, call.sizes)
        return executors.laid_out(lambda given: (run(given),), call)

    return prepared


def size_class(device: torch.device, sizes: dict[str, int]) -> str:
    """The device, and every symbolic size rounded up to a power of two: one decision for all of them."""
    name = torch.cuda.get_device_name(device) if device.type == "cuda" else device.type
    return " ".join([name, *(f"{s}:{(n - 1).bit_length()}" for s, n in sorted(sizes.items()))])


@torch.no_grad()
def fastest(
    own: executors.Run, others: dict[str, executors.Run], tensors: Tensors, wrong: Callable
) -> tuple[str, float]:
    """The rival to take and its part of the plan's time; "" and 1 if none is worth it.

    wrong: says of a rival's name and results why they cannot be used, or None.
    """
    right = {}
    for name, run in others.items():
        try:
            if wrong(name, run(tensors)) is None:
                right[name] = run
        except Exception:  # a kernel that does not take these tensors
            continue
    if not right:
        return "", 1.0
    times = {name: _seconds(run, tensors) for name, run in right.items()}
    name = min(times, key=times.__getitem__)
    part = times[name] / max(_seconds(own, tensors), 1e-9)
    return (name, part) if part <= MAX_SHARE_OF_TIME else ("", 1.0)


def _seconds(run: executors.Run, tensors: Tensors) -> float:
    taken: list[float] = []
    while len(taken) < MIN_RUNS or (sum(taken) < SECONDS_OF_A_MEASUREMENT and len(taken) < MAX_RUNS):
        taken.append(_once(run, tensors))
    return statistics.median(taken)


def _once(run: executors.Run, tensors: Tensors) -> float:
    if not tensors[0].is_cuda:
        start = time.perf_counter()
        run(tensors)
        return time.perf_counter() - start
    start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    start.record()
    run(tensors)
    end.record()
    end.synchronize()
    return 1e-3 * start.elapsed_time(end)
