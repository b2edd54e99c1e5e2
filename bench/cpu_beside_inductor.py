"""The suites' variants on a CPU: a call and a training step of onepass beside torch.compile, warm.

`python bench/cpu_beside_inductor.py --out results.csv [--only softcap] [--lengths 512] [--dtypes bfloat16]`. Each case
runs in a process of its own. A contestant is warm when it has run six times: onepass may compile a graph once more.
Milliseconds are medians of rounds in turns; a ratio below 1 is a case that onepass makes slower. Batch 1, 4 heads of
64, an empty disk cache. With one thread, times are the processor's: other work on the machine does not count.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import product
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import torch

import onepass
from onepass.bench.flex_variants import variants
from onepass.bench.problems import BenchProblem, Shape, problem
from onepass.bench.results import write_rows
from onepass.bench.scales import SCALES
from onepass.bench.timing import quiet, said

BATCH, HEADS, WIDTH = 1, 4, 64
WARM, ROUNDS = 6, 7
SHOWN = ("variant", "length", "dtype", "threads", "step", "ms", "torch_compile_ms", "ratio", "ran")
FIELDS = (*SHOWN, "machine", "versions")
CONTESTANTS = {"onepass": "onepass", "torch.compile": "inductor"}
Case = tuple[str, int, str, int, str]  # variant, length, dtype, threads, "call" or "training"


def step(function: Callable, given: BenchProblem, training: bool) -> Callable[[], object]:
    """One call without gradients, or forward and backward of all inputs that may have gradients."""
    if not training:
        return torch.no_grad()(lambda: function(*given.arguments))
    wanted = [x.requires_grad_() for x in given.arguments if x.is_floating_point()]
    cotangent = torch.randn_like(given.plain(*given.arguments))
    return lambda: torch.autograd.grad(function(*given.arguments), wanted, cotangent)


def measured(case: Case) -> dict[str, object]:
    """The row of a case; what fails has the reason under "ran"."""
    name, length, dtype, threads, which = case
    torch.set_num_threads(threads)
    torch.manual_seed(0)
    variant = variants(SCALES["cpu"])[name]
    shape = Shape(BATCH, HEADS, length, WIDTH, min(variant.group, HEADS))
    made = problem(variant, shape, "cpu", getattr(torch, dtype))
    row: dict[str, object] = {"variant": name, "length": length, "dtype": dtype, "threads": threads, "step": which}
    row |= {"machine": platform.processor() or platform.machine(), "versions": f"torch {torch.__version__}"}
    calls = {}
    for contestant, backend in CONTESTANTS.items():
        torch._dynamo.reset()
        call = step(torch.compile(made.plain, backend=backend, dynamic=False), made, which == "training")
        try:
            with quiet():
                for _ in range(WARM):
                    call()
        except Exception as error:
            return row | {"ran": f"{contestant}: {said(error)}"}
        calls[contestant] = call
        if contestant == "onepass":
            row["ran"] = who_ran(which)
    times = in_turns(calls, time.process_time if threads == 1 else time.perf_counter)
    mine, other = (statistics.median(times[contestant]) for contestant in CONTESTANTS)
    return row | {"ms": mine, "torch_compile_ms": other, "ratio": other / mine}


def in_turns(calls: Mapping[str, Callable], clock: Callable[[], float]) -> dict[str, list[float]]:
    """Milliseconds of each contestant, round by round."""
    times: dict[str, list[float]] = {name: [] for name in calls}
    for name in [*calls] * ROUNDS:
        start = clock()
        calls[name]()
        times[name].append(1e3 * (clock() - start))
    return times


def who_ran(which: str) -> str:
    """Who runs the regions now; "Inductor" where none is left in the graph."""
    regions = onepass.reports()[-1].regions
    found = [f"{r.ran} / {r.backward_ran}" if which == "training" else r.ran for r in regions]
    return "; ".join(found) or "Inductor"


def rows_of(cases: Sequence[Case]) -> Iterator[dict[str, object]]:
    """Each case in a new process, with a disk cache of its own."""
    for case in cases:
        with tempfile.TemporaryDirectory() as folder:
            command = [sys.executable, __file__, "--case", json.dumps(case)]
            environment = {**os.environ, "ONEPASS_CACHE": folder}
            done = subprocess.run(command, capture_output=True, text=True, env=environment, check=False)
        lines = [line for line in done.stdout.splitlines() if line.startswith("{")]
        reason = (done.stderr.strip().splitlines() or ["no line"])[-1]
        yield json.loads(lines[-1]) if lines else dict(zip(FIELDS, case, strict=False)) | {"ran": reason}


def show(row: Mapping[str, object]) -> None:
    shown = (row.get(field, "") for field in SHOWN)
    print(*(f"{x:.3g}" if isinstance(x, float) else x for x in shown), sep="  ", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, help="a file for the rows, as comma-separated values")
    parser.add_argument("--only", nargs="*", default=[*variants(SCALES["cpu"])], help="these variants")
    parser.add_argument("--lengths", nargs="*", type=int, default=[512, 2048])
    parser.add_argument("--dtypes", nargs="*", default=["float32"])
    parser.add_argument("--threads", nargs="*", type=int, default=[1])
    parser.add_argument("--steps", nargs="*", default=["call", "training"], choices=["call", "training"])
    parser.add_argument("--case", help=argparse.SUPPRESS)
    asked = parser.parse_args()
    if asked.case:
        print(json.dumps(measured(tuple(json.loads(asked.case)))))
        return
    cases = [*product(asked.only, asked.lengths, asked.dtypes, asked.threads, asked.steps)]
    rows = []
    print(*SHOWN, sep="  ")
    for row in rows_of(cases):
        rows.append(row)
        show(row)
        if asked.out:
            write_rows(asked.out, FIELDS, rows)


if __name__ == "__main__":
    main()
