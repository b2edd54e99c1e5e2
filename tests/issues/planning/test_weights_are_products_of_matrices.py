"""The kernel that stores weights beside a result took one row a program: a sum for each score, no product of matrices.

Rows and keys are both long there and neither is summed: programs take tiles of both.
"""

import math
import os

import pytest
import torch

from onepass.compiler.optimize import optimize_all
from onepass.graph.trace import program_of
from onepass.lowering.tiled.executor import tiled_results
from onepass.lowering.triton.kernel import emit
from onepass.lowering.triton.launch import Launcher
from onepass.translate.translate import translate


def plain(q, k, v):
    weights = torch.softmax(q @ k.mT / math.sqrt(q.shape[-1]), -1)
    return weights @ v, weights


def causal(q, k, v):
    scores = q @ k.mT / math.sqrt(q.shape[-1])
    past = torch.ones_like(scores, dtype=torch.bool).tril()
    weights = torch.softmax(scores.masked_fill(~past, -math.inf), -1)
    return weights @ v, weights


def planned(function, rows, columns, kind=torch.float32):
    torch.manual_seed(0)
    inputs = [torch.randn(2, 3, n, 32).to(kind) for n in (rows, columns, columns)]
    return optimize_all(translate(program_of(function, *inputs)).results).plan, inputs


@pytest.mark.parametrize("function", [plain, causal])
def test_rows_and_keys_are_tiled(function):
    plan, _ = planned(function, 300, 500)
    last = plan.kernels[-1]
    assert not last.loops and {last.rows.size, *(d.size for d in last.columns)} == {300, 500}
    text = emit(last, plan).text
    assert "tl.dot(" in text and "tl.sum(" not in text


def test_one_row_has_no_tiles_of_rows():
    plan, _ = planned(plain, 1, 500)
    assert all(not kernel.columns for kernel in plan.kernels)


@pytest.mark.sampled(1)
@pytest.mark.parametrize("executor", ["tiled", "triton"])
@pytest.mark.parametrize("function", [plain, causal])
@pytest.mark.parametrize("rows, columns, kind", [(70, 150, torch.float32), (33, 65, torch.bfloat16)])
def test_weights_beside_the_output(function, rows, columns, kind, executor):
    if executor == "triton" and os.environ.get("TRITON_INTERPRET") != "1":
        pytest.skip("needs Triton's interpreter")
    plan, inputs = planned(function, rows, columns, kind)
    named = {t.name: x for t, x in zip(plan.inputs, inputs, strict=True)}
    found = tiled_results(plan, named) if executor == "tiled" else Launcher(plan).results(named)
    for result, exact in zip(found, function(*(x.double() for x in inputs)), strict=True):
        assert (result.double() - exact).abs().max() <= 2.5 * torch.finfo(kind).eps * exact.abs().max() + 2e-6
