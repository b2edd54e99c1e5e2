"""Weights that are a result too were wrong beside a Gluon kernel, and inexact beside any for large scores.

They are computed again from the largest score and the sum of weights that the first kernel stores. The largest was
rounded in base 2; the sum was relative to a lazy scale where the largest score itself was not stored.
"""

import os

import pytest
import torch

from onepass.compiler.optimize import optimize_all
from onepass.egraph.terms.traversal import subterms
from onepass.graph.trace import program_of
from onepass.lowering.analysis.softmax_scaling import any_scale
from onepass.lowering.gluon.kernel import emit
from onepass.lowering.gluon.launch import SuitedTensors, fitting, prepare
from onepass.lowering.hopper.kernel_form import bind
from onepass.lowering.tiled.executor import tiled_results
from onepass.lowering.triton.launch import Launcher
from onepass.translate.translate import translate


def two(q, k, v):
    s = q @ k.mT
    p = torch.softmax(s, -1) - 0.3 * torch.softmax(s * 0.5, -1)
    return p @ v, p


def one(q, k, v):
    p = torch.softmax(q @ k.mT, -1)
    return p @ v, p


def planned(function, tensors):
    return optimize_all(translate(program_of(function, *tensors)).results).plan


def test_every_sum_that_leaves_alone_has_its_largest_score_beside_it():
    plan = planned(two, [torch.randn(2, 600, 64, dtype=torch.bfloat16) for _ in range(3)])
    kernel = plan.kernels[0]
    binding = bind(kernel)
    schedule = fitting(binding, {}, binding.overlays)
    text = emit(binding, plan, schedule, prepare(binding, schedule, {}, SuitedTensors(binding.overlays)).shape).text
    alone = {n.args[0].args[0].args[0] for s in kernel.stores[1:] for n in subterms(s.term) if n.op == "mantissa"}
    assert len(alone) == 2 and "rescaled0_0_peak" in text and "rescaled0_1_peak" in text


def test_a_ratio_says_nothing_of_its_scale():
    kernel = planned(two, [torch.randn(2, 300, 16) for _ in range(3)]).kernels[0]
    states = [n.args[0] for n in subterms(kernel.stores[0].term) if n.op == "mantissa"]
    found = [any_scale(store.term, states) for store in kernel.stores]
    assert found[0] and not any(found[1:])


@pytest.mark.sampled(1)
@pytest.mark.parametrize("executor", ["tiled", "triton"])
def test_weights_of_large_scores_add_up(executor):
    if executor == "triton" and os.environ.get("TRITON_INTERPRET") != "1":
        pytest.skip("needs Triton's interpreter")
    torch.manual_seed(0)
    # Multiples of 1/16: scores are exact in float32, so both kernels compute the same ones, in any order of summation.
    q, k, v = (torch.round(16 * torch.randn(2, n, 16)) / 16 for n in (20, 300, 300))
    q *= 4096
    plan = planned(one, [q, k, v])
    tensors = dict(zip("qkv", (q, k, v), strict=True))
    results = tiled_results(plan, tensors) if executor == "tiled" else Launcher(plan).results(tensors)
    weights = results[1]
    torch.testing.assert_close(weights.sum(-1), torch.ones(2, 20), atol=2e-5, rtol=0)
