"""A gate whose largest scores choose the keys, and that is compared beside (MoBA, NSA), was taken into the region that
needs its choice, which then was refused whole: the gate is an input now, and the attention behind it is fused."""

import math

import pytest
import torch

import onepass
from onepass.api.backend import onepass_backend

BLOCK = 4


def by_threshold(q, k, v):
    gate = q @ k.mT[..., ::BLOCK]
    chosen = (gate >= gate.topk(2, -1)[0][..., -1:]).repeat_interleave(BLOCK, -1)
    return torch.softmax((q @ k.mT).masked_fill(~chosen, -math.inf), -1) @ v


def mixture_of_blocks(q, k, v):
    """MoBA: mean keys of blocks, none of the future, one's own always."""
    places = torch.arange(q.shape[-2])
    blocks, own = torch.arange(k.shape[-2] // BLOCK), places[:, None] // BLOCK
    gate = torch.einsum("bhid,bhnd->bhin", q, k.unflatten(2, (-1, BLOCK)).mean(3))
    gate = gate.masked_fill(blocks > own, -math.inf).masked_fill(blocks == own, math.inf)
    chosen = torch.zeros(gate.shape, dtype=torch.bool).scatter(-1, gate.topk(2, -1).indices, True)
    chosen = (chosen & (gate != -math.inf)).repeat_interleave(BLOCK, -1) & (places <= places[:, None])
    return torch.softmax((q @ k.mT * 0.3).masked_fill(~chosen, -math.inf), -1) @ v


def two_branches(q, k, v):
    """NSA: compressed keys, whose weights choose the blocks of the other branch."""
    keys, values = (x.unflatten(2, (-1, BLOCK)).mean(3) for x in (k, v))
    weights = torch.softmax(q @ keys.mT * 0.3, -1)
    compressed, importance = weights @ values, weights.mean(1, keepdim=True)
    chosen = torch.zeros(importance.shape, dtype=torch.bool).scatter(-1, importance.topk(2, -1).indices, True)
    chosen = (chosen & (importance > 1e-10)).repeat_interleave(BLOCK, -1)
    return compressed + torch.softmax((q @ k.mT * 0.3).masked_fill(~chosen, -math.inf), -1) @ v


def by_own_threshold(q, k, v):
    """The scores themselves are sorted: nothing is left to be fused."""
    score = q @ k.mT
    return torch.softmax(score.masked_fill(score < score.topk(4, -1).values[..., -1:], -math.inf), -1) @ v


def run(function, inputs, dynamic):
    torch._dynamo.reset()
    options = {"inner": "eager", "executor": "tiled", "strict": True, "libraries": False}
    return torch.compile(function, backend=onepass_backend, options=options, dynamic=dynamic)(*inputs)


@pytest.mark.sampled(1)
@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize(
    "function, regions", [(by_threshold, 1), (mixture_of_blocks, 1), (two_branches, 2), (by_own_threshold, 0)]
)
def test_what_is_behind_a_gate_is_fused(function, regions, dynamic, fresh):
    torch.manual_seed(0)
    inputs = torch.randn(3, 2, 2, 16, 8).unbind(0)
    result, exact = run(function, inputs, dynamic), function(*(x.double() for x in inputs))
    assert (result - exact).abs().max() < 2e-6
    (report,) = onepass.reports()
    assert len(report.regions) == regions and bool(report.refusals) == (not regions)


@pytest.mark.sampled(1)
@pytest.mark.parametrize("function", [by_threshold, mixture_of_blocks, two_branches])
def test_gradients_are_those_of_eager(function):
    torch.manual_seed(0)
    given = torch.randn(3, 2, 2, 16, 8)
    mine, eager = ([x.clone().requires_grad_() for x in given] for _ in range(2))
    run(function, mine, False).sin().sum().backward()
    function(*eager).sin().sum().backward()
    for x, y in zip(mine, eager, strict=True):
        torch.testing.assert_close(x.grad, y.grad, atol=1e-5, rtol=1e-4)
