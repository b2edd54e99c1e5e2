"""A causal loop of float32 with 128 columns had two bodies, with a test and without, and kept 108 registers of a thread
in memory. All tiles test now: products of float32 take hundreds of times as long as a test.
"""

import math

import pytest
import torch

from onepass.compiler.optimize import optimize_all
from onepass.graph.trace import program_of
from onepass.lowering.plan.launch_facts import Facts
from onepass.lowering.triton.kernel import emit
from onepass.translate.translate import translate
from tests.support.triton_runs import run_triton


def masked(score, kind):
    i, j = (torch.arange(n, device=score.device) for n in score.shape[-2:])
    hidden = {"full": i[:, None] < 0, "causal": i[:, None] < j, "window": (i[:, None] < j) | (i[:, None] - j >= 40)}
    return score.masked_fill(hidden[kind], -math.inf) if kind != "full" else score


def planned(kind, length, width, dtype):
    def attention(q, k, v):
        return masked(q @ k.mT / math.sqrt(width), kind).softmax(-1) @ v

    tensors = torch.randn(3, 1, 2, length, width, dtype=dtype).unbind()
    captured = translate(program_of(attention, *tensors))
    return attention, tensors, optimize_all(captured.results).plan


@pytest.mark.parametrize("dtype, width, loops", [("float32", 128, 1), ("float32", 64, 3), ("bfloat16", 128, 3)])
def test_wide_rows_of_float32_have_one_body(dtype, width, loops):
    *_, plan = planned("window", 256, width, getattr(torch, dtype))
    text = emit(plan.kernels[0], plan, Facts(machine="sm_90")).text
    assert text.count("    for j_start") == loops


@pytest.mark.parametrize("length", [96, 101])
@pytest.mark.parametrize("kind", ["full", "causal", "window"])
def test_all_tiles_test_and_compute_the_same(kind, length):
    torch.manual_seed(0)
    attention, tensors, plan = planned(kind, length, 128, torch.float32)
    found = run_triton(plan, dict(zip((t.name for t in plan.inputs), tensors, strict=True)))
    exact = attention(*(x.double() for x in tensors))
    torch.testing.assert_close(found.double(), exact, atol=1e-5, rtol=1e-5)
