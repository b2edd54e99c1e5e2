"""Gradients of exp(log_softmax(s)) and of exp(s - logsumexp(s)) were left to Inductor, those of softmax(s) derived.

The exponent s - m - (log Σ_j exp(s) - m) kept its two shifts m, and a mask kept the exponent apart from the logarithm
that bounds it. Found by random programs. Scores of thousands would overflow without a shift.
"""

import math

import pytest
import torch
import torch.nn.functional as F

from onepass import onepass_backend, reports

LENGTH, WIDTH = 40, 16
OPTIONS = {"inner": "eager", "executor": "tiled", "libraries": False, "strict": True}


def by_log_softmax(s):
    return F.log_softmax(s, -1).exp()


def by_logsumexp(s):
    return torch.exp(s - s.logsumexp(-1, keepdim=True))


def by_hand(s):
    largest = s.amax(-1, keepdim=True)
    return (s - (largest + (s - largest).exp().sum(-1, keepdim=True).log())).exp()


def by_hand_in_the_other_order(s):
    largest = s.amax(-1, keepdim=True)
    return (s - ((s - largest).exp().sum(-1, keepdim=True).log() + largest)).exp()


def whole(s):
    return s


def causal(s):
    return s.masked_fill(torch.ones(s.shape[-2:], dtype=torch.bool, device=s.device).triu(1), -math.inf)


def windowed_by_addition(s):
    i = torch.arange(s.shape[-1], device=s.device)
    return s + torch.where((i - i[:, None]).abs() < 5, 0.0, -math.inf).to(s.dtype)


WEIGHTS = (by_log_softmax, by_logsumexp, by_hand, by_hand_in_the_other_order)


@pytest.mark.parametrize("scale", [1.0, 300.0])
@pytest.mark.parametrize("mask", [whole, causal, windowed_by_addition])
@pytest.mark.parametrize("weights", WEIGHTS)
def test_gradients_are_derived_and_right(weights, mask, scale):
    def attend(q, k, v):
        return weights(mask(q @ k.mT * scale / WIDTH**0.5)) @ v

    torch.manual_seed(0)
    torch._dynamo.reset()
    given = [torch.randn(2, 2, LENGTH, WIDTH, dtype=torch.float64).requires_grad_() for _ in range(3)]
    result = torch.compile(attend, backend=onepass_backend, options=OPTIONS)(*given)
    cotangent = torch.randn_like(result)
    found, exact = (torch.autograd.grad(r, given, cotangent) for r in (result, attend(*given)))
    assert [region.backward.startswith("derived") for region in reports()[-1].regions] == [True]
    for one, other in zip(found, exact, strict=True):
        assert torch.isfinite(other).all() and other.count_nonzero() > 100
        torch.testing.assert_close(one, other, rtol=1e-7, atol=1e-11 * scale**2)
