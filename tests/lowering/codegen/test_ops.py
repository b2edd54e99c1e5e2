"""Text that depends on the machine: one instruction for tanh where NVIDIA runs it and all numbers are of bfloat16."""

import pytest
import torch

from onepass.compiler.optimize import optimize_all
from onepass.graph.trace import program_of
from onepass.lowering.plan.launch_facts import INTERPRETER, Facts
from onepass.lowering.triton.kernel import emit
from onepass.translate.translate import translate


def capped(q, k, v):
    return torch.softmax(30 * torch.tanh(q @ k.mT / 30), -1) @ v


@pytest.mark.sampled(4)
@pytest.mark.parametrize("dtype, machine, coarse", [
    (torch.bfloat16, "sm_90", True), (torch.bfloat16, "sm_80", True),
    (torch.float16, "sm_90", False), (torch.float32, "sm_90", False),
    (torch.bfloat16, "gfx942", False), (torch.bfloat16, INTERPRETER, False),
    (torch.bfloat16, "", False),
])  # fmt: skip
def test_tanh_is_one_instruction_where_that_is_within_a_rounding(dtype, machine, coarse):
    inputs = [torch.randn(2, 40, 32).to(dtype) for _ in range(3)]
    plan = optimize_all(translate(program_of(capped, *inputs)).results).plan
    text = emit(plan.kernels[0], plan, Facts(machine=machine)).text
    assert ("coarse_tangent(" in text, "hyperbolic_tangent(" in text) == (coarse, not coarse)
