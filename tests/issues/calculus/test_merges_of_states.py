"""Attentions that are merged by hand, by the logarithms of their sums, had no derived gradients: torch's logaddexp asks
which of its operands is the larger. It is log(exp(a) + exp(b)), whose value the forward computes, and an exponent is
bounded by the logarithm of a sum of sums that it is part of.
"""

import math

import pytest
import torch

from onepass import onepass_backend, reports
from tests.support.backwards import backward_of, leaves, parts

OPTIONS = {"inner": "eager", "executor": "tiled", "libraries": False, "strict": True}
ROWS, KEYS = 48, 40


def of_part(s, v):
    return s.softmax(-1) @ v, s.logsumexp(-1, keepdim=True)


def by_logaddexp(states):
    (a, x), (b, y) = states
    both = torch.logaddexp(x, y)
    return a * (x - both).exp() + b * (y - both).exp(), both


def by_the_larger(states):
    (a, x), (b, y) = states
    larger = torch.maximum(x, y)
    first, second = (x - larger).exp(), (y - larger).exp()
    return ((a * first + b * second) / (first + second),)


def with_sums_by_hand(states):
    (a, x), (b, y) = states
    both = torch.logaddexp(x, y)
    return ((x - both).exp() * a + (y - both).exp() * b,)


MERGES = [by_logaddexp, by_the_larger, with_sums_by_hand]


def causal(s):
    return s.masked_fill(torch.ones(ROWS, KEYS).tril() == 0, -math.inf)


def no_key_for_some(s):
    return s.masked_fill(torch.arange(ROWS)[:, None] < 16, torch.finfo(torch.float32).min)


@pytest.mark.sampled(4)
@pytest.mark.parametrize("scale", [1, 20, 1000])
@pytest.mark.parametrize("mask", [causal, no_key_for_some], ids=lambda f: f.__name__)
@pytest.mark.parametrize("merge", MERGES, ids=lambda f: f.__name__)
def test_their_gradients_are_derived_and_right(merge, mask, scale):
    def attend(q, k, v, l, w):
        return merge([of_part(q @ k.mT, v), of_part(mask(q @ l.mT), w)])

    torch.manual_seed(0)
    torch._dynamo.reset()
    given = [scale * torch.randn(1, 2, ROWS, 8), *(torch.randn(1, 2, KEYS, 8) for _ in range(4))]
    found = []
    compiled = torch.compile(attend, backend=onepass_backend, options=OPTIONS)
    for function, dtype in ((compiled, torch.float32), (attend, torch.float32), (attend, torch.float64)):
        tensors = [x.to(dtype).requires_grad_() for x in given]
        results = function(*tensors)
        cotangents = [torch.linspace(-1, 1, r.numel(), dtype=dtype).view_as(r) for r in results]
        found.append([x.double() for x in (*results, *torch.autograd.grad(results, tensors, cotangents))])
    (region,) = reports()[-1].regions
    assert region.backward.startswith("derived"), region.backward
    for mine, eager, exact in zip(*found, strict=True):
        assert torch.isfinite(exact).all() and exact.count_nonzero() > 0
        # A saved logarithm is rounded as the scores are: its error is relative to the largest of them.
        close = 1e-5 * scale * exact.abs().max().clamp(min=1) + 4 * (eager - exact).abs().max()
        assert (mine - exact).abs().max() <= close


@pytest.mark.parametrize("merge", MERGES, ids=lambda f: f.__name__)
def test_no_kernel_stores_scores(merge):
    def attend(q, k, v, l, w):
        return merge([of_part(q @ k.mT / 8, v), of_part(q @ l.mT / 8, w)])

    stored = parts(backward_of(attend, *leaves(*[(1, 2, 2048, 64)] * 5, dtype=torch.float32)))
    assert all(shape.count(2048) < 2 for shape in stored.values()), stored


def test_a_logarithm_that_is_a_result_costs_no_maximum():
    def attend(q, k, v):
        return of_part(q @ k.mT / 8, v)

    plan = backward_of(attend, *leaves(*[(1, 2, 2048, 64)] * 3))
    monoids = {a.monoid for kernel in plan.kernels for loop in kernel.loops for a in loop.accumulators}
    assert monoids == {"sum"}
