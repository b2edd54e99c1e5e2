"""Measures time and peak memory of one attention on this machine, eager and fused.

`python -m onepass.cli.measure memory|time FORM SPELLING SIZE HEADS DIM` prints one JSON line. Time is measured for
forms such as eager,onepass in one process, in turns. Memory is measured in a process for each form: the peak that a
call adds to the memory in use before it, without its result.
"""

from __future__ import annotations

import ctypes
import gc
import json
import math
import resource
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import torch

# The options of each form; None is eager PyTorch. "fused" uses only onepass's kernels, "onepass" may use torch's.
FORMS = {"eager": None, "fused": {"inner": "eager", "libraries": False}, "onepass": {"inner": "eager"}}
WARMUP_CALLS = 3  # after these, nothing is compiled or compared any more; on a CPU the second one compares executors


def plain(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    """Attention of tensors of shape (batch, heads, length, dim)."""
    return torch.softmax(q @ k.mT / math.sqrt(q.shape[-1]), dim=-1) @ v


def causal(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    """Causal attention of tensors of shape (batch, heads, length, dim)."""
    scores = q @ k.mT / math.sqrt(q.shape[-1])
    keep = torch.tril(torch.ones(q.shape[-2], k.shape[-2], dtype=torch.bool, device=q.device))
    return torch.softmax(scores.masked_fill(~keep, float("-inf")), dim=-1) @ v


SPELLINGS = {"plain": plain, "causal": causal}


def inputs(
    size: int, heads: int, dim: int, device: str = "cpu", dtype: torch.dtype = torch.float32
) -> list[torch.Tensor]:
    """Random q, k and v of shape (1, heads, size, dim), from a fixed seed."""
    generator = torch.Generator().manual_seed(0)
    return [torch.randn(1, heads, size, dim, generator=generator).to(device, dtype) for _ in range(3)]


def prepared(form: str, function: Callable) -> Callable:
    """The function in the form: compiled, or eager."""
    options = FORMS[form]
    if options is None:
        return function
    return torch.compile(lambda *arguments: function(*arguments), backend=_backend(), options=options)


def fused_by() -> str:
    """The executors of the fused regions of this process. Raises RuntimeError if nothing was fused, or it failed."""
    from ..report.records import reports

    regions = [region for report in reports() for region in report.regions]
    if not regions or any(region.notes for region in regions):
        raise RuntimeError("\n".join(map(str, reports())) or "nothing was fused")
    return ", ".join(dict.fromkeys(region.ran for region in regions))


def _backend():
    from ..api.backend import onepass_backend

    return onepass_backend


@torch.no_grad()
def times(
    functions: Mapping[str, Callable], arguments: Sequence[torch.Tensor], least: float = 1.0, rounds: int = 3
) -> dict[str, float]:
    """The shortest time of a call of each function, in seconds. The functions are called in turns.

    least: seconds of measurement for each function, at least; rounds: calls of each, at least.
    """
    for function in functions.values():
        function(*arguments)
    taken: dict[str, list[float]] = {name: [] for name in functions}
    start = time.perf_counter()
    while time.perf_counter() - start < least * len(functions) or len(taken[next(iter(taken))]) < rounds:
        for name, function in functions.items():
            taken[name].append(_seconds(function, arguments))
    return {name: min(values) for name, values in taken.items()}


def _seconds(function, arguments) -> float:
    on_gpu = arguments[0].is_cuda
    if on_gpu:
        torch.cuda.synchronize()
    start = time.perf_counter()
    function(*arguments)
    if on_gpu:
        torch.cuda.synchronize()
    return time.perf_counter() - start


@torch.no_grad()
def extra_memory(function: Callable, arguments: Sequence[torch.Tensor]) -> int:
    """The peak bytes that one call adds, without its result, after compilation and the choice of executors.

    On a CPU it is read from the pages of the process, to a few tenths of a MiB, or to the 2 MiB of a huge page.
    """
    for _ in range(WARMUP_CALLS):
        function(*arguments)
    gc.collect()
    if arguments[0].is_cuda:
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
        result = function(*arguments)
        return torch.cuda.max_memory_allocated() - before - result.nbytes
    before = _reset_peak()
    result = function(*arguments)
    return max(0, _peak() - before - result.nbytes)


def _reset_peak() -> int:
    """Resets the peak memory of the process, if the system can (Linux), and returns its current memory in bytes.

    Before that, the allocator returns freed pages to the system; a call could use them without a new peak.
    """
    try:
        ctypes.CDLL(None).malloc_trim(0)
    except (AttributeError, OSError, TypeError):
        pass  # another C library, which cannot return pages
    try:
        Path("/proc/self/clear_refs").write_text("5")
        return _status("VmRSS")
    except OSError:
        return _peak()


def _peak() -> int:
    try:
        return _status("VmHWM")
    except OSError:
        unit = 1 if sys.platform == "darwin" else 1024
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit


def _status(name: str) -> int:
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(f"{name}:"):
            return int(line.split()[1]) * 1024
    raise OSError(f"{name} is not told by this system")


def in_process(*arguments: object) -> dict:
    """Runs this module in a new process and reads its line of JSON. Raises RuntimeError if it fails."""
    command = [sys.executable, "-m", "onepass.cli.measure", *map(str, arguments)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(f"{' '.join(command[2:])} failed: {done.stderr.strip()[-500:]}")
    return json.loads(done.stdout.splitlines()[-1])


def main(what: str, form: str, spelling: str, size: str, heads: str, dim: str) -> None:
    device = "cuda" if torch.cuda.is_available() else "cpu"
    arguments = inputs(int(size), int(heads), int(dim), device, torch.bfloat16 if device == "cuda" else torch.float32)
    function = SPELLINGS[spelling]
    forms = form.split(",")
    functions = {name: prepared(name, function) for name in forms}
    found = times(functions, arguments) if what == "time" else {"bytes": extra_memory(functions[form], arguments)}
    ran = fused_by() if form != "eager" else ""
    print(json.dumps(found | {"ran": ran}))


if __name__ == "__main__":
    main(*sys.argv[1:])
