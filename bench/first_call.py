"""The first call of a program in a new process, beside torch.compile's: with empty caches, then with those it left.

`python bench/first_call.py --out FILE [--programs causal softcap] [--repeats 1] [--device cpu]`. The clock starts in
front of `torch.compile`, and Dynamo is imported behind it; a second clock times the backward. Stages add up to both.
Processes start side by side, import torch and make their inputs; then one after the other is timed, alone. Python's
bytecode is there already, as it is on a user's machine. A ratio is onepass's seconds over Inductor's.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from importlib import import_module
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import torch
import torch.nn.functional as F
from torch import Tensor

CONTESTANTS = ("onepass", "inductor")
CACHES = ("ONEPASS_CACHE", "TORCHINDUCTOR_CACHE_DIR", "TRITON_CACHE_DIR")  # folders on disk, by their variables
RUNS = ("cold", "warm")  # with empty caches, and with what the cold run left
FIELDS = ("program", "contestant", "caches", "forward", "backward", "ratio", "wanted", "stages", "ran", "where")
MOST_COLD, MOST_WARM = 1.3, 1.0  # times Inductor's seconds; seconds
AHEAD = 4  # processes that make their inputs while one is timed
PATIENCE = 300.0  # seconds that a process may take
Program = tuple[Callable[..., Tensor], list[Tensor]]
PROGRAMS: dict[str, Callable[[bool, str], Program]] = {}
Row = dict[str, Any]


# Programs -------------------------------------------------------------------------------------------------------------


def program(make: Callable[[bool, str], Program]) -> Callable[[bool, str], Program]:
    """Registers a program: made for small sizes or not, on a device. Inputs that need gradients have a backward."""
    PROGRAMS[make.__name__] = make
    return make


def drawn(device: str, *sizes: int) -> Tensor:
    return torch.randn(*sizes, device=device).to(torch.bfloat16)


def heads(small: bool, device: str) -> list[Tensor]:
    """Queries, keys and values."""
    return [drawn(device, *((1, 2, 128, 16) if small else (4, 16, 4096, 64))) for _ in range(3)]


def kept(length: int, device: torch.device) -> Tensor:
    rows = torch.arange(length, device=device)
    return rows[:, None] >= rows


def causal_attention(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    scores = (q @ k.mT / math.sqrt(q.shape[-1])).masked_fill(~kept(q.shape[-2], q.device), -math.inf)
    return scores.softmax(-1) @ v


@program
def causal(small: bool, device: str) -> Program:
    return causal_attention, heads(small, device)


@program
def softcap(small: bool, device: str) -> Program:
    def run(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return (20 * torch.tanh(q @ k.mT / 160)).softmax(-1) @ v

    return run, heads(small, device)


@program
def paged_decode(small: bool, device: str) -> Program:
    """One query of each sequence, whose keys lie in pages."""
    count, shared, width, slots, most = (2, 2, 16, 4, 8) if small else (32, 8, 128, 16, 256)

    def run(q: Tensor, keys: Tensor, values: Tensor, table: Tensor, lengths: Tensor) -> Tensor:
        k, v = (pages[table].flatten(1, 2).transpose(1, 2) for pages in (keys, values))
        k, v = (x.repeat_interleave(q.shape[1] // x.shape[1], 1) for x in (k, v))
        far = torch.arange(k.shape[2], device=q.device) >= lengths[:, None, None, None]
        return (q @ k.mT * q.shape[-1] ** -0.5).masked_fill(far, -math.inf).softmax(-1) @ v

    pages = [drawn(device, count * most, slots, shared, width) for _ in range(2)]
    table = torch.randperm(count * most, device=device).view(count, most)
    lengths = torch.randint(slots, slots * most, (count,), device=device)
    return run, [drawn(device, count, 4 * shared, 1, width), *pages, table, lengths]


@program
def cross_entropy(small: bool, device: str) -> Program:
    rows, width, words = (32, 16, 200) if small else (4096, 1024, 32000)

    def run(x: Tensor, w: Tensor, y: Tensor) -> Tensor:
        return F.cross_entropy((x @ w.T).float(), y)

    return run, [drawn(device, rows, width), drawn(device, words, width), torch.randint(words, (rows,), device=device)]


@program
def linear_attention(small: bool, device: str) -> Program:
    def run(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return (q @ k.mT).masked_fill(~kept(q.shape[-2], q.device), 0) @ v

    return run, heads(small, device)


@program
def causal_training(small: bool, device: str) -> Program:
    return causal_attention, [x.requires_grad_() for x in heads(small, device)]


@program
def alibi_training(small: bool, device: str) -> Program:
    """Gradients of the slopes, too."""

    def run(q: Tensor, k: Tensor, v: Tensor, slopes: Tensor) -> Tensor:
        rows = torch.arange(q.shape[-2], device=q.device)
        scores = q @ k.mT / math.sqrt(q.shape[-1]) - slopes[:, None, None] * (rows[:, None] - rows).abs()
        return scores.masked_fill(~kept(q.shape[-2], q.device), -math.inf).softmax(-1) @ v

    given = heads(small, device)
    slopes = torch.rand(given[0].shape[1], device=device).to(torch.bfloat16)
    return run, [x.requires_grad_() for x in (*given, slopes)]


# A process ------------------------------------------------------------------------------------------------------------


def first_call(name: str, contestant: str, device: str) -> None:
    """Prints "ready", waits for a line, and prints the seconds of the first call and of their stages as JSON."""
    torch.manual_seed(0)
    function, given = PROGRAMS[name](device == "cpu", device)
    leaves = [x for x in given if x.requires_grad]
    wait = torch.cuda.synchronize if device == "cuda" else lambda: None
    wait()
    print("ready", flush=True)
    sys.stdin.readline()
    stages: dict[str, float] = {}
    start = last = time.perf_counter()

    def lap(stage: str) -> None:
        nonlocal last
        now = time.perf_counter()
        stages[stage] = now - last
        last = now

    dynamo = import_module("torch._dynamo")
    lap("import of Dynamo")
    backend = dynamo.lookup_backend(contestant)
    lap("import of the backend")
    spent: list[float] = []

    def timed(*arguments: Any) -> Any:
        began = time.perf_counter()
        try:
            return backend(*arguments)
        finally:
            spent.append(time.perf_counter() - began)

    result = torch.compile(function, backend=timed, dynamic=False)(*given)
    wait()
    forward = time.perf_counter() - start
    traced = sum(dynamo.utils.compilation_time_metrics["_compile.compile_inner"]) - sum(spent)
    middle = time.perf_counter()
    if leaves:
        torch.autograd.grad(result.float().square().mean(), leaves)
        wait()
    backward = time.perf_counter() - middle
    inner, ran = _of_onepass() if contestant == "onepass" else ({"Inductor": sum(spent)}, "")
    stages |= {"Dynamo": traced, **inner}
    stages["rest"] = forward + backward - sum(stages.values())
    print(json.dumps({"forward": forward, "backward": backward if leaves else None, "stages": stages, "ran": ran}))


def _of_onepass() -> tuple[dict[str, float], str]:
    """The seconds of all stages that the reports know, and who ran."""
    import onepass

    total: dict[str, float] = {}
    reports = onepass.reports()
    regions = [region for report in reports for region in report.regions]
    for seconds in (x.seconds for x in (*reports, *regions)):
        for stage, took in seconds.items():
            total[stage] = total.get(stage, 0.0) + took
    said = [who for region in regions for who in (region.ran, region.backward_ran) if who]
    reasons = [refused.reason for report in reports for refused in report.refusals]
    return total, "; ".join(dict.fromkeys([*said, *reasons])) or "nothing fused"


# All of them ----------------------------------------------------------------------------------------------------------


def started(name: str, contestant: str, device: str, caches: str, bytecode: str) -> subprocess.Popen:
    """A process that imports torch, makes its inputs and waits for a line."""
    known = {key: value for key, value in os.environ.items() if key != "PYTHONDONTWRITEBYTECODE"}
    folders = {variable: f"{caches}/{variable}" for variable in CACHES}
    command = [sys.executable, __file__, "--first-call", name, contestant, "--device", device]
    pipes = dict.fromkeys(("stdin", "stdout", "stderr"), subprocess.PIPE)
    return subprocess.Popen(command, env={**known, **folders, "PYTHONPYCACHEPREFIX": bytecode}, text=True, **pipes)


def answer(process: subprocess.Popen) -> Row:
    """What a process measured once it was told to begin, or why it did not."""
    try:
        out, told = process.communicate("\n", timeout=PATIENCE)
    except subprocess.TimeoutExpired:
        process.kill()
        process.communicate()
        return {"ran": f"no answer after {PATIENCE:g} s"}
    if process.returncode:
        return {"ran": " ".join(told.split())[-300:]}
    return json.loads(out.splitlines()[-1])


def is_ready(process: subprocess.Popen) -> bool:
    """Waits until a process has made its inputs; whether it has."""
    return process.stdout.readline().strip() == "ready"


def measured(names: list[str], repeats: int, device: str) -> Iterator[Row]:
    """The rows: each program's contestants in turns, each cold and then warm. While one is timed no other starts."""
    todo = [(n, who, again) for n in names for again in range(repeats) for who in CONTESTANTS]
    with tempfile.TemporaryDirectory() as folder:
        start = lambda n, who, again, run: started(n, who, device, f"{folder}/{n}-{who}-{again}", f"{folder}/bytecode")
        with ThreadPoolExecutor(len(CONTESTANTS)) as pool:  # their bytecode is written, and nothing is timed
            list(pool.map(answer, [start("causal_training", who, "first", "") for who in CONTESTANTS]))
        for run in RUNS:
            for place in range(0, len(todo), AHEAD):
                waiting = [(one, start(*one, run)) for one in todo[place : place + AHEAD]]
                for _, process in waiting:
                    is_ready(process)
                for (name, who, _), process in waiting:
                    yield {"program": name, "contestant": who, "caches": run, **answer(process)}


