"""Forward mode of attention on one GPU: a jvp through a region, and how many times as long as the forward it takes.

`python bench/jvp.py --out FILE [--cases full,causal,...] [--widths 64,128] [--lengths 1024,4096]`. Compiled by onepass:
the forward, and `torch.func.jvp` of it with tangents of all floating inputs. Beside it, `torch.func.jvp` of eager, of
what torch.compile makes of it, and for plain softmax of SDPA's math backend (no other has forward mode). Each is
checked against float64 of the same rounded inputs by its relative norm, and timed by medians of rounds, in turns, with
a cold L2 cache. Run by hand; the results are in bench/results. `--device cpu` tries the script at small sizes.
"""

from __future__ import annotations

import argparse
import csv
import math
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import astuple, dataclass
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import torch
import torch.nn.functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel

import onepass
from onepass.api.backend import onepass_backend
from onepass.bench.timing import FLUSH

ROUNDS, RUNS = 7, 10
MAX_ERROR = 2e-2  # of a result by its relative norm, in bfloat16
COLUMNS = ("case", "width", "length", "contestant", "ms", "least_ms", "most_ms", "error", "times_forward", "peak_mib")
COLUMNS += ("note",)


def scores(q, k):
    return q @ k.mT / math.sqrt(q.shape[-1])


def full(q, k, v):
    return torch.softmax(scores(q, k), -1) @ v


def causal(q, k, v):
    n = q.shape[-2]
    hidden = torch.ones(n, n, dtype=torch.bool, device=q.device).triu(1)
    return torch.softmax(scores(q, k).masked_fill(hidden, -math.inf), -1) @ v


def softcap(q, k, v):
    return torch.softmax(30 * torch.tanh(scores(q, k) / 30), -1) @ v


def sink(q, k, v, sinks):
    s = scores(q, k)
    column = sinks.reshape(1, -1, 1, 1).expand(*s.shape[:-1], 1)
    return torch.softmax(torch.cat([s, column], -1), -1)[..., :-1] @ v


def sigmoid(q, k, v):
    return torch.sigmoid(scores(q, k) - math.log(k.shape[-2])) @ v


def differential(q, k, v, weight):
    one, two = (torch.softmax(scores(a, b), -1) @ v for a, b in zip(q.chunk(2, 1), k.chunk(2, 1), strict=True))
    return one - weight * two


CASES = {f.__name__: f for f in (full, causal, softcap, sink, sigmoid, differential)}
MATH = {"full": False, "causal": True}  # cases that SDPA has: whether they are causal


@dataclass(frozen=True)
class Row:
    """One line of the results."""

    case: str
    width: int
    length: int
    contestant: str
    ms: float | str = ""
    least_ms: float | str = ""
    most_ms: float | str = ""
    error: float | str = ""
    times_forward: float | str = ""
    peak_mib: float | str = ""
    note: str = ""


def inputs_of(case: str, batch: int, heads: int, length: int, width: int, device: str) -> list[torch.Tensor]:
    """bfloat16 tensors of unit variance."""
    make = lambda *shape: torch.randn(*shape, device=device).bfloat16()
    values = heads // 2 if case == "differential" else heads
    more = {"sink": [make(heads)], "differential": [make(1)]}.get(case, [])
    return [*(make(batch, h, length, width) for h in (heads, heads, values)), *more]


def jvp_of(function: Callable) -> Callable:
    """Results and tangents of a function, for its inputs and then their tangents."""

    def run(*given):
        half = len(given) // 2
        return torch.func.jvp(function, given[:half], given[half:])

    return run


def math_backend(is_causal: bool) -> Callable:
    def run(q, k, v):
        with sdpa_kernel(SDPBackend.MATH):
            return F.scaled_dot_product_attention(q, k, v, is_causal=is_causal)

    return run


