"""Measures a table of kernel configurations on one GPU: every one is compiled apart, checked, then timed.

Plans are derived and kernels compiled (and launched once) in worker processes, which end before anything is timed. Then
one process launches from Triton's cache, compares with the attention in float32, and times, in two rounds over each
problem's kernels and three more over the fastest. Rows are written as they are known; a run with the same --out goes
on where the last ended, and measures what leads once more: of two rows of one kernel, the later counts.
"""

from __future__ import annotations

import argparse
import csv
import math
import os
import pickle
import statistics
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from functools import cache
from pathlib import Path
from queue import SimpleQueue

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from bench.settings import EXECUTORS, SPILLED, Problem, Setting, leading, plain, problems, shapes, slices
from onepass.tune.trial_process import Outcome, Worker

TOLERANCE = 2e-2  # largest accepted difference from float32 attention, for bf16 inputs of unit variance
COMPILE_SECONDS, TIME_SECONDS = 40.0, 20.0
COMPILING = 0.55  # of the time, at most, is for compilation
ROUNDS, FINAL = 2, 3  # over a problem's kernels, and more over its fastest; what they differ by is the noise of a row
FINALISTS = 5
KEY = ("variant", "batch", "heads", "length", "width", "executor", "rows", "loop", "warps", "stages", "order", "more")
COLUMNS = (*KEY, "status", "ms", "noise", "tflops", "error", "registers", "spilled", "shared", "note", "machine")


@dataclass(frozen=True)
class Task:
    """What a worker is asked; `plan` is the file that holds the pickled plan."""

    problem: Problem
    setting: Setting | None
    plan: str

    def key(self) -> tuple[str, ...]:
        batch, heads, length, width = self.problem.shape
        setting = asdict(self.setting).values()
        return tuple(map(str, (self.problem.variant, batch, heads, length, width, *setting)))


# In the workers -------------------------------------------------------------------------------------------------------


def derive(task: Task) -> None:
    """Writes the problem's plan to the task's file, if no other process has."""
    import torch

    from onepass.compiler.optimize import optimize
    from onepass.graph.trace import program_of
    from onepass.lowering.gluon.launch import fits
    from onepass.lowering.hopper.split_states import with_split_states
    from onepass.translate.translate import translate

    path = Path(task.plan)
    if not path.exists():
        inputs = (torch.empty(shape, dtype=torch.bfloat16) for shape in shapes(task.problem).values())
        captured = translate(program_of(plain(task.problem), *inputs))
        plan = with_split_states(optimize(captured.term, captured.output, captured.order).plan, fits)
        own = path.with_suffix(f".{os.getpid()}")
        own.write_bytes(pickle.dumps(plan))
        own.rename(path)


@cache
def plan_of(path: str):
    return pickle.loads(Path(path).read_bytes())


@cache
def inputs_of(problem: Problem) -> dict:
    import torch

    torch.manual_seed(0)
    make = lambda shape: torch.randn(shape, device="cuda", dtype=torch.bfloat16)
    return {name: make(shape) for name, shape in shapes(problem).items()}


@cache
def launcher_of(task: Task):
    return EXECUTORS[task.setting.executor][1](plan_of(task.plan), task.setting)


def compile_first(task: Task) -> dict:
    """Compiles into Triton's disk cache, launches once, and says what the kernels need of a thread and a block."""
    import torch

    from onepass.lowering.launch.triton_compat import compiled_forms
    from onepass.lowering.triton.launch import load

    derive(task)
    load.cache_clear()  # a function that an earlier task launched would report that task's forms too
    launcher = launcher_of.__wrapped__(task)
    with torch.no_grad():
        or_end(lambda: launcher(inputs_of(task.problem)))
    functions = [launch.function for launches in launcher.prepared._prepared.values() for launch in launches]
    forms = [form for function in functions for form in compiled_forms(function)]
    return {name: max((form[name] for form in forms), default=0) for name in ("registers", "spilled", "shared")}


def or_end(call):
    """The call's result, waited for. The process ends if the GPU no longer answers it: every later call would fail."""
    import torch

    try:
        result = call()
        torch.cuda.synchronize()
        return result
    except Exception:
        try:
            torch.cuda.synchronize()
        except Exception:
            os._exit(86)
        raise


@cache
def expected_of(problem: Problem) -> list:
    """(part of batch and heads, float32 attention of it)"""
    return [(part, _exact(problem, *part)) for part in slices(problem)]


def _exact(problem: Problem, batch: slice, heads: slice):
    """Of so few heads that their scores fit in memory."""
    tensors = inputs_of(problem)
    part = lambda x: x[heads] if x.ndim == 3 else x[batch, heads]
    return plain(problem)(*(part(x).float() for x in tensors.values()))


