"""Attention shared by GPUs: milliseconds on one GPU, and on several by onepass and by torch's `context_parallel`.

`python bench/context_parallel.py [--tokens 131072] [--ranks 2] [--hosts 1]`, run by hand. Full and causal attention,
16 heads of 128, bfloat16, forward and a step of training; each rank's part is compared with one GPU's result. With
`--hosts 2` the schedules of two levels run, as if the ranks were of two hosts. A profile says how much of the exchange
runs beside other kernels. `--device cpu --tokens 256` tries the script.
"""

from __future__ import annotations

import argparse
import datetime
import itertools
import math
import os
import statistics
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import torch
from torch import distributed, multiprocessing
from torch.distributed.device_mesh import init_device_mesh
from torch.nn import functional as F  # torch's context_parallel replaces a name in it
from torch.nn.attention import SDPBackend, sdpa_kernel

import onepass
from onepass.distributed.positions import head_tail, shares
from onepass.distributed.schedules import SCHEDULES
from onepass.egraph.terms.ops import iota, le, load
from onepass.egraph.terms.term import Dim, Tensor
from onepass.lowering.masks import block_map
from onepass.lowering.masks.block_map import Tiling
from onepass.lowering.plan.records import BlockMap
from onepass.lowering.planning import mask_plans
from onepass.lowering.triton import launch
from onepass.runtime.runner import Runner

HEADS, WIDTH = 16, 128
SECONDS = 100  # that a rank waits for another
SHARED = {
    "full": {"queries": {"q": -2}, "keys": {"k": -2, "v": -2}},
    "causal": {"queries": {"q": -2, "i": 0}, "keys": {"k": -2, "v": -2, "j": 0}},
}


def full(q, k, v):
    return torch.softmax(q @ k.mT * WIDTH**-0.5, -1) @ v


def causal(q, k, v, i, j):
    scores = (q @ k.mT * WIDTH**-0.5).masked_fill(j > i[:, None], -math.inf)
    return torch.softmax(scores, -1) @ v


@dataclass
class Bench:
    """One process's view: its device, its positions, and the whole problem, which all ranks have."""

    arguments: argparse.Namespace
    rank: int
    device: torch.device
    mesh: object
    started: float

    def say(self, *words) -> None:
        if self.rank == 0:
            print(f"[{time.monotonic() - self.started:5.0f} s]", *words, flush=True)

    @property
    def on_gpu(self) -> bool:
        return self.device.type == "cuda"

    def wait(self) -> None:
        if self.on_gpu:
            torch.cuda.synchronize()

    def milliseconds(self, run: Callable, given: Sequence[torch.Tensor] = ()) -> tuple[float, float]:
        """The median of the slowest rank, and the most memory in GiB, of what is given and what the run adds to it.

        All ranks start together.
        """
        run()
        self.wait()
        before = 0
        if self.on_gpu:
            torch.cuda.reset_peak_memory_stats()
            before = torch.cuda.memory_allocated() - sum(x.nbytes for x in given)
        taken = []
        for _ in range(self.arguments.runs):
            distributed.barrier()
            self.wait()
            start = time.perf_counter()
            run()
            self.wait()
            taken.append(1e3 * (time.perf_counter() - start))
        peak = (torch.cuda.max_memory_allocated() - before) / 2**30 if self.on_gpu else 0.0
        found = torch.tensor([statistics.median(taken), peak], device=self.device)
        distributed.all_reduce(found, distributed.ReduceOp.MAX)
        return float(found[0]), float(found[1])


def step_of(call: Callable, inputs: list[torch.Tensor], grad: torch.Tensor) -> Callable:
    """A forward and a backward, which gives the result and the gradients."""

    def step():
        result = call(*inputs)
        return result, *torch.autograd.grad(result, inputs[:3], grad)

    return step


def without_gradients(call: Callable, inputs: list[torch.Tensor]) -> Callable:
    plain = [x.detach() for x in inputs]

    def forward():
        with torch.no_grad():
            return call(*plain)

    return forward


