"""T5 on a GPU ran its original calls: the path of its bias table's module was longer than a line of the kernel's text.

Lines were broken inside of that name. The CPU's executor emits no text, so that no test of models had seen it.
"""

import ast
import os

import pytest
import torch
from torch import nn

from onepass import process_state
from onepass.api.backend import onepass_backend
from onepass.compiler.optimize import optimize
from onepass.graph.trace import program_of
from onepass.lowering.triton.kernel import emit
from onepass.report import records
from onepass.translate.translate import translate
from tests.support.gluon_ahead_of_time import source_of
from tests.support.triton_runs import run_triton

LONG = "a_bias_whose_name_is_longer_than_a_line_" * 4
scope = {"torch": torch}
exec(f"def attention(q, k, v, {LONG}):\n    return torch.softmax(q @ k.mT / 8 + {LONG}, -1) @ v", scope)
attention = scope["attention"]


def _inputs(length=300, width=64, dtype=torch.bfloat16):
    torch.manual_seed(0)
    return [*(torch.randn(2, length, width).to(dtype) for _ in range(3)), torch.randn(2, length, length).to(dtype)]


def _planned(inputs):
    captured = translate(program_of(attention, *inputs))
    return optimize(captured.term, captured.output, captured.order).plan


def test_both_texts_keep_the_name():
    plan = _planned(_inputs())
    for text in (emit(plan.kernels[0], plan).text, source_of(plan)[2].text):
        ast.parse(text)
        assert LONG.strip("_") in text


@pytest.mark.skipif(os.environ.get("TRITON_INTERPRET") != "1", reason="needs Triton's interpreter")
def test_and_it_computes_the_right_thing():
    inputs = _inputs(40, 16, torch.float32)
    plan = _planned(inputs)
    result = run_triton(plan, dict(zip(["q", "k", "v", LONG.strip("_")], inputs, strict=True)), {})
    torch.testing.assert_close(result, attention(*inputs), atol=1e-4, rtol=1e-4)


class _Inner(nn.Module):
    def __init__(self):
        super().__init__()
        self.relative_attention_bias = nn.Embedding(40, 2)

    def forward(self, q, k, v):
        bias = self.relative_attention_bias.weight[:, :1, None].squeeze(-1)
        return torch.softmax(q @ k.mT + bias, -1) @ v


def test_a_tensor_of_a_module_is_called_by_its_last_two_names():
    model, inputs = nn.ModuleDict({"layers": nn.ModuleList([_Inner()])}), _inputs(40, 16, torch.float32)[:3]
    torch._dynamo.reset()
    process_state.forget("reports")
    with torch.no_grad():
        torch.compile(model["layers"][0], backend=onepass_backend, options={"inner": "eager"})(*inputs)
    (region,) = records.reports()[-1].regions
    assert "relative_attention_bias_weight" in region.captured and "modules" not in region.captured
