"""A softmax by hand that detaches its largest score was left to Inductor in training, whose gradients are the same.

What is detached counts as computed from other inputs. If the form without shifts does not read these, autograd's
derivative is that of the form. Where the result does depend on what is detached, its derivative passes that by.
"""

import math

import pytest
import torch

from onepass import onepass_backend, reports

OPTIONS = {"inner": "eager", "executor": "tiled", "libraries": False, "strict": True}


def largest_detached(s, v):
    e = (s - s.amax(-1, keepdim=True).detach()).exp()
    return e @ v / e.sum(-1, keepdim=True)


def of_detached_scores(s, v):
    e = (s - s.detach().max(-1, keepdim=True).values).exp()
    return (e / e.sum(-1, keepdim=True)) @ v


def without_gradients(s, v):
    with torch.no_grad():
        largest = s.amax(-1, keepdim=True)
    e = torch.exp(s - largest)
    return (e / e.sum(-1, keepdim=True)) @ v


def logarithm(s, v):
    largest = s.amax(-1, keepdim=True).detach()
    return (s - ((s - largest).exp().sum(-1, keepdim=True).log() + largest)).exp() @ v


def one_more(s, v):
    e = (s - s.amax(-1, keepdim=True).detach()).exp()
    return e @ v / (1 + e.sum(-1, keepdim=True))


def scaled_by_detached(s, v):
    return (s / (1 + s.detach().abs())).softmax(-1) @ v


def unnormalised(s, v):
    return (s - s.amax(-1, keepdim=True).detach()).exp() @ v


def whole(s):
    return s


def causal(s):
    return s.masked_fill(torch.ones(s.shape[-2:], dtype=torch.bool, device=s.device).triu(1), -math.inf)


def gradients(weigh, mask, scale):
    """(found, exact) of a compiled attention; `detach` counts in both."""

    def attend(q, k, v):
        return weigh(mask(q @ k.mT * scale / 4), v)

    torch.manual_seed(0)
    torch._dynamo.reset()
    given = [torch.randn(2, 2, 40, 16, dtype=torch.float64).requires_grad_() for _ in range(3)]
    result = torch.compile(attend, backend=onepass_backend, options=OPTIONS)(*given)
    cotangent = torch.randn_like(result)
    return [torch.autograd.grad(r, given, cotangent) for r in (result, attend(*given))]


def hold(found, exact, scale):
    for one, other in zip(found, exact, strict=True):
        assert torch.isfinite(other).all() and other.count_nonzero() > 100
        torch.testing.assert_close(one, other, rtol=1e-7, atol=1e-11 * scale**2)


@pytest.mark.parametrize("scale", [1.0, 300.0])
@pytest.mark.parametrize("mask", [whole, causal])
@pytest.mark.parametrize("weigh", [largest_detached, of_detached_scores, without_gradients, logarithm])
def test_a_shift_that_cancels_leaves_derived_gradients(weigh, mask, scale):
    hold(*gradients(weigh, mask, scale), scale)
    assert [region.backward[:7] for region in reports()[-1].regions] == ["derived"]


@pytest.mark.parametrize("scale", [1.0, 300.0])
@pytest.mark.parametrize("weigh", [one_more, scaled_by_detached, unnormalised])
def test_what_the_result_depends_on_is_passed_by(weigh, scale):
    hold(*gradients(weigh, whole, scale), scale)
    assert [region.backward[:7] for region in reports()[-1].regions] == ["derived"]


@pytest.mark.parametrize("weigh", [one_more, unnormalised])
def test_an_exponential_that_could_overflow_apart_from_its_shift_is_left_and_named(weigh):
    hold(*gradients(weigh, causal, 1.0), 1.0)
    (region,) = reports()[-1].regions
    assert "an exponential could overflow" in region.backward and "(exp at " in region.backward
