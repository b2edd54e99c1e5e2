"""Random programs on one GPU: onepass beside torch.compile, with its own overhead. Which ones does onepass slow down?

`python bench/random_programs.py --seconds 300 --processes 12 [--gradients] --out rows.csv`: programs of `tests.fuzz`,
whose values are not compared here. Processes compile at once; then one at a time is measured, with a cold L2 cache.
Slow ones are compiled and measured again at the end, alone: others may have disturbed what was chosen by timing. A
ratio below 1 is a program that onepass makes slower. "first" is the seconds of the first call, while others compile.
"""

from __future__ import annotations

import argparse
import json
import logging
import math
import multiprocessing
import os
import re
import signal
import statistics
import sys
import tempfile
import time
import traceback
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from random import Random
from threading import BrokenBarrierError
from types import FrameType

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import torch

import onepass
from onepass import process_state
from onepass.bench.results import write_rows
from onepass.bench.timing import ContestantResult, in_turns, said
from tests.fuzz.gradients import FLOATING, results_as_tuple
from tests.fuzz.programs import Extents, Fuzzed
from tests.fuzz.run import DRAWN

WIDTHS, DTYPES = (32, 64, 128, 96), ("bfloat16", "bfloat16", "float16", "float32")
CONTESTANTS = {"onepass": onepass.onepass_backend, "torch.compile": "inductor"}
ROUNDS, AGAIN = 3, 5
SLOW = 0.95  # of torch.compile: less is measured again
COMPILE_SECONDS = 100  # that one program may take to compile, beside others
ROUND_SECONDS = COMPILE_SECONDS + 30.0  # that processes wait for the slowest: code in C++ may see the alarm late
FIELDS = ("seed", "number", "ratio", "again", "onepass", "torch.compile", "first", "first.torch", "ran", "source")

Row = dict[str, object]


def drawn(seed: int, longest: int, gradients: bool) -> Iterator[Fuzzed]:
    """Programs of ordinary values and known sizes, some in unusual layouts."""
    random, extents = Random(seed), Extents(longest, WIDTHS, DTYPES)
    while True:
        program = replace(random.choice(DRAWN)(random, extents), regime="normal", later={}, dynamic=False)
        floats = [name for name, (kind, _) in program.inputs.items() if kind in FLOATING]
        if not gradients or floats:
            yield replace(program, wanted=tuple(floats) if gradients else ())


def contestant(program: Fuzzed, backend: object) -> tuple[Callable[[], object], float]:
    """A call of the compiled program, and the seconds of its first one. A step is forward and backward."""
    tensors = program.tensors("cuda")
    given = [t.requires_grad_(name in program.wanted) for name, t in zip(program.inputs, tensors, strict=True)]
    leaves = [t for t in given if t.requires_grad]
    made = torch.compile(program.function(), backend=backend, dynamic=False)

    def step() -> object:
        results = [r for r in results_as_tuple(made(*given)) if r.requires_grad]
        cotangents = [r.detach() for r in results]
        return torch.autograd.grad(results, leaves, cotangents, allow_unused=True)

    call = step if program.wanted else lambda: made(*given)
    start = time.perf_counter()
    call()
    torch.cuda.synchronize()
    first = time.perf_counter() - start
    for _ in range(3):
        call()
    torch.cuda.synchronize()
    return call, first


def prepared(program: Fuzzed) -> tuple[Row, dict[str, Callable]]:
    """A row without times, and the calls of both contestants; no calls where one of them fails."""
    process_state.forget()
    torch._dynamo.reset()
    row: Row = {"source": str(program)}
    calls = {}
    with torch.set_grad_enabled(bool(program.wanted)):
        for name, backend in CONTESTANTS.items():
            first = "first" if name == "onepass" else "first.torch"
            try:
                calls[name], row[first] = contestant(program, backend)
            except Exception as error:
                return {**row, "ran": f"{name}: {said(error)}"}, {}
            if name == "onepass":
                found = [(region.ran, *region.notes) for report in onepass.reports() for region in report.regions]
                refused = [one.reason for report in onepass.reports() for one in report.refusals]
                row["ran"] = "; ".join(map(str, found)) or f"nothing fused: {'; '.join(refused)}"
    return row, calls


class TooSlow(BaseException):
    """A program did not compile in time. This is no Exception, since the compilers catch those."""


@contextmanager
def within(seconds: int) -> Iterator[None]:
    """Raises TooSlow, with the innermost calls, inside of what takes longer."""

    def late(number: int, frame: FrameType | None) -> None:
        calls = reversed(traceback.extract_stack(frame)[-8:])
        raise TooSlow(f"{seconds} s, in " + " < ".join(f"{Path(f.filename).name}:{f.lineno} {f.name}" for f in calls))

    signal.signal(signal.SIGALRM, late)
    signal.alarm(seconds)
    try:
        yield
    finally:
        signal.alarm(0)


def timed(calls: dict[str, Callable], rounds: int, wanted: bool) -> Row:
    """Milliseconds of both, and their ratio."""
    with torch.set_grad_enabled(wanted):
        taken = in_turns(calls, rounds, dict.fromkeys(calls, ContestantResult()))
    if not all(taken.get(name) for name in CONTESTANTS):
        return {}
    found = {name: statistics.median(taken[name]) for name in CONTESTANTS}
    return {**found, "ratio": found["torch.compile"] / found["onepass"]}


