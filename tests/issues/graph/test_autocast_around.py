"""A model called under autocast had none of its attention fused: its trace did not show the casts that autocast makes.

What is compiled under autocast is traced where operations are dispatched, behind autocast, with its casts in it.
"""

import math

import pytest
import torch
import torch.nn.functional as F

import onepass
from onepass.api.backend import onepass_backend

pytestmark = pytest.mark.usefixtures("fresh")


def by_matmul(q, k, v):
    hidden = torch.ones(19, 19, dtype=torch.bool).triu(1)
    return torch.softmax((q @ k.mT / 4).masked_fill(hidden, -math.inf), -1) @ v


def by_einsum(q, k, v):
    return torch.einsum("bhij,bhjd->bhid", torch.einsum("bhid,bhjd->bhij", q / 4, k).softmax(-1), v)


def by_library(q, k, v):
    return F.scaled_dot_product_attention(q, k, v, is_causal=True)


@pytest.mark.sampled(1)
@pytest.mark.parametrize("attend", [by_matmul, by_einsum, by_library])
@pytest.mark.parametrize("outside", [torch.bfloat16, torch.float16])
def test_it_is_fused_and_as_near_as_eager(attend, outside):
    given = [torch.randn(2, 4, 19, 16, requires_grad=True) for _ in range(3)]
    run = torch.compile(attend, backend=onepass_backend, options={"inner": "eager"})
    with torch.autocast("cpu", outside):
        got, eager = run(*given), attend(*given)
    exact = attend(*(x.double() for x in given))
    assert got.dtype == eager.dtype == outside
    assert (got - exact).abs().max() <= 2 * (eager - exact).abs().max() + 1e-3
    (report,) = onepass.reports()
    assert not report.refusals and not report.failures and report.regions[0].passes[1] == 1
    wanted, found = (torch.autograd.grad(x.float().square().sum(), given) for x in (eager, got))
    for a, b in zip(wanted, found, strict=True):
        torch.testing.assert_close(a, b, rtol=5e-2, atol=5e-2)


def test_without_it_the_function_is_compiled_again_and_exact():
    given = [torch.randn(2, 4, 19, 16) for _ in range(3)]
    run = torch.compile(by_matmul, backend=onepass_backend, options={"inner": "eager"})
    with torch.autocast("cpu", torch.bfloat16):
        run(*given)
    torch.testing.assert_close(run(*given), by_matmul(*given), rtol=1e-5, atol=1e-5)
