"""Pointwise weights beside their result stayed as written, and weights said twice were read and written once more.

A kernel of tiles of rows and columns writes them, from the product, and another one sums them by the values: neither
reads what the other writes. Two products with nothing but a factor between, or wider than long, stay as they are.
"""

import os

import pytest
import torch
from torch.nn import functional

import onepass
from onepass.compiler.optimize import optimize_all
from onepass.graph.trace import program_of
from onepass.lowering.triton.kernel import emit
from onepass.lowering.triton.launch import Launcher
from onepass.translate.translate import translate

pytestmark = pytest.mark.usefixtures("fresh")


def sigmoid(q, k, v):
    weights = torch.sigmoid(q @ k.mT)
    return weights @ v, weights


def squared(q, k, v):
    weights = functional.relu(q @ k.mT * 0.25).square()
    return weights @ v, weights


def banded(q, k, v):
    scores = q @ k.mT
    near = torch.ones_like(scores, dtype=torch.bool).tril().triu(-20)
    weights = torch.where(near, torch.tanh(scores), 0.0)
    return weights @ v, weights


def scores_beside(q, k, v):
    scores = q @ k.mT
    return torch.sigmoid(scores) @ v, scores


def said_twice(q, k, v):
    scores = q @ k.mT
    return torch.sigmoid(scores) @ v, torch.sigmoid(scores)


def softmax_said_twice(q, k, v):
    scores = q @ k.mT
    return torch.softmax(scores, -1) @ v, torch.softmax(scores, -1)


def mere_scores(q, k, v):
    scores = q @ k.mT * 0.25
    return scores @ v, scores


POINTWISE = (sigmoid, squared, banded, scores_beside, said_twice)


def inputs(kind=torch.float32, rows=80):
    torch.manual_seed(0)
    return [torch.randn(2, n, 16).to(kind) for n in (rows, 300, 300)]


@pytest.mark.parametrize("function", POINTWISE)
def test_a_kernel_sums_and_another_writes_tiles(function):
    found = optimize_all(translate(program_of(function, *inputs(rows=270))).results)
    sums, writes = found.plan.kernels
    assert [loop.dim.size for loop in sums.loops] == [300]
    assert not writes.loops and [d.size for d in writes.tiled] == [270, 300]
    assert {t.name for t in (*sums.inputs, *writes.inputs)} == {"q", "k", "v"}
    assert "tl.dot(" in emit(writes, found.plan).text


@pytest.mark.sampled(1)
@pytest.mark.parametrize("function", [said_twice, softmax_said_twice])
def test_weights_said_twice_leave_nothing_outside(function):
    report = onepass.explain(function, *inputs())
    (region,) = report.regions
    assert not report.refusals and len(region.kernels) == 2
    run = torch.compile(function, backend=onepass.onepass_backend, options={"strict": True, "inner": "eager"})
    for found, exact in zip(run(*inputs()), function(*inputs()), strict=True):
        torch.testing.assert_close(found, exact, atol=2e-5, rtol=1e-4)


@pytest.mark.parametrize(("function", "width"), [(mere_scores, 16), (sigmoid, 200)])
def test_what_is_read_at_less_cost_stays_and_why(function, width):
    report = onepass.explain(function, *(torch.randn(2, n, width) for n in (80, 300, 300)))
    (refusal,) = report.refusals
    assert not report.regions and "is also returned: written it is anyway, and to compute it again" in refusal.reason


@pytest.mark.sampled(1)
@pytest.mark.skipif(os.environ.get("TRITON_INTERPRET") != "1", reason="needs Triton's interpreter")
@pytest.mark.parametrize("kind", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("function", POINTWISE)
def test_they_are_right(function, kind):
    given = inputs(kind)
    plan = optimize_all(translate(program_of(function, *given)).results).plan
    found = Launcher(plan).results(dict(zip("qkv", given, strict=True)))
    for result, exact in zip(found, function(*(x.double() for x in given)), strict=True):
        assert (result.double() - exact).abs().max() <= 2.5 * torch.finfo(kind).eps * exact.abs().max() + 2e-5
