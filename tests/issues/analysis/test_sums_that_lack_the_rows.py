"""Where one of a kernel's sums has no row of the scores (all keys of one set masked alike, a softmax over rows too),
batches became rows and rows the grid: no product was one of matrices, and Triton took minutes for it."""

import os

import pytest
import torch

from onepass.graph.trace import program_of
from onepass.lowering.analysis.dim_roles import batch_dims
from onepass.lowering.tiled.executor import tiled_results
from onepass.lowering.triton.launch import Launcher
from onepass.translate.translate import translate
from tests.support.plans import own_plan

interpreted = pytest.mark.skipif(os.environ.get("TRITON_INTERPRET") != "1", reason="needs Triton's interpreter")


def one_set_masked(q, k, v, k2, v2):
    k, v = torch.cat((k2, k), dim=2), torch.cat((v2, v), dim=2)
    s = q @ k.mT * 0.3
    s = torch.where(torch.arange(s.shape[-1], device=s.device) < 5, s, -1e1)
    return torch.softmax(s, -1) @ v


def over_rows_too(q, k, v, k2, v2):
    s = (q @ k.mT).masked_fill(torch.ones(40, 70, dtype=torch.bool, device=q.device).triu(), -torch.inf)
    return s.flatten(2).softmax(-1).view_as(s) @ v


def planned(function):
    torch.manual_seed(0)
    inputs = [torch.randn(2, 3, n, 16) for n in (40, 70, 70, 9, 9)]
    return own_plan(translate(program_of(function, *inputs)).results), inputs


def by_name(inputs):
    return dict(zip(("q", "k", "v", "k2", "v2"), inputs, strict=True))


@pytest.mark.sampled(1)
@pytest.mark.parametrize("function", [one_set_masked, over_rows_too])
def test_the_rows_are_those_of_products(function):
    plan, _ = planned(function)
    assert plan.kernels[-1].rows.size == 40 and plan.kernels[-1].rows not in batch_dims([plan.kernels[-1].result])
    assert all(store.output.shape[:2] == (2, 3) for kernel in plan.kernels for store in kernel.stores)
    assert all(len(store.order) < 4 for kernel in plan.kernels[:-1] for store in kernel.stores), "it is small"


def test_a_flattened_dim_is_two():
    plan, _ = planned(over_rows_too)
    assert all(d.size < 40 * 70 for kernel in plan.kernels for d in (*kernel.held, *(one.dim for one in kernel.loops)))


@pytest.mark.sampled(1)
@pytest.mark.parametrize("function", [one_set_masked, over_rows_too])
def test_it_computes_the_right_thing(function):
    plan, inputs = planned(function)
    (result,) = tiled_results(plan, by_name(inputs))
    torch.testing.assert_close(result.double(), function(*(x.double() for x in inputs)), rtol=1e-5, atol=1e-6)


@pytest.mark.sampled(1)
@interpreted
@pytest.mark.parametrize("function", [one_set_masked, over_rows_too])
def test_so_do_its_kernels(function):
    plan, inputs = planned(function)
    result = Launcher(plan)(by_name(inputs))
    torch.testing.assert_close(result.double(), function(*(x.double() for x in inputs)), rtol=1e-5, atol=1e-6)
