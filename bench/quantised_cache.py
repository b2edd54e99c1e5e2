"""Decoding from an int8 cache on one GPU: dequantised in the kernel, in front of it, and by torch.compile.

`python bench/quantised_cache.py`. Keys and values have a scale for each token; one head of keys may serve several of
queries. Results are compared with float64. Milliseconds are medians with a cold L2 cache.
"""

from __future__ import annotations

import statistics
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import torch
from torch import Tensor

from onepass.api.backend import onepass_backend
from onepass.bench.problems import repeated
from onepass.bench.timing import Call, ContestantResult, in_turns

ROUNDS = 5
# batch, heads of queries, of keys, queries, keys, head dim
SHAPES = (
    (16, 16, 16, 1, 4096, 128),
    (32, 32, 8, 1, 4096, 128),
    (4, 16, 16, 16, 4096, 128),
    (2, 16, 16, 512, 4096, 128),
)
CONTESTANTS: dict[str, dict | None] = {"in the kernel": {}, "in front": {"fuse_loads": "never"}, "torch.compile": None}


def attention(q: Tensor, k: Tensor, v: Tensor, scale_k: Tensor, scale_v: Tensor) -> Tensor:
    """Attention with keys and values in int8, and a scale for each token."""
    times = q.shape[1] // k.shape[1]
    k, v = k.to(q.dtype) * scale_k, v.to(q.dtype) * scale_v
    k, v = (repeated(x, times) if times > 1 else x for x in (k, v))
    return torch.softmax(q @ k.mT * q.shape[-1] ** -0.5, -1) @ v


def tensors(batch: int, heads: int, shared: int, queries: int, keys: int, width: int) -> list[Tensor]:
    q = torch.randn(batch, heads, queries, width, device="cuda", dtype=torch.bfloat16)
    cache = [torch.randint(-127, 128, (batch, shared, keys, width), device="cuda", dtype=torch.int8) for _ in range(2)]
    return [q, *cache, *((torch.rand(batch, shared, keys, 1, device="cuda") / 64).bfloat16() for _ in range(2))]


def compiled(options: dict | None, given: list[Tensor]) -> Call:
    torch._dynamo.reset()
    backend = "inductor" if options is None else onepass_backend
    made = torch.compile(attention, backend=backend, options=options, dynamic=False)
    return lambda: made(*given)


@torch.no_grad()
def main() -> None:
    torch.manual_seed(0)
    for shape in SHAPES:
        given = tensors(*shape)
        first = [x[:1].double() if x.is_floating_point() else x[:1] for x in given]
        right, calls, wrong = attention(*first), {}, {}
        for name, options in CONTESTANTS.items():
            calls[name] = compiled(options, given)
            wrong[name] = float((calls[name]()[:1].double() - right).abs().max())
        times = in_turns(calls, ROUNDS, dict.fromkeys(calls, ContestantResult()))
        said = (f"{name} {statistics.median(taken):.3f} ms (error {wrong[name]:.1g})" for name, taken in times.items())
        print(shape, *said, f"cache {sum(x.numel() for x in given[1:3]) / 2**20:.0f} MiB", sep="; ", flush=True)


if __name__ == "__main__":
    main()
