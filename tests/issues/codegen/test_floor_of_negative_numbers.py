"""Quotients and remainders of i - j by a power of two are single bit operations, and right below zero too."""

import pytest
import torch

from onepass.egraph.terms.ops import cast, iota, load, sum_over
from onepass.egraph.terms.term import Dim, Tensor
from onepass.lowering.plan.kernel_config import TritonConfig
from onepass.lowering.planning.planner import build_plan
from onepass.lowering.triton.kernel import emit
from tests.support.triton_runs import run_triton

I, J = Dim("i", 24), Dim("j", 70)
DIVISORS = 1, 4, 6, 64


def plan_of(divisor: int):
    far = iota(I) - iota(J)
    whole = cast(far // divisor, "float32") + cast(far % divisor, "float32") * 0.001
    x = load(Tensor("x", "float32", (24, 70)), iota(I), iota(J))
    return build_plan(sum_over(J, whole * x), Tensor("out", "float32", (24,)), (I,))


@pytest.mark.parametrize("divisor", DIVISORS)
def test_bits_do_where_they_can(divisor):
    plan = plan_of(divisor)
    text = emit(plan.kernels[0], plan).text
    assert ("floor_modulo(" in text) == (divisor == 6)


@pytest.mark.parametrize("divisor", DIVISORS)
def test_it_computes_the_floor(divisor):
    x = torch.randn(24, 70, generator=torch.Generator().manual_seed(divisor))
    far = torch.arange(24)[:, None] - torch.arange(70)
    exact = ((far // divisor + far % divisor * 0.001).double() * x).sum(1)
    x = x.cuda() if torch.cuda.is_available() else x
    found = run_triton(plan_of(divisor), {"x": x}, config=TritonConfig(16, 32, 4, 1))
    torch.testing.assert_close(found.cpu().double(), exact, atol=1e-4, rtol=1e-5)