def error(found, right) -> str:
    """The largest difference of each tensor, as a part of the largest value; the largest of them."""
    pairs = ((f.float(), r.float()) for f, r in zip(found, right, strict=True))
    return f"{max(float((f - r).abs().max() / r.abs().max()) for f, r in pairs):.1e}"


def measured(bench: Bench, table: list, name: str, problem: str, call: Callable, inputs, grad, right=None):
    """A row of the table. The results of a step, for a comparison."""
    bench.say(f"{problem}, {name}: compiles")
    found = [x.detach() for x in step_of(call, inputs, grad)()]
    said = error(found, right) if right is not None else ""
    forward, memory = bench.milliseconds(without_gradients(call, inputs), inputs)
    step, step_memory = bench.milliseconds(step_of(call, inputs, grad), [*inputs, grad])
    table.append((problem, name, forward, step, memory, step_memory, said))
    bench.say(f"{problem}, {name}: {forward:.1f} ms, {step:.1f} ms, error {said or '-'}")
    return found


def problem_of(bench: Bench, problem: str, table: list) -> None:
    arguments, device = bench.arguments, bench.device
    generator = torch.Generator(device).manual_seed(0)
    dtype = torch.bfloat16 if bench.on_gpu else torch.float32
    shape = 1, arguments.heads, arguments.tokens, WIDTH
    q, k, v, grad = (torch.randn(shape, generator=generator, device=device, dtype=dtype) for _ in range(4))
    whole = [x.requires_grad_() for x in (q, k, v)]
    at = torch.arange(arguments.tokens, device=device)
    function, positions = {"full": (full, []), "causal": (causal, [at, at])}[problem]
    one = onepass.compile(function, inner="eager", libraries=False)
    right = measured(bench, table, "one GPU, onepass", problem, one, [*whole, *positions], grad)
    sdpa = lambda q, k, v: F.scaled_dot_product_attention(q, k, v, is_causal=problem == "causal")
    with sdpa_kernel(backends(bench)):
        measured(bench, table, "one GPU, SDPA", problem, sdpa, whole, grad, right)
    if problem == "causal" and bench.device.type == "cuda":  # without a GPU no kernel makes a map
        maps_of_tiles(bench)
    by_rank(bench, problem, table, whole, grad, right)
    if bench.arguments.torch:
        by_torch(bench, problem, table, whole, grad, right)


def maps_of_tiles(bench: Bench) -> None:
    """Milliseconds of a map of tiles for one round of a causal mask: by all pairs, and by ends of tiles."""
    length = bench.arguments.tokens // bench.arguments.ranks
    rows, loop = Dim("i", length), Dim("j", length)
    guard = le(load(Tensor("j", "int64", (length,)), iota(loop)), load(Tensor("i", "int64", (length,)), iota(rows)))
    at = head_tail(bench.arguments.tokens, bench.arguments.ranks)[bench.rank].to(bench.device)
    tiling = Tiling(BlockMap(guard, loop, (), (rows,)), 128, 128, ())
    decided = block_map.decided
    for name, given in (("pairs", lambda guard, inside: None), ("ends", decided)):
        block_map.decided = given
        mask_plans.class_plan.cache_clear()
        launch._classifier.cache_clear()
        taken, _ = bench.milliseconds(lambda: launch.build_map(tiling, {"i": at, "j": at}))
        bench.say(f"  a map of {length} x {length} by {name}: {taken:.2f} ms")
    block_map.decided = decided


def backends(bench: Bench) -> list[SDPBackend]:
    return [SDPBackend.CUDNN_ATTENTION] if bench.on_gpu else [SDPBackend.FLASH_ATTENTION]


