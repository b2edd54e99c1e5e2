"""Two attentions added with their heads side by side already: each element of a row was a program's, and computed all
scores again."""

import os

import pytest
import torch

from onepass.compiler.optimize import optimize_all
from onepass.graph.trace import program_of
from onepass.lowering.tiled.executor import tiled_results
from onepass.lowering.triton.launch import Launcher
from onepass.translate.translate import translate

interpreted = pytest.mark.skipif(os.environ.get("TRITON_INTERPRET") != "1", reason="needs Triton's interpreter")
HEADS, WIDTH = 3, 16


def added(x, y):
    def attention(x):
        q, k, v = (t.view(*t.shape[:2], HEADS, -1).transpose(1, 2) for t in x.chunk(3, -1))
        return (torch.softmax(q @ k.mT * 0.3, -1) @ v).transpose(1, 2).flatten(2)

    return attention(x) + attention(y)


@pytest.fixture
def planned():
    torch.manual_seed(0)
    inputs = [torch.randn(2, 70, 3 * HEADS * WIDTH) for _ in range(2)]
    return optimize_all(translate(program_of(added, *inputs)).results).plan, inputs


def test_a_heads_width_is_held(planned):
    plan, _ = planned
    (kernel,) = plan.kernels
    assert sorted(d.size for d in kernel.grid) == [2, HEADS] and kernel.rows.size == 70
    assert plan.outputs[0].shape == (2, 70, HEADS * WIDTH)


def test_it_computes_the_right_thing(planned):
    plan, inputs = planned
    (result,) = tiled_results(plan, {t.name: x for t, x in zip(plan.inputs, inputs, strict=True)})
    torch.testing.assert_close(result.double(), added(*(x.double() for x in inputs)), rtol=1e-5, atol=1e-5)


@interpreted
def test_so_do_its_kernels(planned):
    plan, inputs = planned
    result = Launcher(plan)({t.name: x for t, x in zip(plan.inputs, inputs, strict=True)})
    torch.testing.assert_close(result.double(), added(*(x.double() for x in inputs)), rtol=1e-5, atol=1e-5)
