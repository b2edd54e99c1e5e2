"""Pairs of functions that are equal up to rounding, and pairs that are unequal at hostile values only: half of each."""

from collections.abc import Callable
from dataclasses import dataclass, field
from math import inf

import torch
import torch.nn.functional as F
from torch import exp, log, softmax, sqrt, tanh, where

ROWS, TWO, VECTORS = ["i j"], ["n", "n"], ["i d", "j d", "j e"]
FINITE, HALF = {"finite": True}, {"dtype": torch.float16}
LEAST = torch.finfo(torch.float64).min


@dataclass(frozen=True)
class Pair:
    """Two functions of the same arguments, and the options of assert_equivalent under which they are compared."""

    name: str
    f: Callable
    g: Callable
    inputs: list
    options: dict = field(default_factory=dict)

    def __str__(self) -> str:
        return self.name


def attention(q, k, v):
    return softmax(q @ k.mT / 8, -1) @ v


def causal(q, k, v, diagonal=0):
    s = q @ k.mT
    return softmax(s.masked_fill(torch.ones_like(s).tril(diagonal) == 0, -inf), -1) @ v


def causal_by_places(q, k, v):
    i, j = torch.arange(len(q))[:, None], torch.arange(len(k))
    return softmax(where(j <= i, q @ k.mT, -inf), -1) @ v


def shifted(s):
    e = exp(s - s.amax(-1, keepdim=True))
    return e / e.sum(-1, keepdim=True)


def unshifted(s):
    return exp(s) / exp(s).sum(-1, keepdim=True)


def deferred(q, k, v):
    s = q @ k.mT / 8
    e = exp(s - s.amax(-1, keepdim=True))
    return e @ v / e.sum(-1, keepdim=True)


def online(s, safe=True):
    """The weights of a row by one pass that carries the largest score and the sum."""
    m, total = torch.full_like(s[..., 0], -inf), torch.zeros_like(s[..., 0])
    for x in s.unbind(-1):
        higher = torch.maximum(m, x)
        shift = where(higher == -inf, 0.0, higher) if safe else higher
        total, m = total * exp(m - shift) + exp(x - shift), higher
    return exp(s - m[..., None]) / total[..., None]


def blockwise(q, k, v, size=2):
    """Attention by blocks of keys, whose states are merged."""
    m, total, acc = q.new_full((len(q), 1), -inf), q.new_zeros(len(q), 1), q.new_zeros(len(q), v.shape[1])
    for keys, values in zip(k.split(size), v.split(size)):
        s = q @ keys.mT / 8
        higher = torch.maximum(m, s.amax(-1, keepdim=True))
        e, rescale = exp(s - higher), exp(m - higher)
        m, total, acc = higher, total * rescale + e.sum(-1, keepdim=True), acc * rescale + e @ values
    return acc / total


def two_pass(x):
    return (x - x.mean(-1, keepdim=True)).square().mean(-1)


def welford(x):
    mean = squares = torch.zeros_like(x[..., 0])
    for n, value in enumerate(x.unbind(-1), 1):
        step = value - mean
        mean = mean + step / n
        squares = squares + step * (value - mean)
    return squares / x.shape[-1]


def layer_norm(x):
    return (x - x.mean(-1, keepdim=True)) * torch.rsqrt(two_pass(x)[..., None] + 1e-5)


def rotated(x, angle):
    a, b = x.unbind(-1)
    return torch.stack([a * angle.cos() - b * angle.sin(), a * angle.sin() + b * angle.cos()], -1)


def rotated_by_complex(x, angle):
    return torch.view_as_real(torch.view_as_complex(x.contiguous()) * torch.polar(torch.ones_like(angle), angle))


def masked(s, m, fill):
    return softmax(where(m > 0, s, fill), -1)


def least_where(m):
    return where(m > 0, 0.0, torch.tensor(LEAST, dtype=m.dtype))


def by_magnitude(x):
    return x.gather(-1, x.abs().argsort(-1)).sum(-1)


def in_blocks(x):
    return sum(part.sum(-1) for part in x.split(2, -1))


def one_hot_of_largest(x):
    return F.one_hot(x.argmax(-1), x.shape[-1]).to(x.dtype)


