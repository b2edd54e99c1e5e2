"""Reductions of one product on one GPU: losses of contrast, linear with cross entropy, nearest neighbours, entropies.

`python bench/one_product.py --out results.csv [--only linear] [--train] [--tiles]`. "plan": onepass's kernels alone;
"onepass": what it chooses; "memory": with that preferred. Medians with a cold L2 cache, "peak" besides inputs and
results, errors against float64. `--train`: with gradients, also beside Inductor's auto_chunker, as captured graphs of
CUDA (but Liger's kernel and cut-cross-entropy, which wait for the GPU), where installed. `--tiles`: the plan's first
kernel with other tiles.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import torch
import torch._inductor.config
import torch.nn.functional as F
from torch import Tensor

import onepass
from bench.never_slower import show
from bench.paged_decode import captured
from onepass import process_state
from onepass.bench.results import write_rows
from onepass.bench.timing import ContestantResult, in_turns, said
from onepass.compiler.optimize import optimize_all
from onepass.graph.trace import program_of
from onepass.lowering.plan.kernel_config import TritonConfig
from onepass.lowering.triton.launch import Launcher
from onepass.translate.translate import translate

PEERS = ("liger", "cut-cross-entropy")
CHUNKED = "torch.compile in chunks"
ROUNDS, ROWS_OF_A_PART = 3, 128
FIELDS = ("program", "contestant", "milliseconds", "ratio", "peak", "first", "error", "ran", "where")
OPTIONS = {"plan": {"libraries": False}, "onepass": {}}
TRAINED_WITH = {"onepass": {}, "memory": {"prefer": "memory"}}
TILES = [TritonConfig(*tile) for tile in (
    (128, 128, 8, 3), (128, 128, 8, 4), (128, 256, 8, 3), (128, 256, 8, 4), (256, 128, 8, 3), (128, 256, 16, 3),
    (64, 128, 4, 3), (64, 256, 4, 3), (128, 64, 4, 4), (256, 64, 8, 3),
)]  # fmt: skip


@dataclass(frozen=True)
class Program:
    """A function of rows, columns and perhaps labels. by_rows: its result has one number for each row."""

    run: Callable[..., Tensor | tuple[Tensor, ...]]
    given: Callable[[], list[Tensor]]
    by_rows: bool = False


def drawn(*sizes: int, scale: float = 1.0) -> Tensor:
    return (torch.randn(*sizes, device="cuda") * scale).bfloat16()


def of_unit(rows: int, width: int) -> list[Tensor]:
    return [F.normalize(drawn(rows, width), dim=-1) for _ in range(2)]


def contrast(x: Tensor, y: Tensor) -> Tensor:
    """InfoNCE of both directions."""
    score = (x @ y.T).float() * 14.3
    return (score.logsumexp(0) + score.logsumexp(1) - 2 * score.diagonal()).mean() / 2


def clip(x: Tensor, y: Tensor) -> Tensor:
    score = x @ y.T * 14.3
    labels = torch.arange(len(x), device=x.device)
    return (F.cross_entropy(score.float(), labels) + F.cross_entropy(score.T.float(), labels)) / 2


def linear(x: Tensor, w: Tensor, y: Tensor) -> Tensor:
    return F.cross_entropy(F.linear(x, w).float(), y)


def retrieval(q: Tensor, k: Tensor) -> Tensor:
    return (q @ k.T).amax(-1)


def retrieval_top1(q: Tensor, k: Tensor) -> tuple[Tensor, Tensor]:
    return (q @ k.T).max(-1)


def words(x: Tensor, w: Tensor) -> Tensor:
    """The likeliest word of each row, as greedy decoding says it."""
    return F.linear(x, w).argmax(-1)


def kmeans_distance(x: Tensor, c: Tensor) -> Tensor:
    return (c.float().square().sum(-1) - 2 * (x @ c.T).float()).amin(-1)


def kmeans(x: Tensor, c: Tensor) -> Tensor:
    return (c.float().square().sum(-1) - 2 * (x @ c.T).float()).argmin(-1)


def entropy(x: Tensor, w: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    """Log-probabilities of labels, and the entropy of each row."""
    logarithm = (x @ w.T).float().log_softmax(-1)
    return logarithm.gather(-1, y[:, None])[:, 0], -(logarithm.exp() * logarithm).sum(-1)


def vocabulary(rows: int, width: int, words: int) -> list[Tensor]:
    return [drawn(rows, width), drawn(words, width, scale=width**-0.5), torch.randint(words, (rows,), device="cuda")]


PROGRAMS = {
    "contrast 128": Program(contrast, lambda: of_unit(8192, 128)),
    "contrast 768": Program(contrast, lambda: of_unit(8192, 768)),
    "CLIP 512": Program(clip, lambda: of_unit(8192, 512)),
    "linear 2048": Program(linear, lambda: vocabulary(4096, 2048, 32000)),
    "entropy 1024": Program(entropy, lambda: vocabulary(4096, 1024, 32000), by_rows=True),
    "retrieval 128": Program(retrieval, lambda: [drawn(4096, 128), drawn(1_000_000, 128)], by_rows=True),
    "retrieval top-1 128": Program(retrieval_top1, lambda: [drawn(4096, 128), drawn(1_000_000, 128)], by_rows=True),
    "k-means distance 64": Program(kmeans_distance, lambda: [drawn(100_000, 64), drawn(1024, 64)], by_rows=True),
    "words 4096": Program(words, lambda: vocabulary(2048, 4096, 128256)[:2], by_rows=True),
    "contrast 16384 x 128": Program(contrast, lambda: of_unit(16384, 128)),
    "contrast 32768 x 64": Program(contrast, lambda: of_unit(32768, 64)),
    "router 4096": Program(retrieval_top1, lambda: [drawn(65536, 4096), drawn(64, 4096)], by_rows=True),
    "linear 50257": Program(linear, lambda: vocabulary(8192, 768, 50257)),
    "linear 128256": Program(linear, lambda: vocabulary(4096, 4096, 128256)),
    "k-means 64": Program(kmeans, lambda: [drawn(100_000, 64), drawn(1024, 64)], by_rows=True),
}
TRAINED = (
    "contrast 128", "contrast 16384 x 128", "contrast 32768 x 64", "contrast 768", "CLIP 512", "linear 2048",
    "linear 50257", "linear 128256",
)  # fmt: skip


def exact(program: Program, given: list[Tensor]) -> tuple[Tensor, ...]:
    """The results in float64: those of rows in parts, since the scores of all rows would take too much memory."""
    wide = [x.double() if x.is_floating_point() else x for x in given]
    if not program.by_rows:
        return _several(program.run(*wide))
    by_rows = lambda first: [x[first : first + ROWS_OF_A_PART] if n != 1 else x for n, x in enumerate(wide)]
    parts = [_several(program.run(*by_rows(first))) for first in range(0, min(4096, len(given[0])), ROWS_OF_A_PART)]
    return tuple(map(torch.cat, zip(*parts, strict=True)))


def _several(result: Tensor | tuple[Tensor, ...]) -> tuple[Tensor, ...]:
    return tuple(result) if isinstance(result, tuple) else (result,)


def error(found: tuple[Tensor, ...], right: tuple[Tensor, ...]) -> float:
    """The largest difference over the largest value; of positions, the share that differs."""

    def one(a: Tensor, b: Tensor) -> float:
        a = a[: len(b)] if b.dim() else a
        if not b.is_floating_point():
            return float((a != b).float().mean())
        return float((a.double() - b).abs().max() / b.abs().max())

    return max(map(one, found, right))


def with_gradients(run: Callable) -> Callable[..., tuple[Tensor, ...]]:
    """A loss with the gradients of rows and columns."""

    def trained(x: Tensor, w: Tensor, *rest: Tensor) -> tuple[Tensor, ...]:
        loss = run(x, w, *rest)
        return loss.detach(), *torch.autograd.grad(loss, (x, w))

    return trained


def contestants(run: Callable, train: bool) -> dict[str, Callable]:
    """By name."""
    own = lambda options: torch.compile(run, backend=onepass.onepass_backend, options=options, dynamic=False)
    made = {name: own(options) for name, options in (TRAINED_WITH if train else OPTIONS).items()}
    others = peers() if train and run is linear else {}
    compiled = {"torch.compile": torch.compile(run, dynamic=False)}
    if train and hasattr(torch._inductor.config, "auto_chunker"):
        compiled[CHUNKED] = torch.compile(run, dynamic=False, options={"auto_chunker.enable": True})
    return {"eager": run, **compiled, **made, **others}


def peers() -> dict[str, Callable]:
    """Kernels of a linear layer with its cross entropy that others have written, as far as they are installed."""
    found: dict[str, Callable] = {}
    with suppress(ImportError):
        from liger_kernel.ops.fused_linear_cross_entropy import LigerFusedLinearCrossEntropyFunction

        found["liger"] = lambda x, w, y: LigerFusedLinearCrossEntropyFunction.apply(x, w, y)[0]
    with suppress(ImportError):
        from cut_cross_entropy import linear_cross_entropy

        found["cut-cross-entropy"] = linear_cross_entropy
    return found


def replayed(call: Callable[[], object], row: dict[str, object]) -> Callable[[], object]:
    """The call as a graph of CUDA."""
    if row["contestant"] in PEERS:
        row["where"] = f"{row['where']}, not captured"
        return call
    call()
    return captured(call)


def measured(name: str, train: bool) -> Iterator[dict[str, object]]:
    """A row for each contestant. One that fails has the reason in its row."""
    torch.manual_seed(0)
    program, where = PROGRAMS[name], torch.cuda.get_device_name()
    given = program.given()
    if train:
        given = [x.requires_grad_() if x.is_floating_point() else x for x in given]
    with torch.set_grad_enabled(train):
        wide = [x.detach().double().requires_grad_() if x.is_floating_point() else x for x in given]
        right = with_gradients(program.run)(*wide) if train else exact(program, given)
    del wide
    calls, rows = {}, {}
    process_state.forget()
    torch._dynamo.reset()
    for contestant, made in contestants(program.run, train).items():
        torch.cuda.empty_cache()
        row: dict[str, object] = {"program": name + " trained" * train, "contestant": contestant, "where": where}
        call = with_gradients(made) if train else made
        try:
            with torch.set_grad_enabled(train):
                start = time.perf_counter()
                found = _several(call(*given))
                torch.cuda.synchronize()
                row["first"] = time.perf_counter() - start
                row["error"] = error(found, right)
                del found
                call(*given)
                before = torch.cuda.memory_allocated()
                torch.cuda.reset_peak_memory_stats()
                call(*given)
                torch.cuda.synchronize()
                row["peak"] = f"{(torch.cuda.max_memory_allocated() - before) / 2**20:.0f} MiB"
            calls[contestant] = lambda call=call: call(*given)
            if train:
                with torch.enable_grad():
                    calls[contestant] = replayed(calls[contestant], row)
            if contestant in (*OPTIONS, *TRAINED_WITH):
                row["ran"] = "; ".join(region.ran for region in onepass.reports()[-1].regions) or "nothing fused"
        except Exception as failure:
            row["where"] = said(failure)
        rows[contestant] = row
    with torch.set_grad_enabled(train):
        for contestant, taken in in_turns(calls, ROUNDS, dict.fromkeys(calls, ContestantResult())).items():
            rows[contestant]["milliseconds"] = statistics.median(taken) if taken else None
    least = rows["torch.compile"].get("milliseconds")
    for contestant in rows.keys() - {"torch.compile"}:
        if least and rows[contestant].get("milliseconds"):
            rows[contestant]["ratio"] = least / rows[contestant]["milliseconds"]
    yield from rows.values()


def tiles(name: str) -> Iterator[dict[str, object]]:
    """The plan with other tiles of its first kernel, alone."""
    torch.manual_seed(0)
    program = PROGRAMS[name]
    given = program.given()
    captured = translate(program_of(program.run, *given))
    plan = optimize_all(captured.results).plan
    tensors = dict(zip((t.name for t in captured.inputs), given, strict=True))
    calls = {}
    for config in TILES:
        try:
            launcher = Launcher(plan, {plan.kernels[0].name: config})
            call = lambda launcher=launcher: launcher.results(tensors)
            call()
            torch.cuda.synchronize()
            calls[str(config)] = call
        except Exception as failure:
            yield {"program": name, "contestant": str(config), "where": said(failure)}
    for config, taken in in_turns(calls, ROUNDS, dict.fromkeys(calls, ContestantResult())).items():
        milliseconds = statistics.median(taken) if taken else None
        yield {"program": name, "contestant": config, "milliseconds": milliseconds, "where": "tiles"}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, help="a file for the rows, as comma-separated values")
    parser.add_argument("--only", nargs="*", default=list(PROGRAMS), help="programs whose names begin so")
    parser.add_argument("--train", action="store_true", help="with the gradients of both factors")
    parser.add_argument("--tiles", action="store_true", help="the plan's first kernel with other tiles")
    asked = parser.parse_args()
    rows = []
    print(*FIELDS, sep="  ")
    names = [name for name in (TRAINED if asked.train else PROGRAMS) if name.startswith(tuple(asked.only))]
    for name in names:
        for row in tiles(name) if asked.tiles else measured(name, asked.train):
            rows.append(row)
            show(row, FIELDS)
    if asked.out:
        write_rows(asked.out, FIELDS, rows)


if __name__ == "__main__":
    with torch.no_grad():
        main()