def by_rank(bench: Bench, problem: str, table: list, whole, grad, right) -> None:
    """onepass.context_parallel, by each schedule."""
    parts = head_tail(bench.arguments.tokens, bench.arguments.ranks)
    if problem == "causal":
        work = torch.arange(bench.arguments.tokens) + 1
        plain = torch.arange(bench.arguments.tokens).tensor_split(bench.arguments.ranks)
        bench.say("share of work:", [f"{x:.3f}" for x in shares(work, parts)], "contiguous parts:",
                  [f"{x:.3f}" for x in shares(work, plain)])  # fmt: skip
    mine = parts[bench.rank].to(bench.device)
    local = [x.detach()[:, :, mine].requires_grad_() for x in whole]
    positions = [mine, mine] if problem == "causal" else []
    own = [x[:, :, mine] for x in right]
    hosts = bench.arguments.hosts
    mesh, dims = bench.mesh, "cp"
    if hosts > 1:
        shape = hosts, bench.arguments.ranks // hosts
        mesh, dims = init_device_mesh(bench.device.type, shape, mesh_dim_names=("host", "cp")), ("host", "cp")
    schedules = bench.arguments.schedules or [n for n, roles in SCHEDULES.items() if len(roles) == mesh.ndim]
    for schedule, pieces in itertools.product(schedules, bench.arguments.pieces):
        call = onepass.context_parallel({"full": full, "causal": causal}[problem], mesh, dims, schedule=schedule,
                                        pieces=pieces or None, together=True, libraries=False,
                                        **SHARED[problem])  # fmt: skip
        name = f"{schedule}, pieces {pieces}" if pieces else schedule
        measured(bench, table, name, problem, call, [*local, *positions], grad[:, :, mine], own)
        notes = {part.why_not for known in call._known.values() for part in known.parts.values()}
        bench.say("  backward:", notes - {""} or "derived, with the given logarithms", *ran(call))
        if bench.on_gpu:
            profiled(bench, step_of(call, [*local, *positions], grad[:, :, mine]))


def ran(call) -> list[str]:
    return [f"{r.ran} / {r.backward_ran}" for report in call.reports for r in report.regions]


def profiled(bench: Bench, run: Callable) -> None:
    """How much of the time of NCCL's kernels other kernels run, too."""
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as profile:
        run()
        bench.wait()
    spans: dict[bool, list[tuple[int, int]]] = {True: [], False: []}
    for event in profile.events():
        if event.device_type == torch.autograd.DeviceType.CUDA and event.name:
            spans["nccl" in event.name.lower()].append((event.time_range.start, event.time_range.end))
    exchange = sum(b - a for a, b in spans[True])
    beside = sum(
        sum(max(0, min(b, d) - max(a, c)) for c, d in merged(spans[False])) for a, b in spans[True]
    )  # fmt: skip
    bench.say(f"  a step's exchange: {exchange / 1e3:.2f} ms of NCCL, {beside / max(exchange, 1):.0%} beside kernels")
    if bench.arguments.kernels:
        longest = sorted(profile.key_averages(), key=lambda event: -event.device_time_total)[: bench.arguments.kernels]
        for event in longest:
            bench.say(f"    {event.device_time_total / 1e3:8.2f} ms, {event.count} of {event.key[:80]}")


def merged(spans: list[tuple[int, int]]) -> list[tuple[int, int]]:
    found: list[tuple[int, int]] = []
    for start, end in sorted(spans):
        if found and start <= found[-1][1]:
            found[-1] = found[-1][0], max(end, found[-1][1])
        else:
            found.append((start, end))
    return found


