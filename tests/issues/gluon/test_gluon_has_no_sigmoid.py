"""Scores with a sigmoid did not compile for Hopper: the language there has no such function."""

import os

import pytest
import torch

from onepass.compiler.optimize import optimize
from onepass.graph.trace import program_of
from onepass.lowering.triton.kernel import emit
from onepass.translate.translate import translate
from tests.support.triton_runs import run_triton


def gated(q, k, v):
    scores = q @ k.mT / 4
    return torch.softmax(scores * torch.sigmoid(scores), -1) @ v


def planned(inputs):
    captured = translate(program_of(gated, *inputs))
    return optimize(captured.term, captured.output, captured.order).plan


def test_the_text_brings_its_own():
    plan = planned([torch.randn(2, 300, 64, dtype=torch.bfloat16) for _ in range(3)])
    text = emit(plan.kernels[0], plan).text
    assert "tl.sigmoid" not in text and "def logistic" in text


@pytest.mark.skipif(os.environ.get("TRITON_INTERPRET") != "1", reason="needs Triton's interpreter")
def test_and_it_computes_the_right_thing():
    inputs = [30 * torch.randn(2, 40, 16), torch.randn(2, 40, 16), torch.randn(2, 40, 16)]
    result = run_triton(planned(inputs), dict(zip("qkv", inputs, strict=True)), {})
    torch.testing.assert_close(result, gated(*inputs), atol=1e-4, rtol=1e-4)
