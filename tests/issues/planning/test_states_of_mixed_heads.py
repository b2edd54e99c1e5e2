"""Softmax between two mixtures of heads stored a value of all heads by all heads for every score: 128 GiB of a call.

Two operands of the outer sum need the state's loop, so what has both was stored first; each has fewer dims than that,
and the state that both are made of has the fewest. Its rows are the heads: by them a product with the loop is one of
matrices, whose rounding is that of the same product in the second kernel.
"""

import math
import os

import pytest
import torch

from onepass.compiler.optimize import optimize_all
from onepass.compiler.traffic import plan_bytes
from onepass.graph.trace import program_of
from onepass.lowering.tiled.executor import tiled_results
from onepass.lowering.triton.launch import Launcher
from onepass.translate.translate import translate

HEADS = 16


def mixed(score, before, after):
    weight = torch.softmax(torch.einsum("hg,bgij->bhij", before, score), -1)
    return torch.einsum("hg,bgij->bhij", after, weight)


def inputs(rows, columns):
    torch.manual_seed(0)
    return [torch.randn(2, HEADS, rows, columns), *(torch.randn(HEADS, HEADS) for _ in range(2))]


def planned(tensors):
    return optimize_all(translate(program_of(mixed, *tensors)).results).plan


def test_no_part_is_larger_than_the_scores():
    tensors = inputs(40, 300)
    plan = planned(tensors)
    parts = [s.output for kernel in plan.kernels[:-1] for s in kernel.stores]
    assert parts and all(math.prod(part.shape) == 2 * HEADS * 40 for part in parts)
    assert plan_bytes(plan, {}) < 4 * tensors[0].nbytes
    assert plan.kernels[0].rows.size == HEADS


@pytest.mark.slow
@pytest.mark.parametrize("executor", ["tiled", "triton"])
def test_mixtures_around_a_softmax(executor):
    if executor == "triton" and os.environ.get("TRITON_INTERPRET") != "1":
        pytest.skip("needs Triton's interpreter")
    # Multiples of 1/16: scores are exact in float32, so both kernels compute the same ones, in any order of summation.
    tensors = [torch.round(16 * tensor) / 16 for tensor in inputs(17, 70)]
    tensors[0][0, 3, 5] *= 1024
    plan = planned(tensors)
    named = dict(zip(("score", "before", "after"), tensors, strict=True))
    (result,) = tiled_results(plan, named) if executor == "tiled" else Launcher(plan).results(named)
    exact = mixed(*(t.double() for t in tensors))
    allowed = (mixed(*tensors) - exact).abs().max().item()
    assert (result - exact).abs().max().item() <= 2 * allowed + 1e-5 * exact.abs().max().item()