def by_torch(bench: Bench, problem: str, table: list, whole, grad, right) -> None:
    """torch's own context_parallel, with its balance for causal masks."""
    from torch.distributed.tensor.experimental import _attention as own

    ranks, tokens = bench.arguments.ranks, bench.arguments.tokens
    own._cp_options.enable_load_balance = problem == "causal"
    parts = head_tail(tokens, ranks) if problem == "causal" else torch.arange(tokens).tensor_split(ranks)
    mine = parts[bench.rank].to(bench.device)
    causal_mask = problem == "causal"
    for method in ("allgather", "alltoall"):
        own.set_rotate_method(method)
        buffers = [x.detach().clone() for x in (*whole, grad)]
        call = lambda q, k, v: F.scaled_dot_product_attention(q, k, v, is_causal=causal_mask)
        with own.context_parallel(bench.mesh, buffers=buffers, buffer_seq_dims=[2] * 4), sdpa_kernel(backends(bench)):
            inputs = [x.requires_grad_() for x in buffers[:3]]
            own_part = [x[:, :, mine] for x in right]
            try:
                measured(bench, table, f"torch, {method}", problem, call, inputs, buffers[3], own_part)
            except Exception:  # a rival that fails has no row, and onepass is measured all the same
                bench.say(traceback.format_exc())
            for x in inputs:
                x.requires_grad_(False)


def work(rank: int, arguments: argparse.Namespace, folder: str, started: float) -> None:
    on_gpu = arguments.device == "cuda"
    device = torch.device("cuda", rank) if on_gpu else torch.device("cpu")
    if on_gpu:
        torch.cuda.set_device(device)
    meeting = {"init_method": f"file://{folder}/meeting", "rank": rank, "world_size": arguments.ranks}
    meeting["timeout"] = datetime.timedelta(seconds=SECONDS)
    distributed.init_process_group("nccl" if on_gpu else "gloo", **meeting)
    mesh = init_device_mesh(arguments.device, (arguments.ranks,), mesh_dim_names=("cp",))
    if not arguments.validate:  # results are compared here; the runner's comparison takes a minute at these lengths
        Runner.validate = lambda self, kind, run, tensors, call: (run(tensors), True)
    bench, table = Bench(arguments, rank, device, mesh, started), []
    bench.say(torch.cuda.get_device_name(device) if on_gpu else "cpu", "torch", torch.__version__)
    try:
        for problem in arguments.problems:
            problem_of(bench, problem, table)
    finally:
        if rank == 0:
            show(arguments, table)
        with suppress(Exception):
            distributed.destroy_process_group()


def show(arguments: argparse.Namespace, table: list) -> None:
    print(f"\n{arguments.tokens} tokens, {arguments.heads} heads of {WIDTH}, {arguments.ranks} ranks")
    names = f"{'forward':>9} {'times':>6} {'step':>9} {'times':>6} {'GiB':>6} {'GiB':>6} error"
    print(f"{'problem':8} {'contestant':24} {names}")
    ones = {row[0]: row for row in table if row[1] == "one GPU, onepass"}
    for problem, name, forward, step, memory, step_memory, said in table:
        one = ones.get(problem, (0, 0, forward, step))
        print(
            f"{problem:8} {name:24} {forward:9.2f} {one[2] / forward:6.2f} {step:9.2f} {one[3] / step:6.2f} "
            f"{memory:6.2f} {step_memory:6.2f} {said}",
            flush=True,
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--tokens", type=int, default=131072)
    parser.add_argument("--heads", type=int, default=HEADS)
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--problems", nargs="+", default=["full", "causal"])
    parser.add_argument("--hosts", type=int, default=1)
    parser.add_argument("--schedules", nargs="+", default=[])
    parser.add_argument("--pieces", type=int, nargs="+", default=[0], help="0 lets onepass choose")
    parser.add_argument("--kernels", type=int, default=0, help="how many kernels of a step's profile are listed")
    parser.add_argument("--validate", action="store_true")
    parser.add_argument("--no-torch", dest="torch", action="store_false")
    arguments = parser.parse_args()
    os.environ["NCCL_NVLS_ENABLE"] = "0"
    with tempfile.TemporaryDirectory() as folder:
        os.environ.setdefault("ONEPASS_CACHE", f"{folder}/cache")
        multiprocessing.spawn(work, (arguments, folder, time.monotonic()), nprocs=arguments.ranks)


if __name__ == "__main__":
    main()
