"""NaN + -∞ is NaN, and nan_to_num made 0 of it, where a mask that is added was taken for absence and gave a number.

Such a mask stays data where the results tell NaN from numbers. Where they do not, and where scores are filled instead
of added to, it bounds the loop as ever.
"""

import math
import os

import pytest
import torch
from torch.nn import functional

import onepass
from onepass.compiler.assumptions import is_nan_sensitive
from onepass.compiler.optimize import optimize_all
from onepass.graph.trace import program_of
from onepass.lowering.triton.launch import Launcher
from onepass.translate.translate import translate

pytestmark = pytest.mark.usefixtures("fresh")
LENGTH = 40

ADDED = {
    "a triangle of full": lambda s: s + torch.full(s.shape[-2:], -math.inf).triu(1),
    "a choice of numbers": lambda s: s + torch.where(torch.ones(s.shape[-2:]).tril() == 1, 0.0, -math.inf).to(s.dtype),
    "on the left": lambda s: torch.zeros_like(s).masked_fill(torch.ones_like(s).triu(1) == 1, -math.inf) + s,
}
FILLED = {
    "masked_fill": lambda s: s.masked_fill(torch.ones_like(s).triu(1) == 1, -math.inf),
    "where": lambda s: torch.where(torch.ones_like(s).tril() == 1, s, -math.inf),
    "and a slope": lambda s: torch.where(torch.ones_like(s).tril() == 1, s, -math.inf) + torch.arange(LENGTH) * 0.1,
}
TELLS = {
    "nan_to_num": lambda s: s.softmax(-1).nan_to_num(0.0),
    "isnan": lambda s: s.softmax(-1).masked_fill(s.softmax(-1).isnan(), 0.0),
    "equal to itself": lambda s: torch.where(s == s, s, -1.0).softmax(-1),
    "a comparison": lambda s: torch.where(s.softmax(-1) > 0.01, s.softmax(-1), 0.0),
    "a row's maximum": lambda s: torch.where(s.amax(-1, keepdim=True) > -math.inf, s.softmax(-1), 0.0),
    "a cast test": lambda s: (s.softmax(-1) > 0.01).to(s.dtype),
}
COMPARES = ("a comparison", "a cast test")  # of a weight, which needs the whole sum first
TELLS_NOT = {
    "softmax": lambda s: s.softmax(-1),
    "logarithm": lambda s: torch.exp(s - s.logsumexp(-1, keepdim=True)),
    "times a test": lambda s: s.softmax(-1) * (s.softmax(-1) > 0.01),
    "leaky": lambda s: functional.leaky_relu(s).softmax(-1),
    "a test of something else": lambda s: torch.where((torch.arange(LENGTH) * 0.5).isnan(), 0.0, s.softmax(-1)),
}


def attention(masked, weights):
    return lambda q, k, v: weights(masked(q @ k.mT * 0.3)) @ v


def inputs():
    torch.manual_seed(0)
    q, k, v = (torch.randn(2, LENGTH, 8) for _ in range(3))
    k[:, -1] = math.nan
    return q, k, v


def sdpa(q, k, v):
    keep = torch.ones(q.shape[-2], k.shape[-2], dtype=torch.bool).tril()
    return functional.scaled_dot_product_attention(q, k, v, torch.where(keep, 0.0, -math.inf).to(q.dtype))


def results(function):
    return translate(program_of(function, *inputs())).results


def bounded(function) -> bool:
    plan = optimize_all(results(function)).plan
    return any(r.uppers for kernel in plan.kernels for loop in kernel.loops for r in loop.ranges)


def assumed(function) -> bool:
    (region,) = onepass.explain(function, *inputs()).regions
    return "scores are finite" in region.assumptions


@pytest.mark.sampled(11)
@pytest.mark.parametrize("weights", {**TELLS, **TELLS_NOT})
@pytest.mark.parametrize("mask", ADDED)
def test_what_a_result_tells_is_what_eager_shows(mask, weights):
    function = attention(ADDED[mask], {**TELLS, **TELLS_NOT}[weights])
    shown = function(*inputs())[:, :-1].isfinite().any().item()
    assert is_nan_sensitive(results(function)[0].term) == shown == (weights in TELLS)


@pytest.mark.sampled(1)
@pytest.mark.parametrize("weights", ["softmax", "logarithm", "times a test"])
@pytest.mark.parametrize("mask", ADDED)
def test_nothing_is_told_and_the_mask_bounds_the_loop(mask, weights):
    function = attention(ADDED[mask], TELLS_NOT[weights])
    assert bounded(function) and assumed(function)


@pytest.mark.parametrize("mask", FILLED)
def test_scores_that_are_filled_bound_the_loop_whatever_is_told(mask):
    function = attention(FILLED[mask], TELLS["nan_to_num"])
    assert bounded(function) and not is_nan_sensitive(results(function)[0].term)


def test_a_row_without_a_key_is_no_nan():
    assert bounded(sdpa) and not is_nan_sensitive(results(sdpa)[0].term)


@pytest.mark.sampled(1)
@pytest.mark.parametrize("weights", TELLS)
def test_what_is_told_is_right(weights):
    function = attention(ADDED["a choice of numbers"], TELLS[weights])
    options = {"strict": True, "inner": "eager", "libraries": False}
    fused = torch.compile(function, backend=onepass.onepass_backend, options=options)(*inputs())
    (report,) = onepass.reports()
    (region,) = report.regions
    assert region.passes[1] == (2 if weights in COMPARES else 1)
    assert "scores are finite" not in region.assumptions and "NaN is told" in region.statistics["added masks"]
    torch.testing.assert_close(fused, function(*inputs()), atol=1e-5, rtol=1e-5, equal_nan=True)


@pytest.mark.skipif(os.environ.get("TRITON_INTERPRET") != "1", reason="needs Triton's interpreter")
@pytest.mark.parametrize("weights", ["nan_to_num", "isnan"])
def test_a_kernel_is_right(weights):
    function = attention(ADDED["a triangle of full"], TELLS[weights])
    plan = optimize_all(results(function)).plan
    (found,) = Launcher(plan).results(dict(zip("qkv", inputs(), strict=True)))
    torch.testing.assert_close(found, function(*inputs()), atol=1e-5, rtol=1e-5, equal_nan=True)
