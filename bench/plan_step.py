"""A planned decoding step on one GPU: paged keys of 32 sequences, written and then read, inside of a CUDA graph.

`python bench/plan_step.py --out results.csv`. Of each way to run it: milliseconds of a captured step
(medians in turns, cold L2 cache), microseconds that the host needs for a replay and for a call that is not captured,
what torch allocated inside of the capture (count and bytes), the largest error beside float64.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import torch
from torch import Tensor

import onepass
from bench.paged_decode import CHECKED, KEY_HEADS, SEQUENCES, WIDTH, Cache, attend, paged, paged_sdpa
from onepass.bench.results import write_rows
from onepass.bench.timing import Call, ContestantResult, in_turns, said

ROUNDS, HOST_CALLS = 5, 300
FIELDS = (
    "contestant", "slots", "milliseconds", "replay_us", "call_us", "allocations", "allocated_bytes", "error", "where",
)  # fmt: skip


def written(function: Callable[..., Tensor]) -> Callable[..., Tensor]:
    """The step that writes a key of each sequence, and then reads the pages by this function."""

    def step(q, new_keys, new_values, kc, vc, table, lengths, slot):
        kc.view(-1, *new_keys.shape[1:])[slot] = new_keys
        vc.view(-1, *new_values.shape[1:])[slot] = new_values
        return function(q, kc, vc, table, lengths)

    return step


def arguments(slots: int, name: str) -> tuple[tuple[Tensor, ...], Tensor, int]:
    """The arguments of a step, what float64 gives for its first sequences, and the bytes of the keys and values."""
    cache = Cache.random(slots, torch.bfloat16, "cuda", name)
    q, kc, vc, table, lengths = cache.paged
    new = [torch.randn(SEQUENCES, KEY_HEADS, WIDTH, device="cuda", dtype=q.dtype) for _ in range(2)]
    at = lengths - 1
    slot = table[torch.arange(SEQUENCES, device="cuda"), at // slots] * slots + at % slots
    given = (q, *new, kc, vc, table, lengths, slot)
    caches = (written(lambda q, kc, vc, table, lengths: (kc, vc)))(*given)
    k, v = (c[table[:CHECKED]].flatten(1, 2).transpose(1, 2).double() for c in caches)
    return given, attend(q[:CHECKED].double(), k, v, lengths[:CHECKED]), cache.bytes


def contestants(given: tuple[Tensor, ...]) -> dict[str, Callable[[], Call]]:
    """By name, what makes each call ready."""
    def planned(**options) -> Call:
        plan = onepass.plan(written(paged), *given, **options)
        print(f"  {plan}", flush=True)
        return lambda: plan(*given)

    def compiled(function: Callable, backend) -> Call:
        made = torch.compile(written(function), backend=backend, dynamic=False)
        for _ in range(3):
            made(*given)
        return lambda: made(*given)

    return {
        "onepass.plan": planned,
        "onepass.plan, invariant": lambda: planned(invariant=True),
        "onepass, compiled": lambda: compiled(paged, onepass.onepass_backend),
        "torch.compile": lambda: compiled(paged, "inductor"),
        "torch.compile, sdpa": lambda: compiled(paged_sdpa, "inductor"),
        "eager, sdpa": lambda: lambda: written(paged_sdpa)(*given),
    }


def captured(call: Call) -> tuple[Call, Callable[[], Tensor], int, int]:
    """A replay, what gives its result, and how often and how much torch allocated inside of the capture."""
    torch.cuda.synchronize()
    graph, stats = torch.cuda.CUDAGraph(), lambda: torch.cuda.memory_stats()
    names = ("allocation.all.allocated", "allocated_bytes.all.allocated")
    with torch.cuda.graph(graph):
        before = [stats()[name] for name in names]
        result = call()
        after = [stats()[name] for name in names]
    count, size = (b - a for a, b in zip(before, after))
    return graph.replay, lambda: result, count, size


def host_us(call: Call) -> float:
    """What a call costs the host, while the device is behind."""
    call()
    taken = []
    for _ in range(5):
        torch.cuda.synchronize()
        start = time.perf_counter()
        for _ in range(HOST_CALLS // 5):
            call()
        taken.append((time.perf_counter() - start) / (HOST_CALLS // 5) * 1e6)
    torch.cuda.synchronize()
    return statistics.median(taken)


def measured(slots: int, lengths: str) -> list[dict[str, object]]:
    torch._dynamo.reset()
    given, right, size = arguments(slots, lengths)
    rows, calls = {}, {}
    for name, made in contestants(given).items():
        try:
            call = made()
            replay, result, count, allocated = captured(call)
            replay()
            error = float((result()[:CHECKED].double() - right).abs().max())
            numbers = dict(replay_us=host_us(replay), call_us=host_us(call), allocations=count)
            rows[name] = numbers | {"allocated_bytes": allocated, "error": error, "where": torch.cuda.get_device_name()}
            calls[name] = replay
        except Exception as error:
            rows[name] = {"where": said(error)}
    for name, taken in in_turns(calls, ROUNDS, dict.fromkeys(calls, ContestantResult())).items():
        rows[name]["milliseconds"] = statistics.median(taken)
    print(f"{slots} slots a page, lengths {lengths}: {size / 2**20:.0f} MiB of keys and values", flush=True)
    return [{"contestant": name, "slots": slots, **row} for name, row in rows.items()]


@torch.no_grad()
def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, help="a file for the rows, as comma-separated values")
    parser.add_argument("--slots", type=int, nargs="*", default=[16, 64], help="slots of a page")
    parser.add_argument("--lengths", default="random", help="of the sequences, as in paged_decode.py")
    asked = parser.parse_args()
    torch.manual_seed(0)
    rows = []
    for slots in asked.slots:
        for row in measured(slots, asked.lengths):
            rows.append(row)
            numbers = [f"{n} {row[n]:.4g}" for n in FIELDS[2:8] if n in row] or [row["where"]]
            print(f"  {row['contestant']:26}", *numbers, sep="  ", flush=True)
    if asked.out:
        write_rows(asked.out, FIELDS, rows)


if __name__ == "__main__":
    main()
