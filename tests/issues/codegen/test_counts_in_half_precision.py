"""A count of kept keys cast to bfloat16, one number for a program, kept its raw bits in Triton's interpreter."""

import os

import pytest
import torch

from onepass.api.backend import onepass_backend


def by_count(q, k, v, mask):
    count = mask.sum(-1).to(q.dtype).view(-1, 1, 1, 1)
    return torch.sigmoid(q @ k.mT / count) @ v


@pytest.mark.sampled(1)
@pytest.mark.skipif(os.environ.get("TRITON_INTERPRET") != "1", reason="needs Triton's interpreter")
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32], ids=str)
def test_it_computes_the_same(dtype):
    torch._dynamo.reset()
    torch.manual_seed(0)
    inputs = [*torch.randn(3, 2, 2, 16, 16).to(dtype).unbind(0), torch.ones(2, 16, dtype=torch.bool)]
    inputs[-1][0, 5:] = False
    options = {"inner": "eager", "executor": "triton", "libraries": False}
    with torch.no_grad():
        found = torch.compile(by_count, backend=onepass_backend, options=options)(*inputs)
        exact = by_count(*(x.double() if x.is_floating_point() else x for x in inputs[:3]), inputs[-1])
    assert (found.double() - exact).abs().max() < 0.1
