"""Where a mask provably keeps nothing, scores are literals, and the gradients of the values were 0.

exp(a - max a) was taken apart to exp(a) / exp(max a), and for a of -3.4e38 the first was folded to 0: the quotient was
0, where it is 1. An exponential of a literal is no longer taken apart. Found by `tests.fuzz --gradients --seed 6000`.
"""

import pytest
import torch

import onepass
from onepass.api.backend import onepass_backend


def nothing_kept(q, k, v):
    scores = q @ k.mT
    keep = torch.arange(scores.shape[-1], device=q.device) >= scores.shape[-1]
    scores = scores.masked_fill(~keep, torch.finfo(scores.dtype).min)
    return (torch.softmax(scores, -1) - 0.3 * torch.softmax(scores * 0.5, -1)) @ v


def inputs(dtype=torch.float32):
    torch.manual_seed(0)
    return [torch.randn(2, 3, n, 8, dtype=dtype) for n in (5, 6, 6)]


def test_no_exponential_of_a_literal_is_taken_apart():
    q, k, v = inputs()
    (region,) = onepass.explain(nothing_kept, q, k, v.requires_grad_(), gradients=True).regions
    ((name, form),) = region.gradients.forms
    assert name == "v" and "exp(-3.40282347e+38 - " in form
    assert "exponential_of_shift" not in {step.rule for step in region.gradients.rules}


@pytest.mark.sampled(1)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_the_gradient_is_eagers(dtype):
    q, k, v = inputs(dtype)
    v.requires_grad_()
    run = torch.compile(nothing_kept, backend=onepass_backend, options={"strict": True, "inner": "eager"})
    weights = torch.randn(2, 3, 5, 8, dtype=dtype)
    found, right = (torch.autograd.grad((f(q, k, v) * weights).sum(), v)[0] for f in (run, nothing_kept))
    assert right.abs().max() > 0.1
    torch.testing.assert_close(found, right, rtol=1e-5, atol=1e-6)
