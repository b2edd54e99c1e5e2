"""Float32 results of half-precision inputs had errors of half precision: computed factors were rounded for a product.

Weights times values that are half, read through a cast, were multiplied as halves whatever the result was stored in;
weights beyond the range of float16 became infinite. Where the program itself rounds, a kernel still may.
"""

import os

import pytest
import torch

from onepass.compiler.optimize import optimize_all
from onepass.egraph.terms.ops import cast, exp, iota, load, sum_over
from onepass.egraph.terms.term import Dim, Tensor
from onepass.graph.trace import program_of
from onepass.lowering.hopper.kernel_form import bind
from onepass.lowering.planning.planner import build_plan
from onepass.lowering.tiled.executor import tiled_results
from onepass.lowering.triton.kernel import emit
from onepass.lowering.triton.launch import Launcher
from onepass.translate.translate import translate

HALVES = (torch.bfloat16, torch.float16)
WHOLE = 'input_precision="ieee"'


def weighted(q, k, v):
    return torch.softmax(q.float() @ k.float().mT / 4, -1) @ v.float()


def squared(q, k, v):
    return (q.float() @ k.float().mT).square() @ v.float()


def turned(q, k, v):
    return torch.softmax((q.float() * q.float().cos()) @ k.float().mT, -1) @ v.float()


def centred(q, k, v):
    o = weighted(q, k, v)
    return o - o.mean(-1, keepdim=True), torch.logsumexp(q.float() @ k.float().mT, -1)


def stored_in_half(q, k, v):
    return weighted(q, k, v).to(v.dtype)


def rounded_before(q, k, v):
    return torch.softmax(q @ k.mT / 4, -1) @ v, torch.logsumexp((q @ k.mT).float(), -1)


def rounded_and_widened(q, k, v):
    return (torch.softmax(q @ k.mT / 4, -1) @ v).float()


def inputs(dtype, size=1.0):
    torch.manual_seed(0)
    return [torch.randn(2, n, 16).to(dtype) * size for n in (40, 70, 70)]


def planned(function, tensors):
    return optimize_all(translate(program_of(function, *tensors)).results).plan


def products(function, dtype=torch.bfloat16):
    """The lines of all kernels that multiply matrices."""
    plan = planned(function, inputs(dtype))
    return [line for k in plan.kernels for line in emit(k, plan).text.splitlines() if "tl.dot" in line]


@pytest.mark.parametrize("function", [weighted, squared, centred])
def test_only_what_is_computed_for_a_float32_result_is_multiplied_whole(function):
    found = products(function)
    assert {WHOLE in line for line in found} == {True, False}
    assert all((WHOLE in line) == ("v_tile" in line) for line in found)


@pytest.mark.parametrize("function", [stored_in_half, rounded_before, rounded_and_widened])
def test_a_product_rounds_where_its_results_or_the_program_do(function):
    found = products(function)
    assert found and not any(WHOLE in line for line in found)


def test_a_form_that_rounds_refuses():
    exact, rough = (planned(f, inputs(torch.bfloat16)).kernels[0] for f in (weighted, stored_in_half))
    assert "must not be rounded" in bind(exact) and not isinstance(bind(rough), str)


def test_a_tensor_between_kernels_hands_the_demand_on():
    i, j, e = Dim("i", 40), Dim("j", 300), Dim("e", 600)
    x, y = (load(Tensor(n, "bfloat16", (300, d.size)), iota(j), iota(d)) for n, d in (("x", i), ("y", e)))
    total = sum_over(j, exp(cast(x, "float32")) * cast(y, "float32"))
    for dtype, demanded in (("float32", True), ("bfloat16", False)):
        result = cast(total - sum_over(e, total), dtype)
        plan = build_plan(result, Tensor("out", dtype, (40, 600)), (i, e))
        assert len(plan.kernels) > 1 and any(k.exact for k in plan.kernels) == demanded


@pytest.mark.sampled(2)
@pytest.mark.parametrize("executor", ["tiled", "triton"])
@pytest.mark.parametrize("dtype", HALVES)
@pytest.mark.parametrize("function, size", [(weighted, 1.0), (squared, 30.0), (turned, 1.0), (centred, 1.0)])
def test_the_error_is_that_of_float32(function, size, dtype, executor):
    if executor == "triton" and os.environ.get("TRITON_INTERPRET") != "1":
        pytest.skip("needs Triton's interpreter")
    tensors = inputs(dtype, size)
    plan, given = planned(function, tensors), dict(zip("qkv", tensors, strict=True))
    results = tiled_results(plan, given) if executor == "tiled" else Launcher(plan).results(given)
    exact = function(*(t.double() for t in tensors))
    for result, wanted in zip(results, exact if isinstance(exact, tuple) else (exact,), strict=True):
        assert result.dtype == torch.float32
        assert (result - wanted).abs().max() <= 5e-6 * max(1.0, wanted.abs().max().item())
