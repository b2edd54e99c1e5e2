"""Weights that are compared were exp(s) / Σ_j exp(s) in a value saved for the backward: NaN for scores beyond 88.

The comparison was false then, and gradients were off by their own size. Such weights are exp(s - L) now.
"""

import pytest
import torch

import onepass
from onepass import onepass_backend

pytestmark = pytest.mark.usefixtures("fresh")


def of_differences(q, k, v):
    scores = q @ k.mT
    weights = scores.softmax(-1) - 0.3 * (0.5 * scores).softmax(-1)
    return (weights * (weights > 0.01)) @ v


def masked(q, k):
    """Scores of which rows from the 16th on keep none."""
    i, j = torch.arange(q.shape[-2])[:, None], torch.arange(k.shape[-2])
    far_below = torch.zeros(i.shape[0], j.shape[0]).masked_fill(i // 4 != j // 4, torch.finfo(torch.float32).min)
    return q @ k.mT + far_below


def of_rows_without_keys(q, k, v):
    i, j = torch.arange(q.shape[-2])[:, None], torch.arange(k.shape[-2])
    scores = q @ k.mT + torch.zeros(i.shape[0], j.shape[0]).masked_fill(
        i // 4 != j // 4, torch.finfo(torch.float32).min
    )
    weights = scores.softmax(-1) - 0.3 * (0.5 * scores).softmax(-1)
    return (weights * (weights > 0.01)) @ v


def of_logarithms(q, k, v):
    i, j = torch.arange(q.shape[-2])[:, None], torch.arange(k.shape[-2])
    scores = q @ k.mT + torch.zeros(i.shape[0], j.shape[0]).masked_fill(
        i // 4 != j // 4, torch.finfo(torch.float32).min
    )
    return (scores.softmax(-1) * (0.1 * scores).log_softmax(-1)) @ v


def inputs(scale: float) -> list[torch.Tensor]:
    torch.manual_seed(0)
    q, k, v = torch.randn(1, 2, 40, 8), torch.randn(1, 2, 16, 8), torch.randn(1, 2, 16, 8)
    return [x.requires_grad_() for x in (scale * q, k, v)]


def test_saved_values_hold_exponentials_of_bounded_numbers_alone():
    (region,) = onepass.explain(of_differences, *inputs(1.0), gradients=True).regions
    saved = [kept.form for kept in region.gradients.saved if kept.name.startswith("mean")]
    assert saved and not any("exp(t0)" in form or "exp(t0 · 0.5)" in form for form in saved), saved


@pytest.mark.sampled(2)
@pytest.mark.parametrize("function", [of_differences, of_rows_without_keys])
@pytest.mark.parametrize("scale", [1.0, 40.0])
def test_gradients_are_those_of_the_weights_that_count(function, scale):
    found = []
    for call in (function, torch.compile(function, backend=onepass_backend)):
        given = inputs(scale)
        call(*given).square().sum().backward()
        found.append([x.grad for x in given])
    for eager, mine in zip(*found, strict=True):
        assert (eager - mine).abs().max() < 1e-4 * eager.abs().max()


def test_a_row_without_keys_keeps_the_logarithm_that_its_mask_would_absorb():
    """(s - m) - ((m + l) - m), for m of a mask of -1e38, was s - m: the gradient of the values was off by half."""
    found = []
    for call in (of_logarithms, torch.compile(of_logarithms, backend=onepass_backend)):
        q, k, v = inputs(1.0)
        call(q.detach(), k.detach(), v).square().sum().backward()
        found.append(v.grad)
    assert (found[0] - found[1]).abs().max() < 1e-4 * found[0].abs().max()
