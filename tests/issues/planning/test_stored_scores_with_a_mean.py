"""Scores less their own mean, stored for products over two batches: the mean's dim was that of the columns stored, and
its kernel did not compile."""

import os

import pytest
import torch

from onepass.compiler.optimize import optimize_all
from onepass.graph.trace import program_of
from onepass.lowering.tiled.executor import tiled_results
from onepass.lowering.triton.launch import Launcher
from onepass.translate.translate import translate

interpreted = pytest.mark.skipif(os.environ.get("TRITON_INTERPRET") != "1", reason="needs Triton's interpreter")


def of_pairs(q, k, bias, pair):
    s = (torch.einsum("bihd,bjhd->bhij", q, k) + bias.permute(0, 3, 1, 2)).tanh()
    p = (s - s.mean(-1, keepdim=True)).softmax(-1)
    return torch.einsum("bhij,bijl->bihl", p, pair)


@pytest.fixture
def planned():
    torch.manual_seed(0)
    inputs = [torch.randn(*shape) for shape in ((2, 40, 3, 16), (2, 50, 3, 16), (2, 40, 50, 3), (2, 40, 50, 4))]
    return optimize_all(translate(program_of(of_pairs, *inputs)).results).plan, inputs


def test_no_dim_is_both_summed_and_stored(planned):
    plan, _ = planned
    assert any("two dims" in note for note in plan.notes)
    for kernel in plan.kernels:
        assert not {d for store in kernel.stores for d in store.order} & {loop.dim for loop in kernel.loops}
        assert not {*kernel.tiled} & {*kernel.held}


def test_it_computes_the_right_thing(planned):
    plan, inputs = planned
    (result,) = tiled_results(plan, {t.name: x for t, x in zip(plan.inputs, inputs, strict=True)})
    torch.testing.assert_close(result.double(), of_pairs(*(x.double() for x in inputs)), rtol=1e-5, atol=1e-5)


@pytest.mark.slow
@interpreted
def test_so_do_its_kernels(planned):
    plan, inputs = planned
    result = Launcher(plan)({t.name: x for t, x in zip(plan.inputs, inputs, strict=True)})
    torch.testing.assert_close(result.double(), of_pairs(*(x.double() for x in inputs)), rtol=1e-5, atol=1e-5)
