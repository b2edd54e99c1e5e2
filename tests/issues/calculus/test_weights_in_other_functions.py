"""Softmax weights inside of another function, multiplied by themselves, normalised again or mixed across heads had no
derived gradients: without their shifts, a divisor did not meet its exponential again. Each weight keeps the logarithm
of its sum in its exponent then, exp(s - log Σ_j exp(s)), which no derivative makes larger.
"""

import math

import pytest
import torch
import torch.nn.functional as F

from onepass import onepass_backend, reports
from tests.support.backwards import backward_of, leaves, parts

OPTIONS = {"inner": "eager", "executor": "tiled", "libraries": False, "strict": True}
ROWS, KEYS = 48, 40


def entropy(s, v):
    p = s.softmax(-1)
    return p @ v, -(p * (p + 1e-9).log()).sum(-1)


def entropy_of_bounded(s, v):
    p = s.softmax(-1)
    return p @ v, -(p * p.clamp_min(1e-9).log()).sum(-1).mean()


def of_squares(s, v):
    p = s.softmax(-1)
    return p @ v, p.square().sum(-1)


def sharpened(s, v):
    p = s.softmax(-1) ** 2
    return p / p.sum(-1, keepdim=True) @ v


def lower_part(s, v):
    p = s.softmax(-1).tril()
    return p / (p.sum(-1, keepdim=True) + 1e-6) @ v


def masked_twice(s, v):
    kept = (torch.arange(s.shape[-1]) < 30).to(s.dtype)
    p = (s * kept).softmax(-1) * kept
    return p / (p.sum(-1, keepdim=True) + 1e-13) @ v


def above_a_threshold(s, v):
    return F.relu(s.softmax(-1) - 0.01) @ v


def mixed_heads(s, v):
    mixed = torch.einsum("bhij,gh->bgij", s.softmax(-1), torch.tensor([[1.0, 0.5], [-0.3, 2.0]]).to(s.dtype))
    return mixed @ v


def normalised_over_queries(s, v):
    p = s.softmax(-1)
    return p / (p.sum(-2, keepdim=True) + 1e-9) @ v


PROGRAMS = [entropy, entropy_of_bounded, of_squares, sharpened, lower_part]
PROGRAMS += [masked_twice, above_a_threshold, mixed_heads, normalised_over_queries]


def causal(s):
    return s.masked_fill(torch.ones(ROWS, KEYS).tril() == 0, -math.inf)


def blocks(s):
    """The first block of rows keeps nothing."""
    i, j = torch.arange(ROWS)[:, None], torch.arange(KEYS)
    return s.masked_fill(i // 8 != j // 8 + 1, torch.finfo(torch.float32).min)


def plain(s):
    return s


def compared(weigh, mask, scale):
    """Results and gradients of a compiled attention, of the same in float32, and in float64."""

    def attend(q, k, v):
        found = weigh(mask(q @ k.mT), v)
        return found if isinstance(found, tuple) else (found,)

    torch.manual_seed(0)
    torch._dynamo.reset()
    given = [scale * torch.randn(1, 2, ROWS, 8), torch.randn(1, 2, KEYS, 8), torch.randn(1, 2, KEYS, 8)]
    compiled = torch.compile(attend, backend=onepass_backend, options=OPTIONS)
    for function, dtype in ((compiled, torch.float32), (attend, torch.float32), (attend, torch.float64)):
        tensors = [x.to(dtype).requires_grad_() for x in given]
        results = function(*tensors)
        cotangents = [torch.linspace(-1, 1, r.numel(), dtype=dtype).view_as(r) for r in results]
        yield [x.double() for x in (*results, *torch.autograd.grad(results, tensors, cotangents))]


@pytest.mark.sampled(6)
@pytest.mark.parametrize("scale", [1, 20, 1000])
@pytest.mark.parametrize("mask", [plain, causal, blocks], ids=lambda f: f.__name__)
@pytest.mark.parametrize("weigh", PROGRAMS, ids=lambda f: f.__name__)
def test_their_gradients_are_derived_and_right(weigh, mask, scale):
    if weigh is masked_twice and mask is causal:
        mask = blocks  # -∞ times 0 is NaN
    found, rounded, exact = compared(weigh, mask, scale)
    (region,) = reports()[-1].regions
    assert region.backward.startswith("derived"), region.backward
    for mine, eager, other in zip(found, rounded, exact, strict=True):
        assert torch.isfinite(other).all() and other.count_nonzero() > 0
        # A saved logarithm is rounded as the scores are: its error is relative to the largest of them.
        close = 1e-5 * scale * other.abs().max().clamp(min=1) + 4 * (eager - other).abs().max()
        assert (mine - other).abs().max() <= close


@pytest.mark.parametrize("weigh", PROGRAMS, ids=lambda f: f.__name__)
def test_no_kernel_stores_scores(weigh):
    def attend(q, k, v):
        return weigh(q @ k.mT / 8, v)

    stored = parts(backward_of(attend, *leaves(*[(1, 2, 2048, 64)] * 3)))
    assert all(shape.count(2048) < 2 for shape in stored.values()), stored
