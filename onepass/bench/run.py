"""The command `bench --suite`: measures a suite on this machine, writes rows as soon as they are known, prints a table.

A run with the same --out goes on where the last one ended; a contestant that fails is a row with its reason.
"""

from __future__ import annotations

import os
import platform
import re
import sys
import time
from argparse import Namespace
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial

import torch

from ..process_state import forget
from ..report.records import reports
from . import results
from .backward import WORK, backward
from .problems import BenchProblem
from .results import OURS, Measurement, versions
from .scales import SCALES
from .suites import Case, cases
from .timing import ContestantResult, clocks, expected, fits, measured, said


def run(chosen: Namespace) -> int:
    """Measures what was chosen and prints all that the file then holds.

    1 if onepass failed or was wrong anywhere, 2 for a file of other columns or a pattern that is none.
    """
    on_gpu = torch.cuda.is_available()
    chosen.scale = chosen.scale or ("gpu" if on_gpu else "cpu")
    chosen.dtype = chosen.dtype or ("bfloat16" if on_gpu else "float32")
    try:
        rows = results.read(chosen.out) if chosen.out else []
        todo = _chosen(chosen)
    except (ValueError, re.error) as error:
        print(f"onepass bench: {error}", file=sys.stderr)
        return 2
    done = {row.case for row in rows}
    for case, new in _measured([c for c in todo if (c.suite, c.variant, c.shape) not in done], chosen):
        rows += new
        _keep(case, new, chosen)
    _print(rows, chosen)
    return 1 if any(row.contestant == OURS and not row.ms for row in rows) else 0


def _measured(todo: list[Case], chosen: Namespace) -> Iterator[tuple[Case, list[Measurement]]]:
    """Cases with their rows, until the time is over."""
    start = time.monotonic()
    for case in todo:
        if time.monotonic() - start > chosen.seconds:
            print(f"stopped before {case.variant} {case.shape}: {chosen.seconds:g} seconds are over", file=sys.stderr)
            return
        yield case, _rows(case, chosen)


def _keep(case: Case, new: list[Measurement], chosen: Namespace) -> None:
    """Writes and prints the rows of a case; where the GPU's context is broken after it, a new process goes on."""
    if chosen.out:
        results.append(chosen.out, new)
    for row in new:
        measured_as = f"{row.ms} ms, {row.peak_mib or '?'} MiB" if row.ms else row.note
        print(f"{row.variant} {row.shape} {row.contestant}: {measured_as} {row.executor}", file=sys.stderr, flush=True)
    if chosen.out and not _gpu_works():
        print("the GPU's context is broken: a new process goes on", file=sys.stderr, flush=True)
        os.execv(sys.executable, [sys.executable, "-m", "onepass", *sys.argv[1:]])


def _print(rows: list[Measurement], chosen: Namespace) -> None:
    """Prints the tables and the summary of all rows, and draws them where that was asked for."""
    from rich.console import Console

    console = Console(width=None if sys.stdout.isatty() else 200)
    console.print(results.table(rows))
    console.print(results.ratios(rows))
    print(results.summary(rows))
    if not chosen.libraries:
        print("onepass ran its own kernels only; --libraries lets torch's kernels stand in where they are faster")
    if chosen.plot and rows:
        print("\n".join(f"written: {path}" for path in results.plot(rows, chosen.plot)))


def _gpu_works() -> bool:
    """False after an error that this process cannot recover from, such as an illegal access in some kernel."""
    try:
        if torch.cuda.is_available():
            torch.cuda.synchronize()
            torch.cuda.empty_cache()
        return True
    except RuntimeError:
        return False


def _chosen(chosen: Namespace) -> list[Case]:
    found = cases(chosen.suite, SCALES[chosen.scale])
    kept = [c for c in found if re.search(chosen.variants, c.variant) and re.search(chosen.shapes, c.shape)]
    return [replace(c, suite=_suite(c.suite, chosen.backward)) for c in kept]


