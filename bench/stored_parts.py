"""Programs whose plan stores a part, or has other rows, because that takes less time, on one GPU, with and without.

`python bench/stored_parts.py --out results.csv`. "own" is the plan by the planner's first guess, "chosen" the one of
the least estimated time. `--suites cpu gpu` adds the cases of the suites, at these scales, whose plan the choice
changes. Results are compared with float64. Milliseconds are medians with a cold L2 cache of calls that are captured as
a graph of CUDA, so that no time on the host counts.
"""

from __future__ import annotations

import argparse
import math
import statistics
import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import nullcontext
from itertools import chain
from pathlib import Path
from unittest import mock

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import torch
from torch import Tensor

import onepass
from bench.paged_decode import captured
from onepass import process_state
from onepass.bench.results import write_rows
from onepass.bench.scales import SCALES
from onepass.bench.suites import cases
from onepass.bench.timing import Call, ContestantResult, in_turns, said
from onepass.compiler.optimize import optimize_all
from onepass.errors import OnepassError
from onepass.graph.trace import program_of
from onepass.lowering.cost import estimated_plan
from onepass.lowering.plan.records import NotPlannable
from onepass.translate.translate import translate

ROUNDS = 5
SUITES = ("variants", "flashlight", "beyond", "decode")
FIELDS = ("program", "contestant", "milliseconds", "kernels", "error", "where")


