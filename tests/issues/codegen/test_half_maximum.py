"""A maximum over a bfloat16 tensor was folded in bfloat16, which Triton's interpreter compares as raw bits."""

import torch

from onepass.egraph.terms.ops import iota, load, max_over
from onepass.egraph.terms.term import Dim, Tensor
from onepass.lowering.plan.kernel_config import TritonConfig
from onepass.lowering.planning.planner import build_plan
from onepass.lowering.triton.kernel import emit
from tests.support.triton_runs import run_triton

I, J = Dim("i", 8), Dim("j", 300)
PLAN = build_plan(
    max_over(J, load(Tensor("x", "bfloat16", (8, 300)), iota(I), iota(J))), Tensor("out", "bfloat16", (8,)), (I,)
)


def test_the_tile_is_widened_before_it_is_folded():
    assert ".to(tl.float32)" in emit(PLAN.kernels[0], PLAN).text


def test_negative_values_are_ordered_right():
    x = -torch.arange(1, 2401).view(8, 300).to(torch.bfloat16)
    x = x.cuda() if torch.cuda.is_available() else x
    assert torch.equal(run_triton(PLAN, {"x": x}, config=TritonConfig(16, 16, 4, 1)).cpu(), x.amax(1).cpu())
