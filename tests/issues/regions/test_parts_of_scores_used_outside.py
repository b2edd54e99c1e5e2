"""Scores cut by chunk, one part of which is also returned: the region gave a list, and the whole graph stayed."""

import pytest
import torch

import onepass
from onepass.api.backend import onepass_backend

pytestmark = pytest.mark.usefixtures("fresh")
STRICT = {"inner": "eager", "executor": "tiled", "strict": True}


def scores_in_parts(q, k, v):
    one, other = (q @ k.mT).chunk(2, -2)
    return torch.softmax(one, -1) @ v, other


def weights_in_parts(q, k, v):
    one, *rest = torch.softmax(q @ k.mT, -1).split([1, 3, 4], -2)
    return one @ v, *rest


def parts_in_pointwise_code(q, k, v):
    one, other = (q @ k.mT).unflatten(-2, (2, 4)).unbind(-2)[0].chunk(2, -2)
    return torch.softmax(one, -1) @ v, other.exp()


@pytest.mark.sampled(2)
@pytest.mark.parametrize("function", [scores_in_parts, weights_in_parts, parts_in_pointwise_code])
@pytest.mark.parametrize("gradients", [False, True])
def test_each_part_is_a_result(function, gradients):
    tensors = [torch.randn(1, 2, 8, 16).requires_grad_(gradients) for _ in range(3)]
    if not gradients:
        tensors[2][..., -1] = -1e30
        tensors[0][..., 2:4, :] = 1e4
    fast = torch.compile(function, backend=onepass_backend, options=STRICT)
    found = fast(*tensors)
    exact = function(*(t.double() for t in tensors))
    for mine, theirs in zip(found, exact, strict=True):
        torch.testing.assert_close(mine.double(), theirs, rtol=1e-5, atol=1e-5)
    report = onepass.reports()[-1]
    assert len(report.regions) == 1 and not report.refusals
    if gradients:
        seeds = [torch.randn_like(t) for t in found]
        mine = torch.autograd.grad(found, tensors, seeds)
        theirs = torch.autograd.grad(exact, tensors, [s.double() for s in seeds])
        for one, other in zip(mine, theirs, strict=True):
            torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-5)