def check_and_time(task: Task) -> dict:
    """{"error", "times"}: milliseconds of single launches, only of a result that is right."""
    import torch

    with torch.no_grad():
        launcher, inputs = launcher_of(task), inputs_of(task.problem)
        result = or_end(lambda: launcher(inputs))
        expected = expected_of(task.problem)
        error = max((result[part].float() - x).abs().max().item() for part, x in expected)
        if not bool(torch.isfinite(result).all()) or not error <= TOLERANCE:
            return {"error": error}
        return {"error": error, "times": or_end(lambda: milliseconds(lambda: launcher(inputs)))}


def milliseconds(call, repeat: int = 10) -> list[float]:
    """Of single launches, each between two events."""
    import torch

    for _ in range(2):
        call()
    events = [[torch.cuda.Event(enable_timing=True) for _ in range(2)] for _ in range(repeat)]
    for start, end in events:
        start.record()
        call()
        end.record()
    torch.cuda.synchronize()
    return [start.elapsed_time(end) for start, end in events]


def pretend_compile(task: Task) -> dict:
    s = task.setting
    needs = 2 * task.problem.width * (s.rows + 2 * s.loop * s.stages)
    if needs > 232448:
        raise RuntimeError(f"OutOfResources: out of resource: shared memory, Required: {needs}")
    return {"registers": 128, "spilled": 64 * (s.rows * task.problem.width > 8192 * s.warps), "shared": needs}


def pretend_time(task: Task) -> dict:
    """A made-up time that depends on the setting; one setting ends the process, one never returns, one is wrong."""
    s = task.setting
    if (s.rows, s.loop, s.warps, s.stages) == (64, 32, 8, 2):
        os._exit(3)
    if (s.rows, s.loop, s.warps, s.stages) == (64, 32, 4, 2):
        return {"error": math.nan}
    return {"error": 1e-3, "times": [1.0 + abs(s.rows - 128) / 256 + abs(s.loop - 64) / 256 + 0.1 * s.stages] * 3}


# Around the workers ---------------------------------------------------------------------------------------------------


class Pool:
    """`count` workers behind threads: a list of tasks goes to one that is free."""

    def __init__(self, function, count: int, seconds: float):
        self.threads, self.free = ThreadPoolExecutor(count), SimpleQueue()
        self.workers = [Worker(function, seconds) for _ in range(count)]
        for worker in self.workers:
            self.free.put(worker)

    def run(self, tasks: list[Task]) -> list[Outcome]:
        worker = self.free.get()
        try:
            return [worker(task) for task in tasks]
        finally:
            self.free.put(worker)

    def submit(self, tasks: list[Task]):
        return self.threads.submit(self.run, tasks)

    def close(self) -> None:
        self.threads.shutdown(wait=False, cancel_futures=True)
        for worker in self.workers:
            worker.close()


def verdict(compiled: Outcome, timed: list[Outcome]) -> tuple[str, str]:
    """(status, note) of a row."""
    bad = next((o for o in (compiled, *timed) if o.status != "ok"), None)
    if bad is not None:
        out = "out of resource" in bad.note.lower() or "outofresources" in bad.note.lower()
        kind = "compile error" if bad is compiled and bad.status == "error" else bad.status
        return "out of resource" if out else kind, bad.note
    wrong = next((o.value["error"] for o in timed if "times" not in o.value), None)
    if wrong is not None:
        return "wrong", f"off by {wrong:.3g}"
    return ("spill" if compiled.value["spilled"] > SPILLED else "ok"), ""


def row(task: Task, compiled: Outcome, timed: list[Outcome], machine: str) -> dict:
    status, note = verdict(compiled, timed)
    filled = dict(zip(KEY, task.key())) | {"status": status, "note": note, "machine": machine}
    if compiled.status == "ok":
        filled |= {n: compiled.value[n] for n in ("registers", "spilled", "shared")}
    if status in ("ok", "spill"):
        rounds = [statistics.median(o.value["times"]) for o in timed]
        ms = statistics.median(x for o in timed for x in o.value["times"])
        filled |= {"ms": f"{ms:.4f}", "noise": f"{(max(rounds) - min(rounds)) / ms:.4f}"}
        filled |= {"error": f"{timed[0].value['error']:.2e}", "tflops": f"{task.problem.flops() / ms / 1e9:.1f}"}
    return filled


def done_already(path: Path) -> set[tuple[str, ...]]:
    if not path.exists():
        return set()
    with path.open(newline="") as file:
        return {tuple(r[name] for name in KEY) for r in csv.DictReader(file)}


def machine_name() -> str:
    import torch
    import triton

    device = torch.cuda.get_device_name() if torch.cuda.is_available() else "no GPU"
    return f"{device}; torch {torch.__version__}; triton {triton.__version__}"


