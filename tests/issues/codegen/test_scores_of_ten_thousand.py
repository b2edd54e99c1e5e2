"""In float32, a score of -1e4 where a mask keeps nothing: on a GPU a result was off by 2e-5, where eager's is exact.

The compiler rounded the product of the score and log2(e) in the divisor's weights and not in those of a sum beside it.
Where such a literal is among scores without halves, their exponent is the difference first, which is exact.
"""

import pytest
import torch

from onepass.api.backend import onepass_backend
from onepass.compiler.optimize import optimize_all
from onepass.graph.trace import program_of
from onepass.lowering.triton.kernel import emit
from onepass.translate.translate import translate

pytestmark = pytest.mark.usefixtures("fresh")


def hidden(q, k, v, keep):
    return torch.softmax((q @ k.mT).masked_fill(~keep, -1e4), -1) @ v


def inputs(dtype):
    torch.manual_seed(0)
    q, k, v = (torch.randn(2, n, 16, dtype=dtype) for n in (30, 40, 40))
    keep = torch.rand(30, 40) < 0.5
    keep[3] = False
    return q, k, v, keep


@pytest.mark.parametrize("dtype, exact", [(torch.float32, True), (torch.float64, True), (torch.bfloat16, False)])
def test_what_is_emitted(dtype, exact):
    plan = optimize_all(translate(program_of(hidden, *inputs(dtype))).results).plan
    (kernel,) = plan.kernels
    weights = [line for line in emit(kernel, plan).text.splitlines() if "weight = tl.exp2(" in line]
    assert weights and all(("[:, None]) * 1.4426950408889634" in line) == exact for line in weights)


@pytest.mark.parametrize("executor", ["tiled", "triton"])
def test_a_row_that_keeps_nothing_is_a_mean(executor):
    q, k, v, keep = inputs(torch.float32)
    options = {"strict": True, "inner": "eager", "executor": executor, "libraries": False}
    found = torch.compile(hidden, backend=onepass_backend, options=options)(q, k, v, keep)
    torch.testing.assert_close(found[:, 3], v.double().mean(1).float(), rtol=0, atol=3e-7)
