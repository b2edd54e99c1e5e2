"""Rows hidden by finite fills alone were NaN in kernels, or nothing in a second loop, where eager makes them uniform.

A fill times log2(e) overflowed, or was rounded by more than a weight can hold; what bounded fills bounded them in the
scale and not in the scores that a second loop computes again. Now such scores are weighed by their differences.
"""

import os

import pytest
import torch

from onepass.compiler.optimize import optimize
from onepass.graph.trace import program_of
from onepass.lowering.tiled.executor import run_tiled
from onepass.lowering.triton.kernel import emit
from onepass.translate.translate import translate
from tests.support.triton_runs import run_triton


def chosen(q, k, v, keep, bias, fill):
    return torch.softmax(torch.where(keep, q @ k.mT / 4, fill) + bias, -1) @ v


def added(q, k, v, keep, bias, fill):
    hidden = torch.zeros_like(keep, dtype=q.dtype).masked_fill(~keep, fill)
    return torch.softmax(q @ k.mT / 4 + hidden + bias, -1) @ v


def multiplied(q, k, v, keep, bias, fill):
    return torch.softmax(q @ k.mT / 4 + (1 - keep.to(q.dtype)) * fill + bias, -1) @ v


def read_twice(q, k, v, keep, bias, fill):
    weights = torch.softmax(torch.where(keep, q @ k.mT / 4, fill) + bias, -1)
    return (weights * (weights > 0.01)) @ v


def moderate(q, k, v, keep, bias, fill):
    return torch.softmax(torch.where(keep, q @ k.mT / 4, -torch.inf), -1) @ v


HIDING = [chosen, added, multiplied, read_twice]


def given(dtype) -> dict:
    torch.manual_seed(0)
    q, k, v = (torch.randn(2, n, 16).to(dtype) for n in (40, 50, 50))
    keep, bias = torch.rand(40, 50) < 0.5, torch.zeros(40, 50, dtype=dtype)
    keep[3], bias[5], bias[6, 3] = False, torch.finfo(dtype).min, -torch.inf
    return {"q": q, "k": k, "v": v, "keep": keep, "bias": bias}


def planned(function, tensors, fill):
    captured = translate(program_of(lambda q, k, v, keep, bias: function(q, k, v, keep, bias, fill), *tensors.values()))
    return optimize(captured.term, captured.output, captured.order).plan


@pytest.mark.parametrize("function", [*HIDING, moderate])
def test_a_factor_is_multiplied_into_moderate_scores_only(function):
    plan = planned(function, given(torch.float32), -1e12)
    text = emit(plan.kernels[0], plan).text
    assert ("- shift[:, None]) * 1.44" in text) != (function is moderate)


@pytest.mark.sampled(2)
@pytest.mark.parametrize("fill", [-1e9, -1e12, torch.finfo(torch.float32).min])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("function", HIDING)
@pytest.mark.parametrize("run", [run_tiled, run_triton])
def test_such_rows_are_uniform_as_in_eager(function, dtype, fill, run):
    if run is run_triton and os.environ.get("TRITON_INTERPRET") != "1":
        pytest.skip("needs Triton's interpreter")
    tensors, fill = given(dtype), max(fill, torch.finfo(dtype).min)
    exact = function(*(t.float() if t.is_floating_point() else t for t in tensors.values()), fill)
    result = run(planned(function, tensors, fill), tensors, {})
    error = 3e-2 if dtype == torch.bfloat16 else 2e-5
    torch.testing.assert_close(result.float(), exact, atol=error, rtol=error)
