"""Attention with a vector for each pair of a query and a key, on one GPU: own kernels, the default, torch.compile.

`python bench/relative_vectors.py --out results.csv`; with `--train`, a forward and a backward. "own" is onepass with
its own kernels alone (`libraries=False`), "default" onepass as it is. Results, or gradients, are compared with float64.
Milliseconds are medians with a cold L2 cache of calls that are captured as a graph of CUDA.
"""

from __future__ import annotations

import argparse
import math
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import torch
from torch import Tensor
from torch.nn import functional

import onepass
from bench.paged_decode import captured
from bench.stored_parts import compared
from onepass.bench.beyond_flex import invariant_points, relative_keys, relative_values
from onepass.bench.results import write_rows
from onepass.bench.timing import Call

FIELDS = ("program", "contestant", "milliseconds", "kernels", "error", "where")
CONTESTANTS: dict[str, dict] = {
    "own": {"backend": onepass.onepass_backend, "options": {"libraries": False}},
    "default": {"backend": onepass.onepass_backend},
    "torch.compile": {"backend": "inductor"},
}


def keys(q: Tensor, k: Tensor, v: Tensor, r: Tensor) -> Tensor:
    """Shaw's, r [i, j, d]."""
    scores = q @ k.mT + torch.einsum("bhid,ijd->bhij", q, r)
    return (scores * q.shape[-1] ** -0.5).softmax(-1) @ v


def causal_keys(q: Tensor, k: Tensor, v: Tensor, r: Tensor) -> Tensor:
    scores = q @ k.mT + torch.einsum("bhid,ijd->bhij", q, r)
    past = torch.ones(scores.shape[-2:], dtype=torch.bool, device=q.device).tril()
    return (scores * q.shape[-1] ** -0.5).masked_fill(~past, -math.inf).softmax(-1) @ v


def added_keys(q: Tensor, k: Tensor, v: Tensor, r: Tensor) -> Tensor:
    """The same as `keys`, with the vectors added to the keys."""
    scores = (q[:, :, :, None] * (k[:, :, None] + r)).sum(-1)
    return (scores * q.shape[-1] ** -0.5).softmax(-1) @ v


def keys_alone(q: Tensor, v: Tensor, r: Tensor) -> Tensor:
    return (torch.einsum("bhid,ijd->bhij", q, r) * q.shape[-1] ** -0.5).softmax(-1) @ v


def keys_and_queries(q: Tensor, k: Tensor, v: Tensor, r: Tensor, s: Tensor) -> Tensor:
    scores = q @ k.mT + torch.einsum("bhid,ijd->bhij", q, r) + torch.einsum("bhjd,ijd->bhij", k, s)
    return (scores * q.shape[-1] ** -0.5).softmax(-1) @ v


def keys_and_values(q: Tensor, k: Tensor, v: Tensor, r: Tensor, s: Tensor) -> Tensor:
    scores = q @ k.mT + torch.einsum("bhid,ijd->bhij", q, r)
    weights = (scores * q.shape[-1] ** -0.5).softmax(-1)
    return weights @ v + torch.einsum("bhij,ijd->bhid", weights, s)


def added_values(q: Tensor, k: Tensor, v: Tensor, s: Tensor) -> Tensor:
    """Vectors added to the values."""
    weights = (q @ k.mT * q.shape[-1] ** -0.5).softmax(-1)
    return (weights[..., None] * (v[:, :, None] + s)).sum(-2)


def causal_distances(q: Tensor, k: Tensor, v: Tensor, table: Tensor) -> Tensor:
    """A vector for each distance back, [distance, d]."""
    i, j = (torch.arange(x.shape[-2], device=q.device) for x in (q, k))
    back = i[:, None] - j
    scores = q @ k.mT + torch.einsum("bhid,ijd->bhij", q, functional.embedding(back.clamp(min=0), table))
    return (scores * q.shape[-1] ** -0.5).masked_fill(back < 0, -math.inf).softmax(-1) @ v


def drawn(*sizes: int) -> Tensor:
    return torch.randn(*sizes, device="cuda").bfloat16()


def programs() -> Iterator[tuple[str, Callable, list[Tensor]]]:
    """A name, a function and its tensors."""
    for batch, heads, length, width in ((4, 8, 512, 64), (8, 16, 256, 64), (1, 8, 1024, 128)):
        of_heads = lambda b=batch, h=heads, n=length, d=width: [drawn(b, h, n, d) for _ in range(3)]
        pairs = lambda n=length, d=width: drawn(n, n, d)
        shape = f"{batch} x {heads} x {length}, D {width}"
        for function in (keys, causal_keys, added_keys, added_values):
            yield f"{function.__name__} {shape}", function, [*of_heads(), pairs()]
        yield f"keys_alone {shape}", keys_alone, [*of_heads()[1:], pairs()]
        for function in (keys_and_queries, keys_and_values):
            yield f"{function.__name__} {shape}", function, [*of_heads(), pairs(), pairs()]
        table = lambda d=width: drawn(129, d)
        yield f"table of keys {shape}", relative_keys, [*of_heads(), table()]
        yield f"tables of keys and values {shape}", relative_values, [*of_heads(), table(), table()]
        yield f"causal distances {shape}", causal_distances, [*of_heads(), drawn(length, width)]
    for batch, n, h in ((8, 256, 12), (64, 64, 12), (1, 512, 12)):
        vectors = [drawn(batch, n, h, 16) for _ in range(3)]
        points = [drawn(batch, n, h, count, 3) for count in (4, 4, 8)]
        found = [*vectors, *points, drawn(batch, n, n, h), drawn(batch, n, n, 128), drawn(h)]
        yield f"invariant points {batch} x {n}", invariant_points, found


def _call(function: Callable, tensors: list[Tensor], train: bool) -> tuple[Tensor, ...]:
    """The results, or the gradients of all inputs by the sum of the squared results."""
    with torch.set_grad_enabled(train):
        found = function(*tensors)
        results = found if isinstance(found, tuple) else (found,)
        if not train:
            return results
        return torch.autograd.grad(sum(x.float().square().sum() for x in results), tensors)


def measured(name: str, function: Callable, tensors: list[Tensor], train: bool) -> list[dict[str, object]]:
    """A row for each contestant. One that fails has the reason in its row."""
    tensors = [x.requires_grad_(train) for x in tensors]
    right = [x.detach() for x in _call(function, [x.detach().double().requires_grad_(train) for x in tensors], train)]

    def made(contestant: str) -> Call:
        compiled = torch.compile(function, dynamic=False, **CONTESTANTS[contestant])
        return captured(lambda: _call(compiled, tensors, train))

    return compared(name, CONTESTANTS, made, right, lambda mine, exact: (mine - exact).norm() / exact.norm())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, help="a file for the rows, as comma-separated values")
    parser.add_argument("--train", action="store_true", help="a forward and a backward")
    parser.add_argument("--only", default="", help="programs whose names contain this")
    asked = parser.parse_args()
    torch.manual_seed(0)
    rows = []
    for name, function, tensors in programs():
        for row in measured(name, function, tensors, asked.train) if asked.only in name else ():
            rows.append(row)
            print(*(f"{row.get(n, ''):.4g}" if isinstance(row.get(n), float) else row.get(n, "") for n in FIELDS),
                  sep="  ", flush=True)  # fmt: skip
    if asked.out:
        write_rows(asked.out, FIELDS, rows)


if __name__ == "__main__":
    main()