def contestants_of(case: str) -> dict[str, Callable]:
    """Calls that take the inputs, and their tangents behind them."""
    function = CASES[case]
    forward = torch.compile(function, backend=onepass_backend)
    own = torch.compile(function, backend=onepass_backend, options={"libraries": False})
    found = {
        "onepass forward": lambda *given: forward(*given[: len(given) // 2]),
        "onepass forward, its own kernel": lambda *given: own(*given[: len(given) // 2]),
        "onepass jvp": torch.compile(jvp_of(function), backend=onepass_backend),
        "eager jvp": jvp_of(function),
        "torch.compile jvp": torch.compile(jvp_of(function)),
    }
    if case in MATH:
        found["sdpa math jvp"] = jvp_of(math_backend(MATH[case]))
    return found


def as_tuple(found: torch.Tensor | tuple) -> tuple[torch.Tensor, ...]:
    return found if isinstance(found, tuple) else (found,)


def exact_of(case: str, given: Sequence[torch.Tensor]) -> tuple[torch.Tensor, ...]:
    """float64 results and tangents of the first head of the first batch, or of its first two heads."""
    heads = 2 if case == "differential" else 1
    cut = lambda t, h: t[:1, :h] if t.dim() == 4 else t[:h]
    half = len(given) // 2
    counts = [heads, heads, 1, 1][:half]
    if case == "differential":  # heads h and h + H/2 go together
        pick = [0, given[0].shape[1] // 2]
        parts = [t[:1, pick] if k % half < 2 else cut(t, 1) for k, t in enumerate(given)]
    else:
        parts = [cut(t, counts[k % half]) for k, t in enumerate(given)]
    return jvp_of(CASES[case])(*(t.double() for t in parts))


def error_of(found: torch.Tensor | tuple, exact: tuple[torch.Tensor, ...]) -> float:
    """The largest relative norm of what the results are off."""
    pairs = zip(as_tuple(found), exact, strict=False)
    return max(((x[:1, :1].double() - y).norm() / y.norm()).item() for x, y in pairs)


class Clock:
    """Milliseconds of one call with a cold cache."""

    def __init__(self, device: str):
        self.on_gpu = device == "cuda"
        self.flush = torch.empty(FLUSH // 4 if self.on_gpu else 1, dtype=torch.int32, device=device)

    def __call__(self, call: Callable) -> float:
        if not self.on_gpu:
            start = time.perf_counter()
            call()
            return 1e3 * (time.perf_counter() - start)
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        self.flush.zero_()
        begin.record()
        call()
        end.record()
        torch.cuda.synchronize()
        return begin.elapsed_time(end)


def peak_of(call: Callable, device: str) -> float | str:
    """MiB that a call needs at most besides what is there before it, results included."""
    if device != "cuda":
        return ""
    torch.cuda.synchronize()
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    call()
    torch.cuda.synchronize()
    return round((torch.cuda.max_memory_allocated() - before) / 2**20, 1)


@torch.no_grad()
def measured(case: str, width: int, length: int, options: argparse.Namespace) -> list[Row]:
    """The lines of one problem: contestants that fail or are wrong have a reason instead of a time."""
    torch._dynamo.reset()
    torch.manual_seed(0)
    given = [t for _ in range(2) for t in inputs_of(case, options.batch, options.heads, length, width, options.device)]
    exact, clock = exact_of(case, given), Clock(options.device)
    errors, notes, peaks = {}, {}, {}
    ready = contestants_of(case)
    for name, run in list(ready.items()):
        try:
            errors[name] = error_of(run(*given), exact)
            for _ in range(3):
                run(*given)
            peaks[name] = peak_of(lambda run=run: run(*given), options.device)
            notes[name] = "" if errors[name] <= MAX_ERROR else "wrong"
        except Exception as error:  # a contestant without this case, or without the memory for it
            notes[name] = f"{type(error).__name__}: {' '.join(str(error).split())[:120]}"
            del ready[name]
    rounds: dict[str, list[float]] = {name: [] for name in ready}
    for _ in range(ROUNDS):
        for name, run in ready.items():
            rounds[name].append(statistics.median(clock(lambda run=run: run(*given)) for _ in range(RUNS)))
    forward = statistics.median(rounds["onepass forward"]) if "onepass forward" in rounds else math.nan
    said = {"onepass jvp": _said()}
    return [
        _row(case, width, length, name, rounds.get(name), errors.get(name, ""), forward, peaks.get(name, ""),
             notes[name] or said.get(name, ""))
        for name in notes
    ]  # fmt: skip


def _said() -> str:
    """What the newest report with tangents says of them."""
    lines = [r for report in onepass.reports() for r in report.regions if r.forward_mode]
    return f"{lines[-1].forward_mode.splitlines()[0]}; {lines[-1].forward_mode_ran}" if lines else "no region"


def _row(case, width, length, name, times, error, forward, peak, note) -> Row:
    if not times:
        return Row(case, width, length, name, error=error, note=note)
    ms = statistics.median(times)
    figures = (round(x, 4) for x in (ms, min(times), max(times)))
    return Row(case, width, length, name, *figures, error, round(ms / forward, 3), peak, note)


def main() -> None:
    """Measures every case at every size and writes a line for each contestant."""
    numbers = lambda text: [int(n) for n in text.split(",")]
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--out", required=True)
    parser.add_argument("--cases", type=lambda text: text.split(","), default=list(CASES))
    parser.add_argument("--widths", type=numbers, default=[64, 128])
    parser.add_argument("--lengths", type=numbers, default=[1024, 4096])
    parser.add_argument("--batch", type=int, default=2)
    parser.add_argument("--heads", type=int, default=16)
    parser.add_argument("--device", default="cuda")
    options = parser.parse_args()
    with Path(options.out).open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file)
        writer.writerow(COLUMNS)
        for case in options.cases:
            for width in options.widths:
                for length in options.lengths:
                    for row in measured(case, width, length, options):
                        writer.writerow(astuple(row))
                        file.flush()
                        print(*astuple(row), flush=True)


if __name__ == "__main__":
    main()