def tasks_of(options, folder: str) -> list[list[Task]]:
    """Executors in order; of each, a turn holds one setting of every variant and width: a table cut short is a fair
    sample. A setting's tasks of all lengths are together: most of these share a kernel.
    """
    found = []
    for name in options.executors.split(","):
        alike: dict[tuple, list[Problem]] = {}
        for problem in (p for variant in options.variants.split(",") for p in problems() if p.variant == variant):
            alike.setdefault((problem.variant, problem.width), []).append(problem)
        turns = []
        for some in alike.values():
            settings = EXECUTORS[name][0](some[0])
            turns += [(turn, [_task(p, s, folder) for p in some]) for turn, s in enumerate(settings)]
        found += [tasks for _, tasks in sorted(turns, key=lambda found: found[0])]
    return found


def _task(problem: Problem, setting: Setting, folder: str) -> Task:
    return Task(problem, setting, str(Path(folder) / f"{problem.variant}_{problem.length}_{problem.width}.plan"))


def compile_all(groups: list[list[Task]], function, options, ends: float) -> dict[Task, Outcome]:
    """What was compiled before the time was up; afterwards no process compiles any more."""
    pool, found = Pool(function, options.workers, COMPILE_SECONDS), {}
    futures = [(tasks, pool.submit(tasks)) for tasks in groups]
    for _, future in futures:
        try:
            future.result(max(0.0, ends - time.monotonic()))
        except TimeoutError:
            break
    for tasks, future in futures:
        if future.done() and not future.cancelled():
            found |= zip(tasks, future.result())
    pool.close()
    return found


def time_all(compiled: dict[Task, Outcome], function, ends: float):
    """Yields (task, its outcomes of every round), problem by problem, until the time is up."""
    timer, problems = Worker(function, TIME_SECONDS), dict.fromkeys(task.problem for task in compiled)
    for problem in problems:
        rounds: dict[Task, list[Outcome]] = {t: [] for t in compiled if t.problem == problem}
        running = [t for t in rounds if compiled[t].status == "ok"]
        for turn in range(ROUNDS + FINAL):
            if turn == ROUNDS:
                running = sorted(running, key=lambda t: _fastest(rounds[t]))[:FINALISTS]
            for task in (t for t in running if all(o.status == "ok" for o in rounds[t])):
                rounds[task].append(timer(task))
        yield from rounds.items()
        if time.monotonic() > ends:
            print("out of time: run again with the same --out to go on", flush=True)
            break
    timer.close()


def _fastest(outcomes: list[Outcome]) -> float:
    return min((t for o in outcomes if o.status == "ok" for t in o.value.get("times", ())), default=math.inf)


def measure_all(groups: list[list[Task]], options, writer, file, machine: str) -> int:
    """Compiles on all processes, ends these, then times on one, so that nothing runs beside."""
    compiling, timing = (pretend_compile, pretend_time) if options.pretend else (compile_first, check_and_time)
    begins, count = time.monotonic(), 0
    compiled = compile_all(groups, compiling, options, begins + COMPILING * options.seconds)
    print(f"{len(compiled)} compiled in {time.monotonic() - begins:.0f} s", flush=True)
    for task, timed in time_all(compiled, timing, begins + options.seconds):
        writer.writerow(row(task, compiled[task], timed, machine))
        file.flush()
        count += 1
    return count


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", required=True, help="the CSV file; what it has, and does not lead, is left")
    parser.add_argument("--workers", type=int, default=os.cpu_count(), help="processes that compile")
    parser.add_argument("--seconds", type=float, default=330.0, help="stop after this time, with what there is")
    every = ",".join(dict.fromkeys(p.variant for p in problems()))
    parser.add_argument("--variants", default=every, help="in this order")
    parser.add_argument("--executors", default="gluon,triton", help="in this order")
    parser.add_argument("--most", type=int, default=1 << 30, help="at most so many settings")
    parser.add_argument("--pretend", action="store_true", help="no GPU: made-up times, to try the script")
    options = parser.parse_args(arguments)
    out, machine = Path(options.out), "pretended" if options.pretend else machine_name()
    with tempfile.TemporaryDirectory() as folder:
        done = done_already(out)
        wanted = lambda task: task.key() not in done or task.setting in leading(task.problem, task.setting.executor)
        groups = [[t for t in tasks if wanted(t)] for tasks in tasks_of(options, folder)]
        groups = [tasks for tasks in groups if tasks][: options.most]
        print(f"{machine}: {sum(map(len, groups))} to measure, {len(done)} are there", flush=True)
        with out.open("a", newline="") as file:
            writer = csv.DictWriter(file, COLUMNS)
            if not done:
                writer.writeheader()
            count = measure_all(groups, options, writer, file, machine)
    print(f"{count} rows written to {out}", flush=True)


if __name__ == "__main__":
    main()
