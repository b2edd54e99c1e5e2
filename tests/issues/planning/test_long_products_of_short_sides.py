"""Channels that attend to channels, summed over tokens: some hundred tokens were held whole in every program, and
there was a program for each token of the result."""

import os

import pytest
import torch
from torch.nn.functional import normalize

from onepass.compiler.optimize import optimize_all
from onepass.graph.trace import program_of
from onepass.lowering.hopper.kernel_form import bind
from onepass.lowering.launch.split_loops import chunk_sizes, with_split_kernels
from onepass.lowering.plan.thresholds import MAX_RESIDENT_ELEMENTS
from onepass.lowering.tiled.executor import tiled_results
from onepass.lowering.triton.launch import Launcher
from onepass.translate.translate import translate

interpreted = pytest.mark.skipif(os.environ.get("TRITON_INTERPRET") != "1", reason="needs Triton's interpreter")
CHANNELS, TOKENS = 48, 670


def of_channels(q, k, v, t):
    q, k = (normalize(x, dim=-1) for x in (q, k))
    return ((q.mT @ k * t).softmax(-1) @ v.mT).mT


def planned(tokens=TOKENS):
    torch.manual_seed(0)
    inputs = [*(torch.randn(1, 2, tokens, CHANNELS) for _ in range(3)), torch.randn(2, 1, 1)]
    return optimize_all(translate(program_of(of_channels, *inputs)).results).plan, inputs


@pytest.mark.sampled(1)
@pytest.mark.parametrize("tokens", [600, TOKENS, 3136])
def test_tokens_are_a_loop_and_then_columns(tokens):
    plan, _ = planned(tokens)
    scores, weights = plan.kernels
    assert [loop.dim.size for loop in scores.loops] == [tokens]
    assert [d.size for d in weights.columns] == [tokens] and weights.rows.size == CHANNELS and len(weights.loops) == 1
    assert all(d.size <= MAX_RESIDENT_ELEMENTS for kernel in plan.kernels for d in kernel.held)
    assert "columns" in bind(weights), "the Hopper form has no such tiles"


def test_it_computes_the_right_thing():
    plan, inputs = planned()
    exact = of_channels(*(x.double() for x in inputs))
    named = dict(zip("qkvt", inputs, strict=True))
    for one, sizes in ((plan, {}), (with_split_kernels(plan), chunk_sizes(plan, 3))):
        (result,) = tiled_results(one, named, sizes)
        torch.testing.assert_close(result.double(), exact, rtol=1e-5, atol=1e-5)


@interpreted
def test_so_do_its_kernels():
    plan, inputs = planned()
    result = Launcher(plan)(dict(zip("qkvt", inputs, strict=True)))
    torch.testing.assert_close(result.double(), of_channels(*(x.double() for x in inputs)), rtol=1e-5, atol=1e-5)
