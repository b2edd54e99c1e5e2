"""GPT-2's layers flatten batch and rows; its attention then read rows b · s + i, which no tensor map ends at s.

The view that gives the axes back stays in front of the region: it copies nothing and says how long each axis is.
"""

import math

import pytest
import torch

import onepass
from onepass.api.backend import onepass_backend


def _attention(joint, heads, width):
    q, k, v = (x.unflatten(-1, (heads, width)).transpose(1, 2) for x in joint.split(heads * width, -1))
    score = (q @ k.mT / math.sqrt(width)).masked_fill(torch.ones(q.shape[2], k.shape[2]).tril() == 0, -math.inf)
    return torch.softmax(score, -1) @ v


def _joint(x, weight):
    """As the library's Conv1D."""
    return _attention(torch.mm(x.view(-1, x.shape[-1]), weight).view(*x.shape[:2], weight.shape[1]), 2, 8)


def _reshaped(x, weight):
    return _attention(torch.mm(x.reshape(-1, x.shape[-1]), weight).reshape(x.shape[0], -1, weight.shape[1]), 2, 8)


def _given(x, weight, rows):
    """The flattened tensor is an input, and is written into behind the view."""
    joint = rows.view(x.shape[0], x.shape[1], 48)
    rows.mul_(0.5)
    return _attention(joint, 2, 8)


def _inputs(function, length=13):
    torch.manual_seed(0)
    inputs = [torch.randn(3, length, 16), torch.randn(16, 48)]
    return inputs + ([torch.randn(3 * length, 48)] if function is _given else [])


@pytest.mark.sampled(1)
@pytest.mark.parametrize("function", [_joint, _reshaped, _given])
def test_the_kernel_reads_axes(function):
    report = onepass.explain(function, *_inputs(function))
    (region,) = report.regions
    assert not report.refusals and "b, i, d" in region.captured and "13" not in region.captured


@pytest.mark.sampled(1)
@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize("function", [_joint, _reshaped, _given])
def test_it_computes_the_same(function, dynamic):
    torch._dynamo.reset()
    options = {"strict": True, "inner": "eager"}
    fused = torch.compile(function, backend=onepass_backend, options=options, dynamic=dynamic)
    for length in (13, 7):
        mine, eager = _inputs(function, length), _inputs(function, length)
        torch.testing.assert_close(fused(*mine), function(*eager))
        torch.testing.assert_close(mine, eager)
