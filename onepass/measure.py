"""Measures one attention on this machine, eager against fused: time in one process, peak memory in a process each.

`python -m onepass.measure memory|time FORM SPELLING SIZE HEADS DIM` prints one JSON line. Peak memory is what the call
adds at its highest to what is there before it, its result left out. Used by the demo and by bench/.
"""

from __future__ import annotations

import json
import math
import resource
import subprocess
import sys
import time
from pathlib import Path

import torch

FORMS = ("eager", "onepass")


def plain(q, k, v):
    return torch.softmax(q @ k.mT / math.sqrt(q.shape[-1]), dim=-1) @ v


def causal(q, k, v):
    scores = q @ k.mT / math.sqrt(q.shape[-1])
    keep = torch.tril(torch.ones(q.shape[-2], k.shape[-2], dtype=torch.bool, device=q.device))
    return torch.softmax(scores.masked_fill(~keep, float("-inf")), dim=-1) @ v


SPELLINGS = {"plain": plain, "causal": causal}


def inputs(size: int, heads: int, dim: int, device="cpu", dtype=torch.float32):
    """Seeded q, k, v."""
    generator = torch.Generator().manual_seed(0)
    return [torch.randn(1, heads, size, dim, generator=generator).to(device, dtype) for _ in range(3)]


def prepared(form: str, function):
    """The function as it runs in that form; `eager` is PyTorch as it is."""
    return function if form == "eager" else torch.compile(function, backend=_backend(), options={"inner": "eager"})


def refuse_unfused() -> None:
    """Raises if nothing was fused in this process, or something failed: it would be eager that was measured."""
    from .report import reports

    regions = [region for report in reports() for region in report.regions]
    if not regions or any(region.notes for region in regions):
        raise RuntimeError("\n".join(map(str, reports())) or "nothing was fused")


def _backend():
    from .backend import onepass_backend

    return onepass_backend


@torch.no_grad()
def times(functions: dict, arguments, least: float = 1.0, rounds: int = 3) -> dict[str, float]:
    """Least seconds per call; the functions take turns, so that a busy machine is unfair to none."""
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
def extra_memory(function, arguments) -> int:
    """Peak bytes that one call adds, its result left out; the first call, with compilation, is not counted."""
    function(*arguments)
    if arguments[0].is_cuda:
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
        result = function(*arguments)
        return torch.cuda.max_memory_allocated() - before - result.nbytes
    before = _reset_peak()
    result = function(*arguments)
    return max(0, _peak() - before - result.nbytes)


def _reset_peak() -> int:
    """Forgets the process's peak, where the system can (Linux), and gives what it holds now."""
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


def in_process(*arguments) -> dict:
    """Runs this module in a new process and reads its one line."""
    command = [sys.executable, "-m", "onepass.measure", *map(str, arguments)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(f"{' '.join(command[2:])} failed: {done.stderr.strip()[-500:]}")
    return json.loads(done.stdout.splitlines()[-1])


def main(what: str, form: str, spelling: str, size: str, heads: str, dim: str) -> None:
    device = "cuda" if torch.cuda.is_available() else "cpu"
    arguments = inputs(int(size), int(heads), int(dim), device, torch.bfloat16 if device == "cuda" else torch.float32)
    function = SPELLINGS[spelling]
    forms = FORMS if form == "both" else (form,)
    functions = {name: prepared(name, function) for name in forms}
    found = times(functions, arguments) if what == "time" else {"bytes": extra_memory(functions[form], arguments)}
    if "onepass" in forms:
        refuse_unfused()
    print(json.dumps(found))


if __name__ == "__main__":
    main(*sys.argv[1:])