def _suite(name: str, gradients: str | None) -> str:
    """What rows are called: those of a backward stand beside those of the forward in one file."""
    return f"{name}_backward" + ("_all" if gradients == "all" else "") if gradients else name


def _rows(case: Case, chosen: Namespace) -> list[Measurement]:
    """A problem's rows; where it cannot even be made, one row says so."""
    torch.manual_seed(0)
    torch._dynamo.reset()
    forget("reports")
    device, dtype = "cuda" if torch.cuda.is_available() else "cpu", getattr(torch, chosen.dtype)
    try:
        problem = case.make(device, dtype)
        contestants = _contestants(problem, chosen)
        if chosen.backward:
            gradients = backward(problem, chosen.backward)
            ways = {name: gradients.way(build) for name, build in contestants.items()}
            found = measured(ways, gradients.expected(), chosen.rounds)
        else:
            found = measured(contestants, expected(problem), chosen.rounds)
        flops = problem.flops * (WORK if chosen.backward else 1.0)
    except Exception as error:
        found, flops = {OURS: ContestantResult(note=said(error))}, 0.0
    state = clocks()
    known = {"dtype": chosen.dtype, "machine": machine(), "versions": versions(), **state}
    return [_row(case, name, outcome, flops, known) for name, outcome in found.items()]


def _row(case: Case, name: str, outcome: ContestantResult, flops: float, known: dict) -> Measurement:
    timed = {
        "ms": outcome.ms,
        "least_ms": outcome.least,
        "most_ms": outcome.most,
        "tflops": flops / outcome.ms / 1e9 if outcome.ms else None,
        "peak_mib": None if outcome.peak is None else outcome.peak / 2**20,
        "error": outcome.error,
        "allowed": outcome.allowed,
    }
    texts = {key: "" if value is None else f"{value:.5g}" for key, value in timed.items()}
    who = _executor(case.suite) if name == OURS else ""
    own = {"note": outcome.note, "rounds": str(outcome.rounds), "executor": who}
    return Measurement(case.suite, case.variant, case.shape, name, **own, **texts, **known)


def _contestants(problem: BenchProblem, chosen: Namespace) -> dict[str, Callable]:
    """Builders by name: onepass and the peers that compile the same plain function, and each one's own words."""
    plain, arguments = problem.plain, problem.arguments
    options = {"inner": chosen.inner, "executor": chosen.executor, "libraries": chosen.libraries}
    found: dict[str, Callable] = {OURS: partial(_onepass, plain, arguments, options)}
    found |= problem.ways
    if fits(problem, chosen.backward is not None):
        found["compile"] = partial(_compiled, plain, arguments)
        found["eager"] = lambda: lambda: plain(*arguments)
    return {name: build for name, build in found.items() if re.search(chosen.only, name)}


def _compiled(plain: Callable, arguments) -> Callable:
    made = torch.compile(plain, dynamic=False)
    return lambda: made(*arguments)


def _onepass(plain: Callable, arguments, options: dict) -> Callable:
    from ..api.backend import onepass_backend

    made = torch.compile(plain, backend=onepass_backend, dynamic=False, options=options)
    return lambda: made(*arguments)


def _executor(suite: str) -> str:
    """Who really ran, as the reports say it; "nothing fused" and the first reason if the original did."""
    known = reports()
    regions = [region for report in known for region in report.regions]
    reasons = [text for report in known for text in (*report.failures, *(r.reason for r in report.refusals))]
    nothing = ": ".join(("nothing fused", *reasons[:1]))
    ran = (r.backward_ran if "_backward" in suite else r.ran or r.executor for r in regions)
    return " + ".join(dict.fromkeys(filter(None, ran))) or nothing


def machine() -> str:
    if torch.cuda.is_available():
        return torch.cuda.get_device_name()
    return f"{platform.processor() or platform.machine()}, {torch.get_num_threads()} threads"
