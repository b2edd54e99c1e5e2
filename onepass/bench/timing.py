"""Checks contestants against float64, then times them in turns: values first, medians of rounds, a cold L2 cache.

A contestant that fails or is wrong becomes a ContestantResult with its reason, never an exception. Events time a GPU,
the clock a CPU.
"""

from __future__ import annotations

import io
import logging
import statistics
import subprocess
import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager, redirect_stderr
from dataclasses import dataclass, replace

import torch

from .problems import BenchProblem

FLUSH = 2**30  # bytes written between two runs: more than the L2 cache holds, and longer than a call takes the host
ROUND_MS, MIN_RUNS, MAX_RUNS = 60.0, 5, 60  # a contestant's share of a round, and its runs there
MAX_SLOWDOWN = 20  # times the fastest of the first round: who takes longer is timed in that round only
BYTES = 12  # an element of the scores takes in an eager run, at its peak

Call = Callable[[], torch.Tensor | tuple[torch.Tensor, ...]]


@dataclass(frozen=True)
class ContestantResult:
    """ms: median over the rounds; least, most: of the rounds' medians; None if the contestant has no time.

    peak: bytes that a call needs at most besides inputs and results, with what the first call keeps; None on a CPU.
    """

    ms: float | None = None
    least: float | None = None
    most: float | None = None
    rounds: int = 0
    error: float | None = None
    allowed: float | None = None
    peak: int | None = None
    note: str = ""


@dataclass(frozen=True)
class Expected:
    """float64 results of some parts: where they are, what they are, and how far off each right result may be."""

    where: tuple[tuple, ...]
    values: tuple[tuple[torch.Tensor, ...], ...]
    allowed: tuple[float, ...]


def tensors(result: torch.Tensor | tuple[torch.Tensor, ...]) -> tuple[torch.Tensor, ...]:
    return result if isinstance(result, tuple) else (result,)


@torch.no_grad()
def expected(problem: BenchProblem) -> Expected:
    """The first, a middle and the last part in float64. Allowed is three times eager's own error in their dtype."""
    where, values, allowed = [], [], []
    for number in sorted({0, problem.parts // 2, problem.parts - 1}):
        arguments, place = problem.cut(number)
        exact = tensors(problem.plain(*(x.double() if x.is_floating_point() else x for x in arguments)))
        allowed.append(list(map(allowance, tensors(problem.plain(*arguments)), exact)))
        where.append(place)
        values.append(exact)
    return Expected(tuple(where), tuple(values), tuple(map(max, zip(*allowed, strict=True))))


def allowance(eager: torch.Tensor, exact: torch.Tensor) -> float:
    """How far off a right result may be: three times what eager's own is off, and no less than one rounding."""
    return max(3 * _off(eager, exact), torch.finfo(eager.dtype).eps * exact.abs().max().item())


def _off(result: torch.Tensor, exact: torch.Tensor) -> float:
    return (result.double() - exact).abs().max().item()


@torch.no_grad()
def checked(call: Call, right: Expected) -> ContestantResult:
    """Runs it: its error over the known parts, infinite if any value is not finite, and the memory of a second run."""
    before = torch.cuda.memory_allocated() if torch.cuda.is_available() else 0
    results = tensors(call())
    errors = []
    for number, result in enumerate(results):
        known = zip(right.where, right.values, strict=True)
        error = max(_off(result[place], values[number]) for place, values in known)
        errors.append(error if bool(torch.isfinite(result).all()) else float("inf"))
    error, allowed = max(zip(errors, right.allowed, strict=True), key=lambda pair: pair[0] / pair[1])
    if not error <= allowed:
        note = f"wrong: off by {error:.3g}, more than {allowed:.3g}"
        return ContestantResult(error=error, allowed=allowed, note=note)
    return ContestantResult(error=error, allowed=allowed, peak=_peak(call, before, results))


def _peak(call: Call, before: int, results: tuple[torch.Tensor, ...]) -> int | None:
    """What a run after the first needs above `before` and above its results and those of the first."""
    if not torch.cuda.is_available():
        return None
    torch.cuda.synchronize()
    torch.cuda.reset_peak_memory_stats()
    again = tensors(call())
    torch.cuda.synchronize()
    own = {x.untyped_storage().data_ptr(): x.untyped_storage().nbytes() for x in (*results, *again)}
    return max(0, torch.cuda.max_memory_allocated() - before - sum(own.values()))


@torch.no_grad()
def measured(builders: dict[str, Callable], right: Expected, rounds: int) -> dict[str, ContestantResult]:
    """Every contestant built and checked, then those that are right timed in turns."""
    calls: dict[str, Call] = {}
    found: dict[str, ContestantResult] = {}
    for name, build in builders.items():
        try:
            with quiet():
                call = build()
                found[name] = checked(call, right)
        except Exception as error:
            found[name] = ContestantResult(note=said(error))
            continue
        if not found[name].note:
            calls[name] = call
    for name, taken in in_turns(calls, rounds, found).items():
        if taken:
            median = statistics.median(taken)
            found[name] = replace(found[name], ms=median, least=min(taken), most=max(taken), rounds=len(taken))
    return found


@contextmanager
def quiet() -> Iterator[None]:
    """Without the tables, warnings and tracebacks that a compiler prints while it tries what may fail."""
    kept = logging.root.manager.disable
    logging.disable(logging.ERROR)
    try:
        with warnings.catch_warnings(), redirect_stderr(io.StringIO()):
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.disable(kept)


def in_turns(calls: dict[str, Call], rounds: int, found: dict[str, ContestantResult]) -> dict[str, list[float]]:
    """Medians in ms, one a round; the calls take turns so that clocks and temperature are shared."""
    times: dict[str, list[float]] = {name: [] for name in calls}
    many: dict[str, int] = {}
    timer = _Gpu() if torch.cuda.is_available() else _Cpu()
    for number in range(rounds):
        fastest = min((taken[0] for taken in times.values() if taken), default=0.0)
        for name in [n for n in calls if not number or times[n][0] <= MAX_SLOWDOWN * fastest]:
            try:
                if name not in many:
                    many[name] = max(MIN_RUNS, min(MAX_RUNS, int(ROUND_MS / max(timer.median(calls[name], 3), 1e-3))))
                times[name].append(timer.median(calls[name], many[name]))
            except Exception as error:
                found[name] = replace(found[name], note=said(error))
                del calls[name]
                times[name] = []
    return times


class _Gpu:
    def __init__(self):
        self.flush = torch.empty(FLUSH // 4, dtype=torch.int32, device="cuda")

    def median(self, call: Call, runs: int) -> float:
        events = [[torch.cuda.Event(enable_timing=True) for _ in range(2)] for _ in range(runs)]
        for start, end in events:
            self.flush.zero_()
            start.record()
            call()
            end.record()
        torch.cuda.synchronize()
        return statistics.median(start.elapsed_time(end) for start, end in events)


class _Cpu:
    def median(self, call: Call, runs: int) -> float:
        taken = []
        for _ in range(runs):
            start = time.perf_counter()
            call()
            taken.append(1e3 * (time.perf_counter() - start))
        return statistics.median(taken)


def fits(problem: BenchProblem, backward: bool = False) -> bool:
    """Whether the whole matrix of scores can be made here, as eager makes it; in a backward, with its gradients."""
    needed = problem.elements * BYTES * (2 if backward else 1)
    return needed < (torch.cuda.mem_get_info()[0] if torch.cuda.is_available() else 2**31)


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