def summary(rows: list[Row], where: str) -> list[Row]:
    """A row for each program, contestant and caches: medians, and onepass's ratio to Inductor's."""
    found = []
    for name in dict.fromkeys(row["program"] for row in rows):
        for caches in RUNS:
            total: dict[str, float] = {}
            for who in reversed(CONTESTANTS):
                same = [r for r in rows if (r["program"], r["contestant"], r["caches"]) == (name, who, caches)]
                if not same:
                    continue
                done = [row for row in same if "forward" in row]
                row = {"program": name, "contestant": who, "caches": caches, "where": where, "ran": same[-1]["ran"]}
                found.append(row)
                if not done:
                    continue
                both = lambda r: r["forward"] + (r["backward"] or 0.0)
                middle = sorted(done, key=both)[len(done) // 2]
                row |= {"forward": middle["forward"], "backward": middle["backward"]}
                row["stages"] = json.dumps({stage: round(took, 3) for stage, took in middle["stages"].items()})
                total[who] = statistics.median(map(both, done))
            if len(total) == len(CONTESTANTS):
                row["ratio"] = total["onepass"] / total["inductor"]
                row["wanted"] = f"ratio {MOST_COLD}" if caches == "cold" else f"{MOST_WARM} s"
    return found


def shown(value: object) -> str:
    return "" if value is None else f"{value:.3g}" if isinstance(value, float) else str(value)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, help="a file for the rows, as comma-separated values")
    parser.add_argument("--programs", nargs="*", choices=PROGRAMS, default=list(PROGRAMS))
    parser.add_argument("--repeats", type=int, default=1, help="pairs of processes for each; the medians are kept")
    parser.add_argument("--device", default="cuda", choices=("cuda", "cpu"))
    parser.add_argument("--first-call", nargs=2, metavar=("PROGRAM", "CONTESTANT"), help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.first_call:
        first_call(*options.first_call, options.device)
        return
    if options.device == "cuda" and not torch.cuda.is_available():
        parser.error("there is no GPU here; --device cpu tries the script at small sizes")
    from onepass.bench.results import write_rows  # a process that is timed imports nothing of onepass before

    rows, found = [], []
    for row in measured(options.programs, options.repeats, options.device):
        rows.append(row)
        said = (row.get(field) for field in ("program", "contestant", "caches", "forward", "backward", "ran"))
        print(*map(shown, said), sep=" | ", file=sys.stderr, flush=True)
        found = summary(rows, torch.cuda.get_device_name() if options.device == "cuda" else "cpu")
        if options.out:
            write_rows(options.out, FIELDS, found)  # each time: a run that is cut off keeps what it has
    for row in found:
        print(*(shown(row.get(field)) for field in FIELDS[:-2]), sep=" | ")


if __name__ == "__main__":
    main()
