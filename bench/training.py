"""Figures of training on one GPU: gradients of learned inputs, the deterministic backward.

`python bench/training.py --out FILE [--parts learned,deterministic] [--cases REGEX] [--lengths 2048,4096]`. The
backward alone, with a learned input's gradient and without; with the option, and without. Checked against float64 of
the same rounded inputs. Problems are compiled side by side and timed one by one with a cold L2 cache; onepass runs its
own kernels. Run by hand; the results are in bench/results. `--device cpu` tries the script at small sizes.
"""

from __future__ import annotations

import argparse
import csv
import logging
import math
import multiprocessing
import os
import re
import statistics
import sys
import time
import warnings
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from threading import BrokenBarrierError
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import torch
from side_by_side import Memory
from torch import Tensor
from torch.nn.attention.flex_attention import flex_attention

import onepass
from onepass.api.backend import onepass_backend
from onepass.bench.backward import BackwardProblem, backward
from onepass.bench.flex_variants import of_positions, positions
from onepass.bench.problems import BenchProblem, Shape, Variant, problem
from onepass.bench.timing import Call, ContestantResult, Expected, checked, in_turns, quiet, said
from onepass.process_state import forget

PARTS = ("learned", "deterministic")
COLUMNS = ("part", "case", "shape", "contestant", "ms", "least_ms", "most_ms", "ratio", "wanted", "over_onepass")
COLUMNS += ("error", "allowed", "peak_mib", "note")
WITHOUT = " without"  # the contestant of that name computes the gradients of queries, keys and values alone
OWN = {"libraries": False}
ATTENTION = 3  # gradients that come first: of queries, keys and values
BYTES = {"compile": 12, "onepass": 2, "flex": 1}  # for an element of the scores that a contestant needs at most
EXACT_BYTES = 100  # for an element of one part's scores, in float64
LEARNED_BYTES = 32  # for an element of a learned input: gradients, and what they are compared with in float64
NOTE = 60  # characters of a note in the closing table
SHARE = 0.6  # of the device's memory, for what compiles; the rest is for inputs, and for what each process takes
BUCKETS, EXACT, FARTHEST = 32, 8, 128  # of T5: both directions, distances with a bucket each, the last bucket's

Row = dict[str, object]


# Problems -------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Sizes:
    """Of the problems. evoformer: rows, heads, length, width; reach: clamped distances each way; nodes: of a graph's
    table; fixed: the shapes of the deterministic part."""

    batch: int
    heads: int
    width: int
    lengths: tuple[int, ...]
    reach: int
    nodes: int
    evoformer: tuple[int, int, int, int]
    fixed: tuple[Shape, ...]


FULL = Sizes(2, 16, 64, (2048, 4096), 128, 64, (16, 8, 512, 32), (Shape(2, 16, 8192, 128), Shape(4, 16, 4096, 64)))
TINY = Sizes(2, 2, 16, (96,), 8, 8, (3, 2, 64, 16), (Shape(1, 2, 128, 16),))


def far_of(score: Tensor) -> Tensor:
    """Column minus row."""
    rows, columns = positions(score)
    return columns - rows


def bucket(far: Tensor) -> Tensor:
    """T5's bucket of a distance: half of them for each direction, exact ones and then logarithmic ones."""
    near, half = far.abs(), BUCKETS // 2
    steps = torch.log(near.clamp(min=1).float() / EXACT) / math.log(FARTHEST / EXACT) * (half - EXACT)
    wide = (EXACT + steps.long()).clamp(max=half - 1)
    return (far > 0).long() * half + torch.where(near < EXACT, near, wide)


def learned(*letters: str, **sizes: int) -> Callable:
    """Makes one tensor of unit variance: a letter for each axis; "." is an axis of one."""

    def made(shape: Shape, device: str, dtype: torch.dtype) -> tuple[Tensor]:
        known = {"b": shape.batch, "h": shape.heads, "i": shape.length, "j": shape.keys, ".": 1, **sizes}
        return (torch.randn(*(known[x] for x in letters), device=device, dtype=dtype),)

    return made