EQUAL = [
    Pair("a sum of three reassociated", lambda a, b, c: (a + b) + c, lambda a, b, c: a + (b + c), ["n", "n", "n"]),
    Pair("a sum from the other end", lambda x: x.sum(-1), lambda x: x.flip(-1).cumsum(-1)[..., -1], ROWS),
    Pair("a sum in blocks, float32", lambda x: x.sum(-1), in_blocks, ROWS, {"dtype": torch.float32}),
    Pair("a sum by magnitude", lambda x: x.sum(-1), by_magnitude, ROWS),
    Pair("a mean of quotients", lambda x: x.mean(-1), lambda x: (x / x.shape[-1]).sum(-1), ROWS),
    Pair("products reordered", lambda a, b, c: a @ b @ c, lambda a, b, c: a @ (b @ c), ["i j", "j k", "k l"], FINITE),
    Pair("scale before or behind a product", lambda q, k: q / 8 @ k.mT, lambda q, k: q @ k.mT / 8, VECTORS[:2]),
    Pair("a factor out of a sum", lambda x, c: (x * c).sum(-1), lambda x, c: c * x.sum(-1), ["i j", ""], FINITE),
    Pair("a product distributed", lambda a, b, c: (a + b) * c, lambda a, b, c: a * c + b * c, ["n", "n", "n"], FINITE),
    Pair("a divisor out of a product", lambda p, v, n: p @ v / (1 + n.abs()), lambda p, v, n: p @ (v / (1 + n.abs())),
         ["i j", "j e", ""], FINITE),
    Pair("softmax with a shift", lambda s: softmax(s, -1), shifted, ROWS),
    Pair("softmax with a shift, bfloat16", lambda s: softmax(s, -1), shifted, ROWS, {"dtype": torch.bfloat16}),
    Pair("online softmax", lambda s: softmax(s, -1), online, ROWS),
    Pair("softmax by its logarithm", lambda s: softmax(s, -1), lambda s: exp(s.log_softmax(-1)), ROWS, FINITE),
    Pair("deferred normalisation", attention, deferred, VECTORS),
    Pair("deferred normalisation, float16", attention, deferred, VECTORS, {"dtype": torch.float16}),
    Pair("attention in blocks", attention, blockwise, VECTORS, FINITE),
    Pair("attention in blocks, float32", attention, blockwise, VECTORS, {**FINITE, "dtype": torch.float32}),
    Pair("causal masks of two kinds", causal, causal_by_places, VECTORS),
    Pair("log-sum-exp with a shift", lambda s: s.logsumexp(-1),
         lambda s: s.amax(-1) + log(exp(s - s.amax(-1, keepdim=True)).sum(-1)), ROWS, FINITE),
    Pair("log-softmax by log-sum-exp", lambda s: s.log_softmax(-1), lambda s: s - s.logsumexp(-1, True), ROWS,
         {**FINITE, "largest": 100.0}),
    Pair("sigmoid by tanh", torch.sigmoid, lambda x: 0.5 * (1 + tanh(x / 2)), ["n"]),
    Pair("softplus beyond its threshold", F.softplus, lambda x: x.clamp(min=0) + torch.log1p(exp(-x.abs())), ["n"]),
    Pair("softcap by an exponential", lambda s: 50 * tanh(s / 50), lambda s: 50 - 100 / (exp(s / 25) + 1), ["n"]),
    Pair("variance in one pass", two_pass, welford, ROWS, FINITE),
    Pair("layer norm by hand", lambda x: F.layer_norm(x, x.shape[-1:]), layer_norm, ROWS, {**FINITE, "largest": 1e100}),
    Pair("weight in front of a norm", lambda x, w: x * torch.rsqrt(x.square().mean(-1, True) + 1e-6) * w,
         lambda x, w: x * w / sqrt(x.square().mean(-1, True) + 1e-6), ["i d", "d"], FINITE),
    Pair("a rotation by complex numbers", rotated, rotated_by_complex, ["n 2", "n"], FINITE),
    Pair("integers that wrap alike", lambda x: x.to(torch.int8) * 2, lambda x: x.to(torch.int8) + x.to(torch.int8),
         ["n"],
         FINITE),
    Pair("one key has weight one", lambda s: softmax(s[..., :1], -1), lambda s: torch.ones_like(s[..., :1]),
         ROWS, FINITE),
]  # fmt: skip

