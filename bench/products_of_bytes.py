"""Attention to tensors of bytes on one GPU: by products of bytes, of halves, and by others.

`python bench/products_of_bytes.py --out results.csv [--kind int8] [--only causal] [--contestants onepass fa3]`. Of e4m3
are queries, keys and values, with a scale for each head; of int8 queries and keys, as in SageAttention, with
a scale for each token ("int8") or head ("int8 of heads"). Each contestant is captured as a graph of CUDA;
milliseconds are medians with a cold L2 cache, in turns. "error" is the root of the mean square beside float64, over
that of the results, of the last rows of two heads. FlashAttention-3 is left out where its package is missing.
"""

from __future__ import annotations

import argparse
import math
import statistics
import sys
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import torch
from torch import Tensor

import onepass
from bench.paged_decode import captured
from onepass.bench.results import write_rows
from onepass.bench.timing import Call, ContestantResult, in_turns, said

ROUNDS, ROWS = 5, 256
SHAPES = tuple(
    (batch, heads, length, width)
    for heads, width in ((32, 64), (16, 128), (8, 256))
    for batch, length in ((4, 4096), (1, 16384))
)
KINDS = ("e4m3", "int8", "int8 of heads")
FIELDS = ("program", "shape", "contestant", "milliseconds", "teraflops", "error", "where", "versions")


def attention(q: Tensor, k: Tensor, v: Tensor, of_q: Tensor, of_k: Tensor, of_v: Tensor, causal: bool) -> Tensor:
    """Scales are [batch, heads, 1, 1]."""
    score = (q.float() * of_q) @ (k.float() * of_k).mT * q.shape[-1] ** -0.5
    return (masked(score, causal).softmax(-1) @ (v.float() * of_v)).to(torch.bfloat16)


def signed_attention(q: Tensor, k: Tensor, v: Tensor, of_q: Tensor, of_k: Tensor, causal: bool) -> Tensor:
    """SageAttention by hand. Queries and keys are int8; scales are [batch, heads, length or 1, 1]."""
    score = (q.float() @ k.float().mT) * of_q * of_k.mT * q.shape[-1] ** -0.5
    return masked(score, causal).softmax(-1).to(v.dtype) @ v


def masked(score: Tensor, causal: bool) -> Tensor:
    i, j = (torch.arange(n, device=score.device) for n in score.shape[-2:])
    return torch.where(j <= i[:, None], score, -math.inf) if causal else score


def program(given: list[Tensor]) -> Callable[..., Tensor]:
    """The program for tensors: those of int8 have no scale of values."""
    return attention if len(given) == 6 else signed_attention


def ours(given: list[Tensor], causal: bool, **options) -> Call:
    torch._dynamo.reset()
    made = onepass.compile(partial(program(given), causal=causal), dynamic=False, **options)
    made(*given)
    return lambda: made(*given)


def compiled(given: list[Tensor], causal: bool) -> Call:
    torch._dynamo.reset()
    made = torch.compile(partial(program(given), causal=causal), dynamic=False)
    return lambda: made(*given)


def fa3(given: list[Tensor], causal: bool) -> Call:
    """In its own layout [B, S, H, D], made beforehand."""
    from fa3_fwd_interface import flash_attn_func

    if given[0].dtype == torch.int8:
        raise ValueError("it has no products of int8")
    q, k, v = (x.transpose(1, 2).contiguous() for x in given[:3])
    scales = dict(zip(("q_descale", "k_descale", "v_descale"), (x[..., 0, 0] for x in given[3:]), strict=True))

    def call() -> Tensor:
        found = flash_attn_func(q, k, v, causal=causal, **scales)
        return (found[0] if isinstance(found, tuple) else found).transpose(1, 2)

    return call


def sdpa(given: list[Tensor], causal: bool) -> Call:
    """torch's own kernel for the numbers that bytes and scales stand for, in bfloat16, made beforehand."""
    scales = [*given[3:], 1.0][:3]
    q, k, v = ((x.float() * scale).to(torch.bfloat16) for x, scale in zip(given[:3], scales, strict=True))
    return lambda: torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=causal)


def halves(given: list[Tensor]) -> list[Tensor]:
    return [*(x.to(torch.bfloat16) for x in given[:3]), *given[3:]]


def plain_triton(given: list[Tensor], causal: bool) -> Call:
    return ours(given, causal, executor="triton")