def shared_prefix(q: Tensor, kp: Tensor, vp: Tensor, ks: Tensor, vs: Tensor, lens: Tensor) -> Tensor:
    """A query of each sequence, to a prefix [heads, keys, width] that all share and to keys of its own.

    Heads of queries may share heads of keys.
    """
    k, v = (torch.cat([p.expand(len(q), -1, -1, -1), s], 2) for p, s in ((kp, ks), (vp, vs)))
    k, v = (x.repeat_interleave(q.shape[1] // x.shape[1], 1) for x in (k, v))
    keep = torch.arange(k.shape[2], device=q.device) < (lens + kp.shape[1])[:, None, None, None]
    return (q @ k.mT * q.shape[-1] ** -0.5).masked_fill(~keep, -math.inf).softmax(-1) @ v


def both_ways(x: Tensor, y: Tensor, v: Tensor, w: Tensor) -> tuple[Tensor, Tensor]:
    """Softmax of distances over the keys, and over the queries."""
    scores = -(x[:, :, :, None] - y[:, :, None]).abs().sum(-1)
    return scores.softmax(-1) @ v, scores.mT.softmax(-1) @ w


def talking_heads(q: Tensor, k: Tensor, v: Tensor, before: Tensor, after: Tensor) -> Tensor:
    """Heads are mixed before the softmax and after it."""
    scores = torch.einsum("bhij,gh->bgij", q @ k.mT * q.shape[-1] ** -0.5, before)
    return torch.einsum("bgij,fg->bfij", scores.softmax(-1), after) @ v


def latent(q: Tensor, rotated: Tensor, c: Tensor, keys: Tensor, wk: Tensor, wv: Tensor) -> Tensor:
    """Keys and values are made of latents c [batch, keys, rank]; rotated queries meet keys that all heads share."""
    k, v = torch.einsum("bjl,hnl->bhjn", c, wk), torch.einsum("bjl,hvl->bhjv", c, wv)
    scores = q @ k.mT + torch.einsum("bhir,bjr->bhij", rotated, keys)
    return (scores * (q.shape[-1] + rotated.shape[-1]) ** -0.5).softmax(-1) @ v


def linear(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """Weights without a softmax: keys times values are summed once for each head."""
    weights = q @ k.mT
    return (weights @ v) / weights.sum(-1, keepdim=True)


def programs() -> Iterator[tuple[str, Callable, list[Tensor]]]:
    """A name, a function and its tensors."""
    heads = lambda b, h, n, d, count=3: [drawn(b, h, n, d) for _ in range(count)]
    for batch, prefix in ((64, 16384), (32, 8192), (32, 32768)):
        tensors = [drawn(batch, 8, 1, 128), *(drawn(8, prefix, 128) for _ in range(2)), *heads(batch, 8, 256, 128, 2)]
        lens = torch.randint(1, 257, (batch,), device="cuda")
        yield f"shared prefix of {prefix}, batch {batch}", shared_prefix, [*tensors, lens]
    for prefix in (8192, 32768):
        tensors = [drawn(32, 32, 1, 128), *(drawn(8, prefix, 128) for _ in range(2)), *heads(32, 8, 128, 128, 2)]
        lens = torch.randint(1, 129, (32,), device="cuda")
        yield f"shared prefix of {prefix}, batch 32, 4 heads a group", shared_prefix, [*tensors, lens]
    yield "softmax over keys and over queries, 1024", both_ways, heads(1, 8, 1024, 64, 4)
    for batch, count, length in ((1, 4, 200), (4, 4, 1024), (4, 16, 1024)):
        mixtures = [drawn(count, count) for _ in range(2)]
        yield f"{count} talking heads, {batch} x {length}", talking_heads, [*heads(batch, count, length, 64), *mixtures]
    for count, width in ((32, 64), (16, 128)):
        q, k, v = heads(8, count, 2048, width)
        yield f"linear attention, 8 x 2048, D {width}", linear, [q.abs(), k.abs(), v]
    for name, batch, rows in (("decoding", 32, 1), ("prefill", 1, 4096)):
        cache, made = [drawn(batch, 4096, 512), drawn(batch, 4096, 64)], [0.1 * drawn(16, 128, 512) for _ in range(2)]
        yield f"latents, {name}", latent, [drawn(batch, 16, rows, 128), drawn(batch, 16, rows, 64), *cache, *made]


def changed(scale: str) -> Iterator[tuple[str, Callable, list[Tensor]]]:
    """The cases of the suites whose plan the choice changes, as `programs` has them."""
    for case in (case for suite in SUITES for case in cases(suite, SCALES[scale])):
        problem = case.make("cuda", torch.bfloat16)
        try:
            region = translate(program_of(problem.plain, *problem.arguments))
            chosen = optimize_all(region.results).plan
            with mock.patch.object(estimated_plan, "LEAST_GAIN", math.inf):
                own = optimize_all(region.results).plan
        except (OnepassError, NotPlannable):
            continue
        if own.kernels != chosen.kernels:
            yield f"{case.variant} {case.shape}", problem.plain, list(problem.arguments)


def drawn(*sizes: int) -> Tensor:
    return torch.randn(*sizes, device="cuda").bfloat16()


def measured(name: str, function: Callable, tensors: list[Tensor]) -> list[dict[str, object]]:
    """A row for each contestant. One that fails has the reason in its row."""
    right = _results(function(*(x.double() if x.is_floating_point() else x for x in tensors)))

    def made(contestant: str) -> Call:
        backend = "inductor" if contestant == "torch.compile" else onepass.onepass_backend
        as_planned = mock.patch.object(estimated_plan, "LEAST_GAIN", math.inf) if contestant == "own" else nullcontext()
        with as_planned:
            compiled = torch.compile(function, backend=backend, dynamic=False)
            return captured(lambda: compiled(*tensors))

    largest = lambda mine, exact: (mine - exact).abs().max() / exact.abs().max()
    return compared(name, ("own", "chosen", "torch.compile"), made, right, largest)


def compared(
    name: str,
    contestants: Iterable[str],
    made: Callable[[str], Call],
    right: list[Tensor],
    error: Callable[[Tensor, Tensor], Tensor],
) -> list[dict[str, object]]:
    """A row for each contestant, timed in turns. One that fails has the reason in its row.

    made: compiles a contestant and captures its call. right: the results in float64. error: of one result.
    """
    calls, rows = {}, {}
    for contestant in contestants:
        process_state.forget()
        torch._dynamo.reset()
        row: dict[str, object] = {"program": name, "contestant": contestant, "where": torch.cuda.get_device_name()}
        try:
            calls[contestant] = made(contestant)
            pairs = zip(_results(calls[contestant]()), right, strict=True)
            row["error"] = max(float(error(mine, exact)) for mine, exact in pairs)
            if contestant != "torch.compile":
                row["kernels"] = sum(len(region.kernels) for region in onepass.reports()[-1].regions)
        except Exception as error:
            calls.pop(contestant, None)
            row["where"] = said(error)
        rows[contestant] = row
    for contestant, taken in in_turns(calls, ROUNDS, dict.fromkeys(calls, ContestantResult())).items():
        if taken:
            rows[contestant]["milliseconds"] = statistics.median(taken)
    return list(rows.values())


def _results(found: Tensor | tuple[Tensor, ...]) -> list[Tensor]:
    return [x.double() for x in (found if isinstance(found, tuple) else (found,))]


@torch.no_grad()
def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, help="a file for the rows, as comma-separated values")
    parser.add_argument("--suites", nargs="*", choices=SCALES, default=[], help="cases of the suites, at these scales")
    parser.add_argument("--only", default="", help="programs whose names contain this")
    parser.add_argument("--only-suites", action="store_true", help="no other programs")
    asked = parser.parse_args()
    torch.manual_seed(0)
    rows = []
    for name, function, tensors in chain([] if asked.only_suites else programs(), *map(changed, asked.suites)):
        if asked.only not in name:
            continue
        for row in measured(name, function, tensors):
            rows.append(row)
            print(*(f"{row.get(n, ''):.4g}" if isinstance(row.get(n), float) else row.get(n, "") for n in FIELDS),
                  sep="  ", flush=True)  # fmt: skip
    if asked.out:
        write_rows(asked.out, FIELDS, rows)


if __name__ == "__main__":
    main()
