"""Attention inside of a library call was taken for one without gradients: the report named no derived backward.

A call is opened by a trace below autograd, where no value requires gradients. Found by `tests.fuzz --gradients --seed
1000`.
"""

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import onepass

pytestmark = pytest.mark.usefixtures("fresh")
ATTENTION = nn.MultiheadAttention(32, 2, batch_first=True)


def module(x):
    return ATTENTION(x, x, x, need_weights=False)[0]


def function(x):
    w, bias = ATTENTION.in_proj_weight, ATTENTION.in_proj_bias
    return F.multi_head_attention_forward(x, x, x, 32, 2, w, bias, None, None, False, 0.0, w[:32], None)[0]


def sdpa(x):
    return F.scaled_dot_product_attention(x, x.flip(-1), x, is_causal=True)


@pytest.mark.sampled(1)
@pytest.mark.parametrize("called", [module, function, sdpa])
def test_their_backward_is_derived(called):
    x = torch.randn(2, 40, 32, requires_grad=True)
    compiled = torch.compile(called, backend="onepass", options={"inner": "eager", "strict": True})
    result = compiled(x)
    cotangent = torch.randn_like(result)
    (found,) = torch.autograd.grad(result, x, cotangent)
    (region,) = onepass.reports()[-1].regions
    assert region.backward.startswith("derived")
    ATTENTION.double()
    exact = x.detach().double().requires_grad_()
    (right,) = torch.autograd.grad(called(exact), exact, cotangent.double())
    ATTENTION.float()
    torch.testing.assert_close(found.double(), right, atol=1e-5, rtol=0)


def test_a_call_without_gradients_has_none():
    compiled = torch.compile(module, backend="onepass", options={"inner": "eager", "strict": True})
    with torch.no_grad():
        compiled(torch.randn(2, 40, 32))
    assert not any(region.backward.startswith("derived") for region in onepass.reports()[-1].regions)