def work(seed: int, asked: argparse.Namespace, barrier, turn, ends) -> None:
    """One process: a program in each round, until the time is over, or until one process has lost the GPU."""
    isolate_process()
    torch.zeros(1, device="cuda")
    try:
        barrier.wait(ROUND_SECONDS)
        for number, program in enumerate(drawn(seed, asked.longest, asked.gradients)):
            row = {"seed": seed, "number": number, "ran": "does not end", "source": str(program)}
            try:
                with within(COMPILE_SECONDS):
                    found, calls = prepared(program)
                row |= found
            except TooSlow as error:
                row["ran"], calls = f"does not compile in {error}", {}
            barrier.wait(ROUND_SECONDS)
            with turn:
                row |= timed(calls, ROUNDS, bool(program.wanted)) if calls else {}
                keep(row, asked.rows)
                torch.cuda.synchronize()
            calls.clear()
            if barrier.wait(ROUND_SECONDS) == 0 and time.time() > asked.until:
                ends.set()
            barrier.wait(ROUND_SECONDS)
            if ends.is_set():
                return
    except BrokenBarrierError:
        if "ratio" not in row:  # else it is kept already
            keep({**row, "ran": f"cut off: {row['ran']}"}, asked.rows)
    except Exception as error:  # of the GPU, or of a program that cannot be made
        keep({**row, "ran": f"{said(error)}: {row['ran']}"}, asked.rows)
        barrier.abort()


def isolate_process() -> None:
    """Gives this process a cache of its own, one thread, and no warnings."""
    os.environ["ONEPASS_CACHE"] = tempfile.mkdtemp()
    os.environ["TORCHINDUCTOR_COMPILE_THREADS"] = "1"
    logging.disable(logging.ERROR)
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)


def keep(row: Row, path: Path) -> None:
    """Adds a row to a file, one line of JSON: nothing is lost if the rest fails."""
    with path.open("a") as file:
        file.write(json.dumps(row) + "\n")


def groups(asked: argparse.Namespace) -> None:
    """Processes at work together, and new ones with other programs where they were cut off."""
    context, seed = multiprocessing.get_context("spawn"), asked.seed
    while time.time() < asked.until:
        barrier, turn, ends = context.Barrier(asked.processes), context.Lock(), context.Event()
        seeds = range(seed, seed + asked.processes)
        started = [context.Process(target=work, args=(n, asked, barrier, turn, ends), daemon=True) for n in seeds]
        for process in started:
            process.start()
        for process in started:
            process.join(asked.until + ROUND_SECONDS - time.time())
            process.kill()
        seed += asked.processes


def again(row: Row, asked: argparse.Namespace) -> Row:
    """The row of a slow program with its ratio when it is compiled and measured alone."""
    programs = drawn(row["seed"], asked.longest, asked.gradients)
    program = next(one for number, one in enumerate(programs) if number == row["number"])
    fresh, calls = prepared(program)
    measured = timed(calls, AGAIN, bool(program.wanted)) if calls else {}
    return {**row, **fresh, **{n: measured.get(n) for n in CONTESTANTS}, "again": measured.get("ratio", "failed")}


def show(rows: list[Row]) -> None:
    """Prints how many are slower, by what ran, and the slow ones."""
    known = sorted(row["ratio"] for row in rows if "ratio" in row)
    if not known:
        print("nothing was measured")
        return
    failed = re.compile(r"cut off|does not|\w+Error|.*AcceleratorError", re.DOTALL)
    for row in (row for row in rows if failed.match(row["ran"])):
        print(f"\n{row['ran'][:600]}\n{row['source']}")
    last = [row.get("again", row["ratio"]) for row in rows if "ratio" in row]
    slow = [ratio for ratio in last if isinstance(ratio, float) and ratio < SLOW]
    mean = math.exp(statistics.fmean(map(math.log, known)))
    print(f"{len(rows)} programs, {len(known)} measured: geometric mean {mean:.2f}, least {known[0]:.2f}")
    print(f"below {SLOW}: {sum(ratio < SLOW for ratio in known)} beside others, {len(slow)} once more, alone")
    for row in sorted((row for row in rows if "again" in row), key=lambda row: str(row["again"])):
        figures = "  ".join(f"{name} {row[name]:.4g}" for name in FIELDS[2:8] if isinstance(row.get(name), float))
        print(f"\n{figures}  {str(row['ran'])[:600]}\n{row['source']}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, default=Path("random_programs.csv"), help="a file for the rows")
    parser.add_argument("--seconds", type=float, default=300, help="no round begins later")
    parser.add_argument("--alone", type=float, default=120, help="seconds for slow programs, once more")
    parser.add_argument("--processes", type=int, default=8)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--longest", type=int, default=2048, help="the longest sequence")
    parser.add_argument("--gradients", action="store_true", help="a step is forward and backward")
    asked = parser.parse_args()
    asked.until, asked.rows = time.time() + asked.seconds, asked.out.with_suffix(".jsonl")
    asked.rows.unlink(missing_ok=True)
    groups(asked)
    rows = [json.loads(line) for line in asked.rows.read_text().splitlines()]
    isolate_process()
    until = time.time() + asked.alone
    for number, row in sorted(enumerate(rows), key=lambda pair: pair[1].get("ratio", 9.0)):
        if row.get("ratio", 9.0) < SLOW and time.time() < until:
            rows[number] = again(row, asked)
            keep(rows[number], asked.rows)
    write_rows(asked.out, FIELDS, rows)
    show(rows)


if __name__ == "__main__":
    main()
