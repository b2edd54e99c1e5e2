"""The number of chunks of a product was a literal in the text, so ptxas wrote the loop over chunks out.

A cross entropy of 1024 numbers a row has 16 chunks. ptxas took 6 s for its kernel, which kept 66 registers in memory.
With the dim's size as an argument it takes 0.3 s, and the kernel keeps 16.
"""

import pytest
import torch

from onepass.compiler.optimize import optimize_all
from onepass.graph.trace import program_of
from onepass.lowering.plan.kernel_config import TritonConfig
from onepass.lowering.plan.launch_facts import Facts
from onepass.lowering.triton.kernel import emit
from onepass.translate.translate import translate
from tests.support.triton_runs import run_triton

CONFIG = TritonConfig(64, 128, 4, 1)


def logarithm(x, w):
    return (x @ w.mT).logsumexp(-1)


def plan_of(*given):
    return optimize_all(translate(program_of(logarithm, *given)).results).plan


@pytest.mark.parametrize("width", [512, 600])
def test_the_loop_over_chunks_ends_at_an_argument(width):
    plan = plan_of(torch.empty(64, width), torch.empty(640, width))
    source = emit(plan.kernels[0], plan, Facts(frozenset()))
    (ends,) = [a.name for a in source.arguments if a.size == width]
    assert f"in tl.range(0, {ends}, 32):" in source.text
    assert f"'{ends}'" in source.text.split("do_not_specialize=")[1].split("]")[0]


@pytest.mark.parametrize("width", [512, 600])
@pytest.mark.parametrize("largest", [1.0, 1e4, float("inf")])
def test_and_what_is_computed_is_right(width, largest):
    torch.manual_seed(0)
    x, w = torch.randn(64, width), torch.randn(640, width)
    x[3, -1] = largest  # in the last chunk, which is not full at a width of 600
    plan = plan_of(x, w)
    found = run_triton(plan, {t.name: x if t.shape[0] == 64 else w for t in plan.inputs}, config=CONFIG)
    torch.testing.assert_close(found.double(), logarithm(x.double(), w.double()), rtol=1e-5, atol=1e-4)
