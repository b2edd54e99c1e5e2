"""Triton's rsqrt of a float64 is the device's first guess, of float32's precision: gradients of norms were off by 1e-9.
"""

import pytest
import torch

from onepass.api.backend import onepass_backend
from onepass.egraph.terms.ops import load, rsqrt
from onepass.egraph.terms.term import Tensor
from onepass.lowering.codegen.dialect import TRITON
from onepass.lowering.codegen.ops import operation

pytestmark = pytest.mark.usefixtures("fresh")


@pytest.mark.parametrize("dtype, text", [("float64", "1.0 / tl.sqrt(x)"), ("float32", "tl.rsqrt(x)")])
def test_what_is_emitted(dtype, text):
    node = rsqrt(load(Tensor("x", dtype, ())))
    assert operation(node, ["x"], TRITON) == text


def normed(q, k, v):
    q = q * torch.rsqrt(q.square().mean(-1, keepdim=True) + 1e-6)
    return torch.softmax(q @ k.mT, -1) @ v


@pytest.mark.sampled(1)
@pytest.mark.parametrize("executor", ["tiled", "triton"])
def test_results_and_gradients_are_right(executor):
    torch.manual_seed(0)
    given = [torch.randn(2, 3, n, 8, dtype=torch.float64, requires_grad=True) for n in (20, 30, 30)]
    options = {"inner": "eager", "strict": True, "executor": executor, "fuse_loads": "always"}
    result = torch.compile(normed, backend=onepass_backend, dynamic=False, options=options)(*given)
    right = normed(*given)
    cotangent = torch.randn_like(right)
    torch.testing.assert_close(result, right)
    for mine, own in zip(*(torch.autograd.grad(x, given, cotangent) for x in (result, right)), strict=True):
        torch.testing.assert_close(mine, own)
