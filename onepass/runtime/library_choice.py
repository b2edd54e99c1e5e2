"""What else could run a region: torch's own kernels where the form is theirs, the original calls where they are small.

A rival is compared with the plan's results and timed against them once per class of sizes (powers of two); the faster
is kept, in the process and on disk. Never while a graph is captured.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Sequence

import torch

from ..compiler import library_kernels
from ..compiler.traffic import made
from . import executors

SMALL = {"cpu": 16 << 20, "cuda": 32 << 20}  # bytes of the largest value that the original calls may make to be tried
WORTH = 0.9  # a rival is taken if it needs at most so much of the plan's time
ENOUGH, FEWEST, MOST = 0.03, 3, 10  # seconds and runs of one measurement


def rivals(found, tensors: Sequence[torch.Tensor], call) -> dict[str, Callable]:
    """By name, what prepares each rival for a call, as executors.EXECUTORS does."""
    options, device = found.options, tensors[0].device.type
    if not options.libraries or options.executor != "auto":
        return {}
    known: dict[str, Callable] = {}
    if found.form is not None:
        for kernel in library_kernels.kernels(found.form, device, found.program.output_metas[0].dtype):
            known[kernel.name] = _library(kernel)
    if max(made(found.program, call.sizes), default=0) <= SMALL.get(device, 0):
        known[executors.ORIGINAL] = executors.original
    return known


def _library(kernel: library_kernels.Kernel) -> Callable:
    def prepared(found, tensors, call) -> Callable:
        run = library_kernels.prepare(found.form, kernel, found.names, call.sizes)
        return lambda given: executors.laid_out([run(given)], given, call)

    return prepared


def size_class(device: torch.device, sizes: dict[str, int]) -> str:
    """The device, and every symbolic size rounded up to a power of two: one decision for all of them."""
    name = torch.cuda.get_device_name(device) if device.type == "cuda" else device.type
    return " ".join([name, *(f"{s}:{(n - 1).bit_length()}" for s, n in sorted(sizes.items()))])


@torch.no_grad()
def fastest(own: Callable, others: dict[str, Callable], tensors, wrong: Callable) -> tuple[str, float]:
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
    return (name, part) if part <= WORTH else ("", 1.0)


def _seconds(run: Callable, tensors: Sequence[torch.Tensor]) -> float:
    taken: list[float] = []
    while len(taken) < FEWEST or (sum(taken) < ENOUGH and len(taken) < MOST):
        taken.append(_once(run, tensors))
    return statistics.median(taken)


def _once(run: Callable, tensors: Sequence[torch.Tensor]) -> float:
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