UNEQUAL = [
    Pair("softmax without a shift", lambda s: softmax(s, -1), unshifted, ROWS),
    Pair("softmax without a shift, float16", lambda s: softmax(s, -1), unshifted, ROWS, HALF),
    Pair("attention without a shift", attention, lambda q, k, v: unshifted(q @ k.mT / 8) @ v, VECTORS),
    Pair("log-sum-exp without a shift", lambda s: s.logsumexp(-1), lambda s: log(exp(s).sum(-1)), ROWS, FINITE),
    Pair("logarithm of a softmax", lambda s: s.log_softmax(-1), lambda s: log(softmax(s, -1)), ROWS, FINITE),
    Pair("online softmax without a guard", lambda s: softmax(s, -1), lambda s: online(s, False), ROWS),
    Pair("softplus without a threshold", F.softplus, lambda x: log(1 + exp(x)), ["n"], FINITE),
    Pair("sigmoid by a quotient", torch.sigmoid, lambda x: exp(x) / (1 + exp(x)), ["n"], FINITE),
    Pair("tanh by exponentials", tanh, lambda x: (exp(x) - exp(-x)) / (exp(x) + exp(-x)), ["n"], FINITE),
    Pair("exponential of a sum", lambda a, b: exp(a + b), lambda a, b: exp(a) * exp(b), TWO, FINITE),
    Pair("variance by moments", two_pass, lambda x: x.square().mean(-1) - x.mean(-1).square(), ROWS, FINITE),
    Pair("deviation of one element", lambda x: x.std(-1, correction=0),
         lambda x: x.std(-1) * (1 - 1 / x.shape[-1]) ** 0.5,
         ROWS, FINITE),
    Pair("distance expanded", lambda a, b: (a - b).square(), lambda a, b: a * a - 2 * a * b + b * b, TWO, FINITE),
    Pair("root of a square", torch.abs, lambda x: sqrt(x * x), ["n"], FINITE),
    Pair("length of a vector", torch.hypot, lambda a, b: sqrt(a.square() + b.square()), TWO, FINITE),
    Pair("times nothing", torch.zeros_like, lambda x: x * 0, ["n"]),
    Pair("over itself", torch.ones_like, lambda x: x / x, ["n"], FINITE),
    Pair("times a reciprocal", lambda a, b: a / b, lambda a, b: a * (1 / b), TWO, FINITE),
    Pair("root by a reciprocal", lambda x: sqrt(x.abs()), lambda x: x.abs() * torch.rsqrt(x.abs()), ["n"], FINITE),
    Pair("sign of zero", lambda x: 1 / x, lambda x: 1 / (x + 0.0), ["n"], FINITE),
    Pair("logarithm of a square", lambda x: 2 * log(x.abs()), lambda x: log(x * x), ["n"], FINITE),
    Pair("hidden by the least number", lambda s, m: masked(s, m, -inf), lambda s, m: masked(s, m, LEAST),
         ["i j", "i j"]),
    Pair("hidden by the least number twice", lambda s, m: softmax(s + least_where(m), -1),
         lambda s, m: softmax(s + least_where(m) + least_where(m), -1), ["i j", "i j"], FINITE),
    Pair("absent by a product", lambda p, m: where(m > 0, p, 0.0).sum(-1), lambda p, m: ((m > 0) * p).sum(-1),
         ["n", "n"]),
    Pair("causal by one place", causal, lambda q, k, v: causal(q, k, v, -1).nan_to_num(), VECTORS, FINITE),
    Pair("largest among equals", one_hot_of_largest, lambda x: (x == x.amax(-1, True)).to(x.dtype), ROWS, FINITE),
    Pair("a threshold itself", lambda x: where(x < 2.7, x, 0.0), lambda x: where(x <= 2.7, x, 0.0), ["n"], FINITE),
    Pair("through float16", lambda x: x, lambda x: x.half().to(x.dtype), ["n"], {**FINITE, "rtol": 1e-2, "atol": 1e-2}),
    Pair("through int8", torch.trunc, lambda x: x.to(torch.int8).to(x.dtype), ["n"], FINITE),
    Pair("mean of nothing", lambda x: x.sum(-1) / max(x.shape[-1], 1), lambda x: x.mean(-1), ROWS, {"empty": True}),
]  # fmt: skip