def best(given: list[Tensor], causal: bool) -> Call:
    """With weights in e4m3, where there are values of that type."""
    return ours(given, causal, **({"weights": "e4m3"} if given[2].dtype == torch.float8_e4m3fn else {}))


CONTESTANTS: dict[str, Callable[[list[Tensor], bool], Call]] = {
    "onepass": best,
    "weights in halves": ours,
    "plain triton": plain_triton,
    "bfloat16": lambda given, causal: ours(halves(given), causal),
    "fa3": fa3,
    "sdpa": sdpa,
    "torch.compile": compiled,
}


def error(found: Tensor, given: list[Tensor], causal: bool) -> float:
    first = [x[0, :2].double() for x in given]
    q, k, v = (x * scale for x, scale in zip(first[:3], [*first[3:], torch.ones_like(first[2])][:3], strict=True))
    score = q[:, -ROWS:] @ k.mT * q.shape[-1] ** -0.5
    if causal:
        score = score.masked_fill(~torch.ones_like(score, dtype=torch.bool).tril(k.shape[1] - ROWS), -math.inf)
    right = score.softmax(-1) @ v
    return float((found[0, :2, -ROWS:] - right).square().mean().sqrt() / right.square().mean().sqrt())


def tensors(kind: str, shape: tuple[int, ...]) -> list[Tensor]:
    """Of unit variance, where scales are not drawn as well."""
    batch, heads, length, width = shape
    made = [torch.randn(batch, heads, length, width, device="cuda") for _ in range(3)]
    if kind == "e4m3":
        scales = [torch.rand(batch, heads, 1, 1, device="cuda") + 0.5 for _ in range(3)]
        return [*(x.to(torch.float8_e4m3fn) for x in made), *scales]
    over = (-1,) if kind == "int8" else (-2, -1)
    scales = [x.abs().amax(over, keepdim=True) / 127 for x in made[:2]]
    rounded = [(x / scale).round().to(torch.int8) for x, scale in zip(made[:2], scales, strict=True)]
    return [*rounded, made[2].to(torch.bfloat16), *scales]


def measured(
    kind: str, shape: tuple[int, ...], causal: bool, contestants: Sequence[str]
) -> Iterator[dict[str, object]]:
    batch, heads, length, width = shape
    given = tensors(kind, shape)
    named = ("" if kind == "e4m3" else f"{kind}, ") + ("causal" if causal else "full")
    about = {"program": named, "shape": f"b{batch}h{heads}s{length}d{width}"}
    calls: dict[str, Call] = {}
    wrong: dict[str, float] = {}
    held: list[Call] = []  # with their tensors, of which a graph has the addresses alone
    for name in contestants:
        try:
            held.append(CONTESTANTS[name](given, causal))
            calls[name] = captured(held[-1])
            wrong[name] = error(calls[name](), given, causal)
        except Exception as reason:
            calls.pop(name, None)
            yield about | {"contestant": name, "where": said(reason)}
    results = {name: ContestantResult() for name in calls}
    times = in_turns(calls, ROUNDS, results)
    flops = 4 * batch * heads * length**2 * width / (2 if causal else 1)
    versions = f"torch {torch.__version__}, CUDA {torch.version.cuda}"
    for name, taken in times.items():
        if not taken:
            yield about | {"contestant": name, "where": results[name].note}
            continue
        took = {"milliseconds": statistics.median(taken), "error": wrong[name]}
        took["teraflops"] = flops / took["milliseconds"] / 1e9
        yield about | {"contestant": name, **took, "where": torch.cuda.get_device_name(), "versions": versions}


@torch.no_grad()
def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, help="a file for the rows, as comma-separated values")
    parser.add_argument("--kind", choices=KINDS, default=KINDS[0], help="the type of queries and keys")
    parser.add_argument("--only", choices=("full", "causal"))
    parser.add_argument("--contestants", nargs="*", choices=CONTESTANTS, default=list(CONTESTANTS))
    asked = parser.parse_args()
    torch.manual_seed(0)
    rows: list[dict[str, object]] = []
    for causal in (False, True):
        for shape in SHAPES if asked.only in (None, "causal" if causal else "full") else ():
            for row in measured(asked.kind, shape, causal, asked.contestants):
                rows.append(row)
                print(*(f"{x:.4g}" if isinstance(x, float) else x for x in row.values()), sep="; ", flush=True)
                if asked.out is not None:
                    write_rows(asked.out, FIELDS, rows)


if __name__ == "__main__":
    main()
