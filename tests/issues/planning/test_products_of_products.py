"""Scores of less than 256 keys that no sum normalises were held whole, each tile of rows with all keys at once: twenty
thousand bytes of registers went to memory. A log-sum-exp beside them took a kernel of its own."""

import os

import pytest
import torch

from onepass.compiler.optimize import optimize_all
from onepass.graph.trace import program_of
from onepass.lowering.tiled.executor import tiled_results
from onepass.lowering.triton.launch import Launcher
from onepass.translate.translate import translate

interpreted = pytest.mark.skipif(os.environ.get("TRITON_INTERPRET") != "1", reason="needs Triton's interpreter")


def scores_as_weights(q, k, v, bias):
    s = q @ k.mT + bias
    return s @ v, s.logsumexp(-1)


def planned():
    torch.manual_seed(0)
    inputs = [torch.randn(*shape) for shape in ((2, 300, 16), (2, 238, 16), (2, 238, 32), (300, 238))]
    return optimize_all(translate(program_of(scores_as_weights, *inputs)).results).plan, inputs


def test_the_keys_are_a_loop_of_one_kernel():
    plan, _ = planned()
    (kernel,) = plan.kernels
    assert [loop.dim.size for loop in kernel.loops] == [238]


def test_it_computes_the_right_thing():
    plan, inputs = planned()
    named = dict(zip(("q", "k", "v", "bias"), inputs, strict=True))
    for found, exact in zip(tiled_results(plan, named), scores_as_weights(*(x.double() for x in inputs)), strict=True):
        torch.testing.assert_close(found.double(), exact, rtol=1e-5, atol=1e-4)


@interpreted
def test_so_do_its_kernels():
    plan, inputs = planned()
    results = Launcher(plan).results(dict(zip(("q", "k", "v", "bias"), inputs, strict=True)))
    for found, exact in zip(results, scores_as_weights(*(x.double() for x in inputs)), strict=True):
        torch.testing.assert_close(found.double(), exact, rtol=1e-5, atol=1e-4)
