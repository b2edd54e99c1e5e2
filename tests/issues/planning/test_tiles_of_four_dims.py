"""Products that are no matrices filled a tile with four dims at once: where a program gives back scores that its heads
mix, a kernel took minutes to compile, and its call seemed to hang; scores of three factors took half a minute."""

import os
from math import prod

import pytest
import torch

from onepass.egraph.terms.traversal import subterms
from onepass.graph.trace import program_of
from onepass.lowering.analysis.dim_roles import leading_dims
from onepass.lowering.plan.queries import roots
from onepass.lowering.triton.default_config import THREE_DIMS, default_for
from onepass.lowering.triton.kernel import emit
from onepass.lowering.triton.launch import Launcher
from onepass.translate.translate import translate
from tests.support.plans import own_plan

PER_THREAD = 256  # places of a tile that a thread holds


def mixed(q, k, v, a):
    score = torch.einsum("bgij,gh->bhij", q @ k.mT, a) * 0.3
    return torch.softmax(score, -1) @ v, score


def placed(q, k, v, r):
    """Relative places as vectors (Shaw), beside the keys."""
    score = q @ k.mT + torch.einsum("bhic,ijc->bhij", q, r)
    return (torch.softmax(score * 0.1, -1) @ v,)


def of_three(q, k, v, r):
    return (torch.softmax(torch.einsum("bhic,bhjc,ijc->bhij", q, k, r) * 0.1, -1) @ v,)


def whole(q, k, v, r):
    score = (q.long()[..., None, :] * k.long()[..., None, :, :]).sum(-1)
    return (torch.softmax(score.float(), -1) @ v.float(),)


def _inputs(function, rows, columns, width, dtype):
    torch.manual_seed(0)
    last = (2, 2) if function is mixed else (rows, columns, width)
    return [torch.randn(s, dtype=dtype) for s in ((2, 2, rows, width), *[(2, 2, columns, width)] * 2, last)]


def _plan(function, inputs):
    return own_plan(translate(program_of(function, *inputs)).results)


@pytest.mark.sampled(2)
@pytest.mark.parametrize("width", [64, 96, 128])
@pytest.mark.parametrize("function", [of_three, whole])
def test_what_is_no_matrix_has_small_tiles(function, width):
    plan = _plan(function, _inputs(function, 300, 333, width, torch.bfloat16))
    (kernel,) = plan.kernels
    assert default_for(kernel, "sm_90") == THREE_DIMS


@pytest.mark.sampled(1)
@pytest.mark.parametrize("width", [64, 96, 128])
def test_places_are_products_of_matrices_too(width):
    plan = _plan(placed, _inputs(placed, 300, 333, width, torch.bfloat16))
    texts = [emit(kernel, plan).text for kernel in plan.kernels]
    assert len(texts) == 2 and all("tl.dot" in text and "None, :, :" not in text for text in texts)


@pytest.mark.sampled(1)
@pytest.mark.parametrize("width", [64, 96, 128])
def test_mixed_scores_are_products_of_matrices(width):
    plan = _plan(mixed, _inputs(mixed, 300, 333, width, torch.bfloat16))
    (kernel,) = (kernel for kernel in plan.kernels if not kernel.loops)
    lead = leading_dims(kernel, {n for root in roots(kernel) for n in subterms(root)})
    config = default_for(kernel, "sm_90")
    text = emit(kernel, plan).text
    assert text.count("tl.dot") == 2 and "tl.sum" not in text
    assert config.row_tile * config.loop_tile * prod(d.size for d in lead) <= PER_THREAD * 32 * config.warps


@pytest.mark.sampled(1)
@pytest.mark.skipif(os.environ.get("TRITON_INTERPRET") != "1", reason="needs Triton's interpreter")
@pytest.mark.parametrize("function", [mixed, placed, of_three, whole])
def test_they_compute_the_same(function):
    dtype = torch.float16 if function is mixed else torch.float32
    inputs = _inputs(function, 21, 35, 16, dtype)
    plan = _plan(function, inputs)
    names = [name for name in ("q", "k", "v", "a" if function is mixed else "r")]
    named = dict(zip(names, inputs, strict=True))
    given = [named[x.name] for x in plan.inputs]
    configs = {kernel.name: default_for(kernel, "sm_90") for kernel in plan.kernels}
    found = Launcher(plan, configs).bind([x.name for x in plan.inputs], given, {})(given)
    for mine, exact in zip(found, function(*(x.double() for x in inputs)), strict=True):
        torch.testing.assert_close(mine.double(), exact.double(), atol=2e-2 if function is mixed else 1e-5, rtol=1e-2)
