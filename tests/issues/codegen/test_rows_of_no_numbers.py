"""A row whose scores all are NaN has no largest score: a maximum leaves NaN out, and the row seemed to have no keys.
Its logarithm was -inf, and where its loop was shared out a part of NaN was lost."""

import math
import os

import pytest
import torch
import torch.nn.functional as F

from onepass.compiler.optimize import optimize_all
from onepass.graph.trace import program_of
from onepass.lowering.plan.kernel_config import TritonConfig
from onepass.lowering.triton.kernel import emit
from onepass.lowering.triton.launch import Launcher
from onepass.translate.translate import translate

PROGRAMS = {
    "logarithm": lambda x, w: torch.logsumexp(x @ w.mT, -1),
    "both": lambda x, w: (torch.logsumexp(x @ w.mT, -1), (x @ w.mT).softmax(-1) @ w),
    "masked": lambda x, w: F.scaled_dot_product_attention(x, w, w, attn_mask=torch.arange(w.shape[-2]) < 90),
    "largest": lambda x, w: (x @ w.mT).amax(-1),
    "entropy": lambda x, w: F.cross_entropy((x @ w.mT)[0], torch.arange(x.shape[-2]), reduction="none"),
}


def inputs():
    torch.manual_seed(0)
    x, w = torch.randn(1, 40, 16), torch.randn(1, 100, 16)
    x[0, 3], x[0, 5, 2], x[0, 7], x[0, 9, 0] = math.nan, math.inf, math.inf, math.nan
    return x, w


def planned(function, *given):
    captured = translate(program_of(function, *given))
    return optimize_all(captured.results).plan, dict(zip([t.name for t in captured.inputs], given, strict=True))


@pytest.mark.skipif(os.environ.get("TRITON_INTERPRET") != "1", reason="needs Triton's interpreter")
@pytest.mark.parametrize("chunks", [0, 3])
@pytest.mark.parametrize("name", PROGRAMS)
def test_it_is_nan(name, chunks):
    function, given = PROGRAMS[name], inputs()
    plan, values = planned(function, *given)
    found = Launcher(plan, TritonConfig(16, 16, 4, 1, chunks)).results(values)
    exact = function(*(x.double() for x in given))
    for mine, other in zip(found, exact if isinstance(exact, tuple) else (exact,), strict=True):
        torch.testing.assert_close(mine.double(), other, rtol=1e-4, atol=1e-4, equal_nan=True)


@pytest.mark.skipif(os.environ.get("TRITON_INTERPRET") != "1", reason="needs Triton's interpreter")
@pytest.mark.parametrize("chunks", [0, 3])
def test_a_part_of_no_numbers_is_not_lost(chunks):
    """The keys of one part are NaN, and those of the others are numbers."""
    x, w = torch.randn(1, 40, 16), torch.randn(1, 96, 16)
    w[0, 32:64] = math.nan
    plan, values = planned(PROGRAMS["both"], x, w)
    found = Launcher(plan, TritonConfig(16, 16, 4, 1, chunks)).results(values)
    assert all(bool(result.isnan().all()) for result in found)


def test_what_is_emitted():
    plan, _ = planned(PROGRAMS["logarithm"], *inputs())
    assert "!= rescaled0_0)" in emit(plan.kernels[0], plan).text
