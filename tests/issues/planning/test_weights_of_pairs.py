"""Weights that are stored beside a result were computed in columns one wide: those of distances with rows that lie far
apart in memory, those over two joined sets of keys with all sums done again for each key."""

import os

import pytest
import torch

from onepass.compiler.optimize import optimize_all
from onepass.graph.trace import program_of
from onepass.lowering.tiled.executor import tiled_results
from onepass.lowering.triton.launch import Launcher
from onepass.translate.translate import translate
from tests.support.waste import wasted

interpreted = pytest.mark.skipif(os.environ.get("TRITON_INTERPRET") != "1", reason="needs Triton's interpreter")


def of_distances(q, k, v):
    p = (-(q[..., :, None, :] - k[..., None, :, :]).square().sum(-1)).softmax(-1)
    return p @ v, p


def over_joined_keys(q, k, v, k2, v2):
    p = (q @ torch.cat([k2, k], 1).mT).softmax(-1)
    return p @ torch.cat([v2, v], 1), p


CASES = {of_distances: (70, 40, 40), over_joined_keys: (300, 40, 40, 5, 5)}


def planned(function):
    torch.manual_seed(0)
    inputs = dict(zip(("q", "k", "v", "k2", "v2"), (torch.randn(2, n, 16) for n in CASES[function])))
    return optimize_all(translate(program_of(function, *inputs.values())).results).plan, inputs


@pytest.mark.sampled(1)
@pytest.mark.parametrize("function", CASES)
def test_weights_come_in_tiles_of_rows_and_columns(function):
    plan, _ = planned(function)
    last = plan.kernels[-1]
    assert sorted(d.size for d in last.tiled) == sorted(plan.outputs[1].shape[1:]) and not last.loops
    assert wasted(plan) == []


@pytest.mark.parametrize("function", CASES)
def test_it_computes_the_right_thing(function):
    plan, inputs = planned(function)
    assert_right(tiled_results(plan, inputs), function, inputs)


@pytest.mark.sampled(1)
@interpreted
@pytest.mark.parametrize("function", CASES)
def test_so_do_its_kernels(function):
    plan, inputs = planned(function)
    assert_right(Launcher(plan).results(inputs), function, inputs)


def assert_right(results, function, inputs):
    for found, exact in zip(results, function(*(x.double() for x in inputs.values())), strict=True):
        torch.testing.assert_close(found.double(), exact, rtol=1e-5, atol=1e-5)
