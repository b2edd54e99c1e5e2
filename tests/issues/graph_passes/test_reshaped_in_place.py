"""`x.unsqueeze_(1)` on a fused result (BigBird's first and last blocks): the model crashed.

Dynamo's graph has one value for the tensor before and after; a region took its strides from the later shape.
"""

import pytest
import torch

import onepass
from onepass.api.backend import onepass_backend


def attend(q, k, v):
    return torch.softmax(q @ k.mT / 4, -1) @ v


def result(q, k, v):
    first = attend(q, k, v)
    first.unsqueeze_(2)
    return torch.cat([first, first * 2], 2)


def twice(q, k, v):
    first = attend(q, k, v)
    other = first.transpose_(1, 2)
    first.unsqueeze_(0)
    return other + first.sum(), first


def operand(q, k, v):
    keys = k * 2
    keys.transpose_(-1, -2)
    return torch.softmax(q @ keys / 4, -1) @ v


def scores(q, k, v):
    s = q @ k.mT
    s.squeeze_(0)
    return torch.softmax(s, -1) @ v


def argument(q, k, v):
    out = attend(q, k, v)
    view = v.view(v.shape)
    view.unsqueeze_(0)
    return out, view


@pytest.mark.sampled(2)
@pytest.mark.parametrize("function", [result, twice, operand, scores, argument])
def test_shapes_are_eagers(function):
    torch.manual_seed(0)
    given = [torch.randn(1, 3, 20, 16) for _ in range(3)]
    run = torch.compile(function, backend=onepass_backend, options={"inner": "eager", "strict": True})
    ours, eager = run(*given), function(*given)
    torch.testing.assert_close(ours, eager, rtol=1e-4, atol=1e-5)
    assert onepass.reports()[-1].regions
