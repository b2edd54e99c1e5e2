"""Attention by torch.tensordot was not fused, and two of them were no product to the report."""

import pytest
import torch

import onepass
from onepass.api.backend import onepass_backend


def _plain(q, k, v):
    scores = torch.tensordot(q, k, dims=([1], [1]))
    return torch.tensordot(scores.softmax(-1), v, dims=1)


def _two_axes(q, k, v):
    q, k = (x.unflatten(1, (4, 4)) for x in (q, k))
    return torch.tensordot(torch.tensordot(q, k, dims=([1, -1], [1, 2])).softmax(-1), v, dims=([1], [0]))


def _batch_of_both(q, k, v):
    q, k, v = (x.unflatten(0, (3, -1)) for x in (q, k, v))
    return torch.tensordot(torch.tensordot(q, k, dims=([2], [2])).softmax(-1), v, dims=([2, 3], [0, 1]))


@pytest.mark.slow
@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize("function", [_plain, _two_axes, _batch_of_both], ids=lambda f: f.__name__)
def test_tensordot_is_a_product(function, dynamic):
    torch._dynamo.reset()
    options = {"inner": "eager", "executor": "tiled", "libraries": False, "strict": True}
    compiled = torch.compile(function, backend=onepass_backend, dynamic=dynamic, options=options)
    for length in (33, 48):
        torch.manual_seed(length)
        inputs = torch.randn(3, length, 16).unbind(0)
        assert len(onepass.explain(function, *inputs).regions) == 1
        assert torch.allclose(compiled(*inputs), function(*inputs), atol=1e-5)
