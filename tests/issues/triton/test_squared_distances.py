"""Scores by squared distance made a tile of rows x keys x head dim: at the tiles of products it did not compile.

Places of the head dim are taken one after another now, where each goes alone.
"""

import os

import pytest
import torch

from onepass.compiler.optimize import optimize
from onepass.graph.trace import program_of
from onepass.lowering.planning.planner import build_plan
from onepass.lowering.triton.default_config import THREE_DIMS
from onepass.lowering.triton.launch import default_for
from onepass.translate.translate import translate
from tests.support.triton_runs import run_triton


def distances(q, k, v):
    return torch.softmax(-(q.unsqueeze(-2) - k.unsqueeze(-3)).square().sum(-1), -1) @ v


def of_neighbours(q, k, v):
    return torch.softmax(-(q[..., 1:].unsqueeze(-2) - k[..., :-1].unsqueeze(-3)).square().sum(-1), -1) @ v


def products(q, k, v):
    return torch.softmax(torch.tanh(q @ k.mT / 4), -1) @ v


def planned(function, inputs):
    """The plan that stores nothing between kernels."""
    captured = translate(program_of(function, *inputs))
    found = optimize(captured.term, captured.output, captured.order)
    return build_plan(found.terms[0], captured.output, captured.order)


@pytest.mark.parametrize("function, small", [(of_neighbours, True), (distances, False), (products, False)])
def test_tiles_are_small_where_three_dims_meet(function, small):
    plan = planned(function, [torch.randn(2, 300, 96) for _ in range(3)])
    assert all((default_for(kernel, "sm_90") == THREE_DIMS) == small for kernel in plan.kernels)


@pytest.mark.sampled(1)
@pytest.mark.skipif(os.environ.get("TRITON_INTERPRET") != "1", reason="needs Triton's interpreter")
@pytest.mark.parametrize("function", [of_neighbours, distances])
@pytest.mark.parametrize("width", [16, 24])
def test_and_they_compute_the_right_thing(function, width):
    inputs = [torch.randn(1, 20, width) for _ in range(3)]
    result = run_triton(planned(function, inputs), dict(zip("qkv", inputs, strict=True)))
    torch.testing.assert_close(result, function(*inputs), atol=1e-4, rtol=1e-4)