def with_index(nodes: int) -> Callable:
    """A table of numbers for pairs of nodes, and which entry each pair of a graph has."""

    def made(shape: Shape, device: str, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
        index = torch.randint(nodes, (shape.batch, shape.length, shape.keys), device=device)
        return (*learned("n", "h", n=nodes)(shape, device, dtype), index)

    return made


def cases(sizes: Sizes) -> dict[str, tuple[Variant, float]]:
    """Attention with a learned input: by name, with the ratio that is wanted."""
    reach = sizes.reach
    place = lambda far: far.clamp(-reach, reach) + reach
    dense = lambda s, bias: s + bias
    row = partial(Variant, dense=False)
    return {
        "dense bias": (row(dense, learned(*"bhij"), ("bhij",),
            lambda bias: lambda s, b, h, i, j: s + bias[b, h, i, j]), 1.4),
        "dense bias, shared": (row(dense, learned(*".hij"), (".hij",),
            lambda bias: lambda s, b, h, i, j: s + bias[0, h, i, j]), 1.4),
        "t5 table": (row(lambda s, table: s + table[bucket(far_of(s))].permute(2, 0, 1),
            learned("n", "h", n=BUCKETS), (".h",),
            lambda table: lambda s, b, h, i, j: s + table[bucket(j - i), h]), 1.2),
        "clamped table": (row(lambda s, table: s + table[place(far_of(s))].permute(2, 0, 1),
            learned("n", "h", n=2 * reach + 1), (".h",),
            lambda table: lambda s, b, h, i, j: s + table[place(j - i), h]), 1.2),
        "graph table": (row(lambda s, table, index: s + table[index].permute(0, 3, 1, 2),
            with_index(sizes.nodes), (".h", "bij"),
            lambda table, index: lambda s, b, h, i, j: s + table[index[b, i, j], h]), 1.2),
        "slopes": (row(lambda s, slopes: s - slopes[:, None, None] * far_of(s).abs(),
            lambda *given: tuple(x.abs() / 8 for x in learned("h")(*given)), ("h",),
            lambda slopes: lambda s, b, h, i, j: s - slopes[h] * (j - i).abs()), 1.05),
        "temperature": (row(lambda s, heat: s * heat[:, None, None],
            lambda *given: tuple(1 + x / 8 for x in learned("h")(*given)), ("h",),
            lambda heat: lambda s, b, h, i, j: s * heat[h]), 1.05),
        "sinks": (row(lambda s, sinks: s, learned("h"), ("h",)), 1.05),
    }  # fmt: skip


EVOFORMER = ("pair bias", 1.4)
CAUSAL = of_positions(lambda i, j: i >= j)


def sink_attention(q: Tensor, k: Tensor, v: Tensor, sinks: Tensor) -> Tensor:
    """A learned logit beside each row's scores."""
    score = q @ k.mT / math.sqrt(q.shape[-1])
    column = sinks.reshape(1, -1, 1, 1).expand(score.shape[0], -1, score.shape[2], 1)
    return torch.softmax(torch.cat([score, column], -1), -1)[..., :-1] @ v


def _flex_with_sinks(q: Tensor, k: Tensor, v: Tensor, sinks: Tensor) -> Tensor:
    found, total = flex_attention(q, k, v, return_lse=True)
    return found * torch.sigmoid(total - sinks[:, None]).unsqueeze(-1).to(found.dtype)


def _ways_of(function: Callable, arguments: tuple[Tensor, ...]) -> dict[str, Callable]:
    def flex() -> Call:
        made = torch.compile(function, dynamic=False)
        return lambda: made(*arguments)

    return {"flex": flex}


def pair_attention(q: Tensor, k: Tensor, v: Tensor, pair: Tensor) -> Tensor:
    """Evoformer's rows [b, n, h, s, d] with a bias [b, 1, h, s, s] of pairs."""
    return torch.softmax(q @ k.mT / math.sqrt(q.shape[-1]) + pair, -1) @ v


def _flex_with_pairs(q: Tensor, k: Tensor, v: Tensor, pair: Tensor) -> Tensor:
    rows = q.shape[1]
    mod = lambda score, b, h, i, j: score + pair[b // rows, 0, h, i, j]
    return flex_attention(*(x.flatten(0, 1) for x in (q, k, v)), score_mod=mod).view(q.shape)


def evoformer(sizes: Sizes, device: str, dtype: torch.dtype) -> BenchProblem:
    rows, heads, length, width = sizes.evoformer
    q, k, v = (torch.randn(1, rows, heads, length, width, device=device, dtype=dtype) for _ in range(3))
    pair = torch.randn(1, 1, heads, length, length, device=device, dtype=dtype)

    def cut(number: int) -> tuple:
        return (*(x[:, number : number + 1] for x in (q, k, v)), pair), (slice(None), slice(number, number + 1))

    elements, given = rows * heads * length**2, (q, k, v, pair)
    return BenchProblem(pair_attention, given, 4.0 * elements * width, elements, rows, cut,
                        _ways_of(_flex_with_pairs, given))  # fmt: skip


@dataclass(frozen=True)
class Job:
    """One problem of a part, which a process compiles and times."""

    part: str
    case: str
    shape: Shape | None
    wanted: float

    def made(self, sizes: Sizes, device: str) -> BenchProblem:
        torch.manual_seed(0)
        if self.shape is None:
            return evoformer(sizes, device, torch.bfloat16)
        variant = CAUSAL if self.part == "deterministic" else cases(sizes)[self.case][0]
        found = problem(variant, self.shape, device, torch.bfloat16)
        if self.case != "sinks":
            return found
        return replace(found, plain=sink_attention, ways=_ways_of(_flex_with_sinks, found.arguments))

    def size(self, sizes: Sizes) -> str:
        rows, heads, length, width = sizes.evoformer
        return str(self.shape or f"b1n{rows}h{heads}s{length}d{width}")


def jobs(parts: list[str], sizes: Sizes, pattern: str) -> list[Job]:
    shape = lambda length: Shape(sizes.batch, sizes.heads, length, sizes.width)
    found = [Job("learned", case, shape(n), wanted) for case, (_, wanted) in cases(sizes).items()
             for n in sizes.lengths]  # fmt: skip
    found.append(Job("learned", EVOFORMER[0], None, EVOFORMER[1]))
    found += [Job("deterministic", "causal", one, 1 / 0.85) for one in sizes.fixed]
    return [job for job in found if job.part in parts and re.search(pattern, job.case)]


# Contestants ----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Contestant:
    """who: onepass, compile or flex. begin: runs the forward and gives a call of the backward. right: its gradients."""

    who: str
    begin: Callable[[], Callable[[], Call]]
    right: Callable[[Expected], Expected] = lambda right: right


def _of_attention(right: Expected) -> Expected:
    """What is known of the gradients of queries, keys and values."""
    return replace(right, values=tuple(x[:ATTENTION] for x in right.values), allowed=right.allowed[:ATTENTION])


def _compiled(plain: Callable, arguments: tuple[Tensor, ...], options: dict | None) -> Call:
    backend = "inductor" if options is None else onepass_backend
    made = torch.compile(plain, backend=backend, dynamic=False, options=options)
    return lambda: made(*arguments)


def contestants(job: Job, given: BenchProblem) -> tuple[BackwardProblem, dict[str, Contestant]]:
    """Those of a problem, and the problem that has all gradients."""

    def kept(gradients: BackwardProblem, build: Callable[[], Call]) -> Callable:
        """The forward is compiled once, at the first `begin`."""
        built: list[Call] = []

        def call() -> Call:
            built[:] = built or [build()]
            return built[0]

        return gradients.way(call)

    if job.part == "deterministic":
        both = backward(given, "attention")
        ways = {"onepass": {**OWN, "deterministic": True}, "onepass" + WITHOUT: OWN}
        build = lambda options: partial(_compiled, given.plain, given.arguments, options)
        return both, {name: Contestant("onepass", kept(both, build(options))) for name, options in ways.items()}
    one, few = given, job.made(SIZES, given.arguments[0].device.type)
    every, some = backward(one, "all"), backward(few, "attention")
    some = replace(some, cotangents=every.cotangents)
    found = {}
    for known, end, right in ((every, "", Contestant.right), (some, WITHOUT, _of_attention)):
        make = partial(_compiled, known.problem.plain, known.problem.arguments)
        found["onepass" + end] = Contestant("onepass", kept(known, partial(make, OWN)), right)
        if not end:
            found["compile"] = Contestant("compile", kept(known, partial(make, None)), right)
        found["flex" + end] = Contestant("flex", kept(known, known.problem.ways["flex"]), right)
    return every, found


# Side by side ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Together:
    """What the processes share: all wait for `ready` before one times in its `turn`; so many compile at a time."""

    ready: Any
    turn: Any
    compiling: Any
    memory: Memory
    patience: float
    sizes: Sizes
    device: str
    rounds: int
    only: str


def _start(together: Together) -> None:
    global TOGETHER, SIZES
    TOGETHER, SIZES = together, together.sizes
    logging.disable(logging.WARNING)
    warnings.filterwarnings("ignore")
    import torch._inductor.config as inductor

    inductor.compile_threads = 1  # processes are many


@dataclass
class Progress:
    """What is known of a problem's contestants while they are compiled, checked and timed."""

    found: dict[str, ContestantResult] = field(default_factory=dict)
    told: dict[str, str] = field(default_factory=dict)
    ready: dict[str, Callable[[], Call]] = field(default_factory=dict)


def _told(name: str) -> str:
    """What the reports say of the backward: what was derived, who ran it, or why nothing was."""
    known = onepass.reports()
    lines = [f"{r.backward.splitlines()[0] if r.backward else 'no backward'}; ran by {r.backward_ran or 'nobody'}"
             for report in known for r in report.regions]  # fmt: skip
    reasons = [text for report in known for text in (*report.failures, *(r.reason for r in report.refusals))]
    return "; ".join(dict.fromkeys([*lines, *([] if lines else ["nothing fused"]), *reasons]))[:400]


def _moved(right: Expected, device: str) -> Expected:
    """Between the comparisons of one problem the memory of the device is for others."""
    return replace(right, values=tuple(tuple(x.to(device) for x in values) for values in right.values))


def _prepared(job: Job, given: BenchProblem) -> Progress:
    """Compiles and checks every contestant. No graph is kept: the memory is for those who are compiled beside it."""
    progress, place = Progress(), TOGETHER
    gradients, all_of_them = contestants(job, given)
    extra = LEARNED_BYTES * sum(x.numel() for x in gradients.leaves[ATTENTION:]) + 2**28
    with place.memory.reserved(EXACT_BYTES * given.elements / given.parts + extra):
        right = _moved(gradients.expected(), "cpu")
    for name, contestant in all_of_them.items():
        if not re.search(place.only, name):
            continue
        started = time.perf_counter()
        forget("reports")
        try:
            with place.memory.reserved(BYTES[contestant.who] * given.elements + extra), quiet():
                call = contestant.begin()
                progress.found[name] = checked(call, _moved(contestant.right(right), place.device))
                progress.told[name] = _told(name) if contestant.who == "onepass" else ""
                if job.part == "deterministic":
                    progress.told[name] += f"; {_repeated(call)}"
                del call
            progress.ready[name] = contestant.begin
        except Exception as error:  # a contestant that cannot do this has its reason in its row
            progress.found[name] = ContestantResult(note=said(error))
        print(job.case, job.size(SIZES), name, f"{time.perf_counter() - started:.0f} s", file=sys.stderr, flush=True)
    return progress


def _repeated(call: Call) -> str:
    first, *others = (call() for _ in range(3))
    same = all(torch.equal(x, y) for other in others for x, y in zip(first, other, strict=True))
    return "three runs: equal bits" if same else "three runs: different bits"


def _timed(progress: Progress) -> None:
    """Medians of rounds in turns, of those that ran, also of those that are wrong; their notes say so."""
    calls: dict[str, Call] = {}
    for name, begin in progress.ready.items():
        try:
            calls[name] = begin()
        except Exception as error:
            progress.found[name] = replace(progress.found[name], note=said(error))
    for name, taken in in_turns(calls, TOGETHER.rounds, progress.found).items():
        if taken:
            figures = {"ms": statistics.median(taken), "least": min(taken), "most": max(taken), "rounds": len(taken)}
            progress.found[name] = replace(progress.found[name], **figures)


def measured(job: Job) -> list[Row]:
    """Compiles, waits for the others, then times alone. Whatever happens, all wait for all."""
    note, progress = "", Progress()
    with TOGETHER.compiling:
        try:
            given = job.made(SIZES, TOGETHER.device)
            progress = _prepared(job, given)
        except Exception as error:
            progress.found["onepass"] = ContestantResult(note=said(error))
    try:
        TOGETHER.ready.wait(TOGETHER.patience)
    except BrokenBarrierError:
        note = "timed while others were compiled"
    with TOGETHER.turn:
        _timed(progress)
        rows = [_row(job, name, progress, note) for name in progress.found]
        progress.ready.clear()
        if torch.cuda.is_available():
            torch.cuda.empty_cache()
    return rows


def _row(job: Job, name: str, progress: Progress, note: str) -> Row:
    result, known = progress.found[name], progress.found
    ratio = lambda other: result.ms / known[other].ms if other in known and result.ms and known[other].ms else ""
    base = "onepass" + (WITHOUT if name.endswith(WITHOUT) else "")
    texts = (result.note, progress.told.get(name, ""), note)
    return {
        "part": job.part, "case": job.case, "shape": job.size(SIZES), "contestant": name, "ms": result.ms,
        "least_ms": result.least, "most_ms": result.most, "ratio": ratio(name + WITHOUT),
        "wanted": job.wanted if name == "onepass" else "", "over_onepass": ratio(base), "error": result.error,
        "allowed": result.allowed, "peak_mib": None if result.peak is None else result.peak / 2**20,
        "note": "; ".join(filter(None, texts)),
    }  # fmt: skip


# The command ----------------------------------------------------------------------------------------------------------


def shown(value: object) -> str:
    return "" if value is None else f"{value:.4g}" if isinstance(value, float) else str(value)


def table(rows: list[Row]) -> str:
    """The rows as lines of columns; of notes the beginning."""
    names = [name for name in COLUMNS if any(shown(row.get(name)) for row in rows)]
    lines = [names] + [[shown(row.get(name))[:NOTE] for name in names] for row in rows]
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    return "\n".join("  ".join(x.ljust(n) for x, n in zip(line, widths, strict=True)).rstrip() for line in lines)


def side_by_side(todo: list[Job], sizes: Sizes, options: argparse.Namespace) -> Iterator[Row]:
    """Rows of all problems, each as soon as it is timed."""
    context = multiprocessing.get_context("spawn")
    free = math.inf if options.device == "cpu" else SHARE * torch.cuda.mem_get_info()[0]
    compiling = context.Semaphore(options.processes or os.cpu_count() or 1)
    together = Together(context.Barrier(len(todo)), context.Lock(), compiling, Memory.of(context, free),
                        options.patience, sizes, options.device, options.rounds, options.only)  # fmt: skip
    with ProcessPoolExecutor(len(todo), context, _start, (together,)) as pool:
        jobs_of = {pool.submit(measured, job): job for job in todo}
        for done in as_completed(jobs_of):
            job = jobs_of[done]
            try:
                yield from done.result()
            except Exception as error:  # an error of the device is one of all later calls, too
                yield {"part": job.part, "case": job.case, "shape": job.size(sizes), "note": said(error)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path)
    parser.add_argument("--parts", type=lambda text: text.split(","), default=list(PARTS))
    parser.add_argument("--cases", default="", help="a regular expression on the names of cases")
    parser.add_argument("--only", default="", help="a regular expression on contestants; compile takes minutes for a "
                        "call with a table's gradient")  # fmt: skip
    parser.add_argument("--lengths", type=lambda text: tuple(map(int, text.split(","))))
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--patience", type=float, default=420.0, help="seconds that a problem waits for the others")
    parser.add_argument("--processes", type=int, default=0, help="how many compile at a time; 0: as many as cores")
    parser.add_argument("--device", default="cuda", choices=("cuda", "cpu"))
    options = parser.parse_args()
    sizes = TINY if options.device == "cpu" else FULL
    if options.device == "cuda" and not torch.cuda.is_available():
        parser.error("there is no GPU here; --device cpu tries the script at small sizes")
    if options.out is None or not set(options.parts) <= set(PARTS):
        parser.error(f"--out names a file, --parts some of {', '.join(PARTS)}")
    sizes = replace(sizes, lengths=options.lengths or sizes.lengths)
    todo, rows = jobs(options.parts, sizes, options.cases), []
    with options.out.open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, COLUMNS, restval="")
        writer.writeheader()
        for row in side_by_side(todo, sizes, options) if todo else ():
            rows.append(row)
            writer.writerow({name: shown(value) for name, value in row.items()})
            file.flush()
            print(*(shown(row.get(name)) for name in COLUMNS), sep=" | ", file=sys.stderr, flush=True)
    order = {job.case: number for number, job in enumerate(jobs(list(PARTS), sizes, ""))}
    print(table(sorted(rows, key=lambda row: (row["part"] != "learned", order.get(row["case"], 99)))))


if __name__ == "__main__":
    main()
