"""What the suites measure: problems, each written once in plain PyTorch and once in every contestant's own way.

A BenchProblem has normal inputs, the spelling a user writes, its work, and `ways`: contestants by name. Each way builds
a call without arguments. What needs preparing (masks, layouts) is prepared there, outside what is timed.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.attention.flex_attention import create_block_mask, flex_attention
from torch.nn.functional import scaled_dot_product_attention

Way = Callable[[], Callable[[], torch.Tensor]]
MAX_AUTOTUNE = "max-autotune-no-cudagraphs"
SDPA = {name: getattr(SDPBackend, f"{name.upper()}_ATTENTION") for name in ("cudnn", "flash", "efficient")}


@dataclass(frozen=True)
class BenchProblem:
    """`cut(n)` gives the arguments of the n-th of `parts`, as a smaller problem, and where its result is.

    elements: of the scores as eager makes them; flops: of what a mask keeps, as the plain function is written.
    """

    plain: Callable
    arguments: tuple[torch.Tensor, ...]
    flops: float
    elements: int
    parts: int
    cut: Callable[[int], tuple[tuple[torch.Tensor, ...], tuple]]
    ways: dict[str, Way] = field(default_factory=dict)


@dataclass(frozen=True)
class Shape:
    """Batch, query heads, length and head dim; the key heads are 1 / `group` of the query heads; `columns`: the length
    of the keys if it is another."""

    batch: int
    heads: int
    length: int
    width: int
    group: int = 1
    columns: int = 0

    @property
    def keys(self) -> int:
        return self.columns or self.length

    def __str__(self) -> str:
        keys = f"k{self.columns}" if self.columns else ""
        return f"b{self.batch}h{self.heads}s{self.length}{keys}d{self.width}"


def normal(*sizes: int, device: torch.device | str, dtype: torch.dtype) -> torch.Tensor:
    return torch.randn(*sizes, device=device, dtype=dtype)


# One attention with something done to its scores ----------------------------------------------------------------------


@dataclass(frozen=True)
class Variant:
    """`edit(score, *extra)` changes [.., Sq, Sk] scores; `score_mod` and `mask_mod` say the same to FlexAttention.

    extra: shape, device, dtype -> further tensors; axes: a letter for each axis of each, "b" where it runs over the
    batch and "h" over heads. `words` is SDPA's own way, `fa3` FlashAttention-3's; None if it has none. dense: SDPA can
    take it as a mask that is added. fewer_keys: the length of the queries over that of the keys.
    """

    edit: Callable
    extra: Callable = lambda shape, device, dtype: ()
    axes: tuple[str, ...] = ()
    score_mod: Callable | None = None
    mask_mod: Callable | None = None
    words: dict | None = None
    dense: bool = True
    fa3: dict | None = None
    group: int = 1
    fewer_keys: int = 1

    def over(self, letter: str) -> bool:
        """Whether any of the further tensors has that axis."""
        return any(letter in axes for axes in self.axes)


def attention(edit: Callable) -> Callable:
    """Attention as a user writes it."""

    def plain(q, k, v, *extra):
        if q.shape[1] != k.shape[1]:
            k, v = repeated(k, q.shape[1] // k.shape[1]), repeated(v, q.shape[1] // v.shape[1])
        score = q @ k.transpose(-1, -2) / math.sqrt(q.shape[-1])
        return torch.softmax(edit(score, *extra), dim=-1).to(v.dtype) @ v  # a bias may be float32

    return plain


def repeated(x: torch.Tensor, times: int) -> torch.Tensor:
    b, h, s, d = x.shape
    return x[:, :, None].expand(b, h, times, s, d).reshape(b, h * times, s, d)


def narrowed(x: torch.Tensor, axes: str, numbers: dict[str, int]) -> torch.Tensor:
    """One place along each lettered axis, which stays as an axis of size 1."""
    for letter, number in numbers.items():
        x = x.narrow(axes.index(letter), number, 1) if letter in axes else x
    return x


def problem(variant: Variant, shape: Shape, device: str, dtype: torch.dtype) -> BenchProblem:
    """A variant at a shape, with everyone's way to compute it."""
    few = shape.heads // shape.group
    make = partial(normal, shape.batch, device=device, dtype=dtype)
    q = make(shape.heads, shape.length, shape.width)
    k, v = (make(few, shape.keys, shape.width) for _ in range(2))
    extra = variant.extra(shape, device, dtype)

    def cut(number: int):
        b, h = divmod(number, shape.heads)
        own = [narrowed(x, axes, {"b": b, "h": h}) for x, axes in zip(extra, variant.axes, strict=True)]
        keys = [x[b : b + 1, h // shape.group : h // shape.group + 1] for x in (k, v)]
        return (q[b : b + 1, h : h + 1], *keys, *own), (slice(b, b + 1), slice(h, h + 1))

    ways = _flex(variant, shape, q, k, v, extra) | _sdpa(variant, shape, q, k, v, extra)
    if variant.fa3 is not None:
        ways["fa3"] = partial(_fa3, q, k, v, variant.fa3)
    parts = shape.batch * shape.heads
    elements, flops = parts * shape.length * shape.keys, 4.0 * _pairs(variant, shape, extra, device) * shape.width
    return BenchProblem(attention(variant.edit), (q, k, v, *extra), flops, elements, parts, cut, ways)


def _pairs(variant: Variant, shape: Shape, extra, device: str) -> int:
    """How many pairs of a row and a column the mask keeps, counted, over batch and heads."""
    if variant.mask_mod is None:
        return shape.batch * shape.heads * shape.length * shape.keys
    kept, batch = variant.mask_mod(*extra), shape.batch if variant.over("b") else 1
    rows = torch.arange(shape.length, device=device)[:, None]
    columns = torch.arange(shape.keys, device=device)[None, :]
    each = [kept(b, 0, rows, columns).expand(shape.length, shape.keys).sum().item() for b in range(batch)]
    return sum(each) * (shape.batch // batch) * shape.heads


def _flex(variant: Variant, shape: Shape, q, k, v, extra) -> dict[str, Way]:
    """FlexAttention as it comes, tuned, and with its mask made in every call, by compiled code and by plain code."""
    score_mod = variant.score_mod and variant.score_mod(*extra)
    mask_mod = variant.mask_mod and variant.mask_mod(*extra)
    batch = shape.batch if variant.over("b") else None

    def mask(build=create_block_mask):
        return build(mask_mod, batch, None, shape.length, shape.keys, device=q.device) if mask_mod else None

    def cached(mode: str | None):
        run, known = torch.compile(flex_attention, dynamic=False, mode=mode), mask()
        return lambda: run(q, k, v, score_mod=score_mod, block_mask=known, enable_gqa=shape.group > 1)

    def built(compiled: bool):
        run = torch.compile(flex_attention, dynamic=False)
        build = torch.compile(create_block_mask, dynamic=False) if compiled else create_block_mask
        return lambda: run(q, k, v, score_mod=score_mod, block_mask=mask(build), enable_gqa=shape.group > 1)

    ways: dict[str, Way] = {"flex": partial(cached, None), "flex_max": partial(cached, MAX_AUTOTUNE)}
    return ways | ({"flex_built": partial(built, True), "flex_built_plain": partial(built, False)} if mask_mod else {})


def _sdpa(variant: Variant, shape: Shape, q, k, v, extra) -> dict[str, Way]:
    if variant.words is None and not variant.dense:
        return {}

    def way(backend: str):
        if variant.words is not None:
            return sdpa(backend, q, k, v, enable_gqa=shape.group > 1, **variant.words)
        batch, heads = (n if variant.over(x) else 1 for x, n in (("b", shape.batch), ("h", shape.heads)))
        zero = torch.zeros(batch, heads, shape.length, shape.keys, device=q.device, dtype=q.dtype)
        return sdpa(backend, q, k, v, attn_mask=variant.edit(zero, *extra).to(q.dtype))

    return {f"sdpa_{name}": partial(way, name) for name in SDPA if variant.words is not None or name != "flash"}


def sdpa(backend: str, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, **words: Any) -> Callable[[], torch.Tensor]:
    """A call of SDPA that only one backend may serve."""
    only = SDPA[backend]

    def call():
        with sdpa_kernel(only):
            return scaled_dot_product_attention(q, k, v, **words)

    return call


def _fa3(q, k, v, words: dict) -> Callable[[], torch.Tensor]:
    """FlashAttention-3 in its own layout [B, S, H, D], made beforehand."""
    from fa3_fwd_interface import flash_attn_func

    ours = [x.transpose(1, 2).contiguous() for x in (q, k, v)]

    def call():
        found = flash_attn_func(*ours, **words)
        return (found[0] if isinstance(found, tuple) else found).transpose(1, 2)

    return call


# Two beyond that ------------------------------------------------------------------------------------------------------

PART = 0.2  # of the second softmax, subtracted


def differential(shape: Shape, device: str, dtype: torch.dtype) -> BenchProblem:
    """softmax(q0 k0ᵀ/√D) v - 0.2 softmax(q1 k1ᵀ/√D) v; q, k [B, H, S, D] in halves of heads, v [B, H/2, S, 2 D]."""
    half, make = shape.heads // 2, partial(normal, shape.batch, device=device, dtype=dtype)
    q, k = (make(shape.heads, shape.length, shape.width) for _ in range(2))
    v = make(half, shape.length, 2 * shape.width)
    one = attention(lambda score: score)

    def both(call, q, k, v):
        half = q.shape[1] // 2
        return call(q[:, :half], k[:, :half], v) - PART * call(q[:, half:], k[:, half:], v)

    def cut(number: int):
        b, h = divmod(number, half)
        own = [x[b : b + 1, h::half] for x in (q, k)]
        return (*own, v[b : b + 1, h : h + 1]), (slice(b, b + 1), slice(h, h + 1))

    def flex(mode: str | None):
        run = torch.compile(partial(both, flex_attention), dynamic=False, mode=mode)
        return lambda: run(q, k, v)

    def twice(backend: str):
        first = sdpa(backend, q[:, :half], k[:, :half], v)
        second = sdpa(backend, q[:, half:], k[:, half:], v)
        return lambda: first() - PART * second()

    ways: dict[str, Way] = {"flex_x2": partial(flex, None), "flex_x2_max": partial(flex, MAX_AUTOTUNE)}
    ways |= {f"sdpa_{name}_x2": partial(twice, name) for name in SDPA}
    elements = shape.batch * shape.heads * shape.length**2
    plain = lambda q, k, v: both(one, q, k, v)
    return BenchProblem(plain, (q, k, v), 6.0 * elements * shape.width, elements, shape.batch * half, cut, ways)


def evoformer(batch: int, rows: int, heads: int, width: int, device: str, dtype: torch.dtype) -> BenchProblem:
    """Evoformer, row-wise, no gate: q, k, v [B, N, S, H, D] with S = N, biases [B, N, 1, 1, S] and [B, 1, H, S, S]."""
    make = partial(normal, batch, device=device, dtype=dtype)
    q, k, v = (make(rows, rows, heads, width) for _ in range(3))
    line, pair = make(rows, 1, 1, rows), make(1, heads, rows, rows)

    def plain(q, k, v, line, pair):
        q, k, v = (x.transpose(-2, -3) for x in (q, k, v))
        score = q @ k.transpose(-1, -2) / math.sqrt(q.shape[-1]) + line + pair
        return (torch.softmax(score, dim=-1) @ v).transpose(-2, -3)

    def cut(number: int):
        b, n = divmod(number, rows)
        one, row = slice(b, b + 1), slice(n, n + 1)
        return (*(x[one, row] for x in (q, k, v)), line[one, row], pair[one]), (one, row)

    def flat(x):
        return x.transpose(-2, -3).reshape(batch * rows, heads, rows, width)

    def unflat(x):
        return x.view(batch, rows, heads, rows, width).transpose(-2, -3)

    def flex(mode: str | None):
        lines, pairs = line.reshape(batch * rows, rows), pair[:, 0]
        mod = lambda score, b, h, i, j: score + lines[b, j] + pairs[b // rows, h, i, j]
        run, ours = torch.compile(flex_attention, dynamic=False, mode=mode), [flat(x) for x in (q, k, v)]
        return lambda: unflat(run(*ours, score_mod=mod))

    def dense(backend: str):
        call = sdpa(backend, *map(flat, (q, k, v)), attn_mask=(line + pair).reshape(batch * rows, heads, rows, rows))
        return lambda: unflat(call())

    ways: dict[str, Way] = {"flex": partial(flex, None), "flex_max": partial(flex, MAX_AUTOTUNE)}
    ways |= {f"sdpa_{name}": partial(dense, name) for name in SDPA if name != "flash"}
    elements = batch * rows * heads * rows**2
    return BenchProblem(plain, (q, k, v, line, pair), 4.0 * elements * width, elements, batch * rows, cut, ways)
