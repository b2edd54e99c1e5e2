"""Checks contestants against float64, then times them in turns: values first, medians of rounds, a cold L2 cache.

A contestant that fails or is wrong becomes an Outcome with its reason, never an exception. Events time a GPU, the clock
a CPU. Called by run.py.
"""

from __future__ import annotations

import statistics
import subprocess
import time
from collections.abc import Callable
from dataclasses import dataclass, replace

import torch

from .problems import Problem

FLUSH = 256 * 2**20  # bytes written between two runs, several times the L2 cache
ROUND_MS, FEWEST, MOST = 60.0, 5, 60  # a contestant's share of a round, and its runs there
BYTES = 12  # an element of the scores takes in an eager run, at its peak


@dataclass(frozen=True)
class Outcome:
    """ms: median over the rounds; least, most: of the rounds' medians; None if the contestant has no time."""

    ms: float | None = None
    least: float | None = None
    most: float | None = None
    error: float | None = None
    allowed: float | None = None
    note: str = ""


@dataclass(frozen=True)
class Expected:
    """float64 results of some heads: where they are, what they are, and how far off a right one may be."""

    where: tuple[tuple, ...]
    values: tuple[torch.Tensor, ...]
    allowed: float


@torch.no_grad()
def expected(problem: Problem) -> Expected:
    """The first, a middle and the last head in float64. Allowed is three times eager's own error in their dtype."""
    numbers = sorted({0, problem.heads // 2, problem.heads - 1})
    where, values, errors, largest = [], [], [], 0.0
    for number in numbers:
        arguments, place = problem.cut(number)
        exact = problem.plain(*(x.double() if x.is_floating_point() else x for x in arguments))
        errors.append((problem.plain(*arguments).double() - exact).abs().max().item())
        largest = max(largest, exact.abs().max().item())
        where.append(place)
        values.append(exact)
    rounding = torch.finfo(problem.arguments[0].dtype).eps * largest
    return Expected(tuple(where), tuple(values), max(3 * max(errors), rounding))


@torch.no_grad()
def checked(call: Callable[[], torch.Tensor], right: Expected) -> Outcome:
    """Runs it once: its error over the known heads, infinite if any value is not finite."""
    result = call()
    pairs = zip(right.where, right.values, strict=True)
    error = max((result[place].double() - value).abs().max().item() for place, value in pairs)
    error = error if bool(torch.isfinite(result).all()) else float("inf")
    note = "" if error <= right.allowed else f"wrong: off by {error:.3g}, more than {right.allowed:.3g}"
    return Outcome(error=error, allowed=right.allowed, note=note)


@torch.no_grad()
def measured(builders: dict[str, Callable], right: Expected, rounds: int) -> dict[str, Outcome]:
    """Every contestant built and checked, then those that are right timed in turns."""
    calls: dict[str, Callable] = {}
    found: dict[str, Outcome] = {}
    for name, build in builders.items():
        try:
            call = build()
            found[name] = checked(call, right)
        except Exception as error:
            found[name] = Outcome(note=said(error))
            continue
        if not found[name].note:
            calls[name] = call
    times = in_turns(calls, rounds, found)
    for name, taken in times.items():
        if taken:
            found[name] = replace(found[name], ms=statistics.median(taken), least=min(taken), most=max(taken))
    return found


def in_turns(calls: dict[str, Callable], rounds: int, found: dict[str, Outcome]) -> dict[str, list[float]]:
    """Medians in ms, one a round; the calls take turns so that clocks and temperature are shared."""
    times: dict[str, list[float]] = {name: [] for name in calls}
    many: dict[str, int] = {}
    timer = _Gpu() if torch.cuda.is_available() else _Cpu()
    for _ in range(rounds):
        for name in list(calls):
            try:
                if name not in many:
                    many[name] = max(FEWEST, min(MOST, int(ROUND_MS / max(timer.median(calls[name], 3), 1e-3))))
                times[name].append(timer.median(calls[name], many[name]))
            except Exception as error:
                found[name] = replace(found[name], note=said(error))
                del calls[name]
                times[name] = []
    return times


class _Gpu:
    def __init__(self):
        self.flush = torch.empty(FLUSH // 4, dtype=torch.int32, device="cuda")

    def median(self, call: Callable, runs: int) -> float:
        events = [[torch.cuda.Event(enable_timing=True) for _ in range(2)] for _ in range(runs)]
        for start, end in events:
            self.flush.zero_()
            start.record()
            call()
            end.record()
        torch.cuda.synchronize()
        return statistics.median(start.elapsed_time(end) for start, end in events)


class _Cpu:
    def median(self, call: Callable, runs: int) -> float:
        taken = []
        for _ in range(runs):
            start = time.perf_counter()
            call()
            taken.append(1e3 * (time.perf_counter() - start))
        return statistics.median(taken)


def fits(problem: Problem) -> bool:
    """Whether the whole matrix of scores can be made here, as eager makes it."""
    if torch.cuda.is_available():
        return problem.elements * BYTES < torch.cuda.mem_get_info()[0]
    return problem.elements * BYTES < 2**31


def said(error: BaseException) -> str:
    """One line."""
    return f"{type(error).__name__}: {' '.join(str(error).split())[:160]}"


def clocks() -> dict[str, str]:
    """The GPU's clocks, power and driver as nvidia-smi tells them; empty where it is not."""
    names = ("clocks.sm", "clocks.mem", "power.draw", "temperature.gpu", "driver_version")
    command = ["nvidia-smi", f"--query-gpu={','.join(names)}", "--format=csv,noheader,nounits"]
    try:
        line = subprocess.run(command, capture_output=True, text=True, timeout=20, check=True).stdout.splitlines()[0]
    except (OSError, subprocess.SubprocessError, IndexError):
        return {}
    columns = ("sm_mhz", "memory_mhz", "watts", "celsius", "driver")
    return dict(zip(columns, map(str.strip, line.split(",")), strict=True))
