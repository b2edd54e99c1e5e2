"""With equal bits a row's exponents went by its program's terms: by constants, sizes and masks. A prefill whose mask is
a large number then had other bits than a decoding step, and rows hidden by one had NaN where a factor of the scores is
no power of two.
"""

from dataclasses import replace

import pytest
import torch

from onepass.compiler.optimize import optimize_all
from onepass.egraph.terms.ops import const
from onepass.graph.trace import program_of
from onepass.lowering.analysis.softmax_scaling import scaling_in_pieces
from onepass.lowering.codegen.dialect import TRITON
from onepass.lowering.codegen.ops import decay_text, exponent_text
from onepass.lowering.plan.kernel_config import TritonConfig
from onepass.lowering.plan.launch_facts import Facts
from onepass.lowering.triton.kernel import emit
from onepass.lowering.triton.launch import Launcher
from onepass.translate.translate import translate
from tests.fuzz.invariance import in_order_of_the_sum, same_bits

PIECE, KEYS = 32, 150
FAR = "tl.where(tl.abs(shift) > 4194304.0"


@pytest.fixture(autouse=True)
def products_as_a_matrix_unit_adds_them(monkeypatch):
    from triton.runtime.interpreter import InterpreterBuilder

    monkeypatch.setattr(InterpreterBuilder, "create_dot", in_order_of_the_sum)


def causal(start, hidden, factor):
    def attend(q, k, v):
        i, j = start + torch.arange(q.shape[2])[:, None], torch.arange(k.shape[2])
        scores = (q @ k.mT * factor).masked_fill(j > i, hidden)
        return scores.softmax(-1) @ v

    return attend


def added(start, hidden, factor):
    def attend(q, k, v):
        i, j = start + torch.arange(q.shape[2])[:, None], torch.arange(k.shape[2])
        return (q @ k.mT * factor + torch.where(j > i, hidden, 0.0).to(q.dtype)).softmax(-1) @ v

    return attend


def documents(q, k, v, of_q, of_k):
    hidden = of_q[:, None, :, None] != of_k[:, None, None, :]
    return (q @ k.mT * 0.18).masked_fill(hidden, torch.finfo(q.dtype).min).softmax(-1) @ v


def captured(function, inputs):
    found = translate(program_of(function, *inputs))
    return found, replace(optimize_all(found.results, invariant=True).plan, piece=PIECE)


def result(function, inputs, parts=1):
    found, plan = captured(function, inputs)
    launcher = Launcher(plan, TritonConfig(32, 16, 4, 1, parts))
    return launcher.results(dict(zip([t.name for t in found.inputs], inputs, strict=True)))[0]


def inputs_of(dtype):
    torch.manual_seed(0)
    return [torch.randn(2, 2, n, 16).to(dtype) for n in (40, KEYS, KEYS)]


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
@pytest.mark.parametrize(("program", "hidden"), [(causal, -3e38), (added, -1e4)])
def test_a_row_by_itself_has_the_bits_that_it_has_beside_rows_without_keys(program, hidden, dtype):
    q, k, v = inputs_of(dtype)
    function = program(-3, hidden, 0.18)  # its first rows have no key
    whole = result(function, [q, k, v])
    assert same_bits(whole, result(function, [q, k, v], parts=2))
    for row in (5, 38):
        alone = result(program(row - 3, hidden, 0.18), [q[:, :, row : row + 1].contiguous(), k, v])
        assert same_bits(whole[:, :, row : row + 1], alone)
    right = function(q.double(), k.double(), v.double())
    for first, error in ((0, 1e-3), (3, 1e-5)):  # float32 holds scores near -1e4 to 1e-3
        error = error if dtype == torch.float32 else 3e-2
        torch.testing.assert_close(whole.double()[:, :, first:], right[:, :, first:], atol=error, rtol=error)


def test_rows_that_data_hides_by_a_number():
    q, k, v = inputs_of(torch.bfloat16)
    of_k = (torch.arange(KEYS) // 12)[None].repeat(2, 1)
    of_q = torch.arange(40)[None].repeat(2, 1) // 3  # the last row has a document without keys
    for parts in (1, 2):
        found = result(documents, [q, k, v, of_q, of_k], parts)
        right = documents(q.double(), k.double(), v.double(), of_q, of_k)
        torch.testing.assert_close(found.double(), right, atol=3e-2, rtol=3e-2)


def test_where_shifts_may_be_large_they_are_subtracted_first():
    q, k, v = inputs_of(torch.bfloat16)
    texts = []
    for start in (-3, 110):  # some rows have no key; each row has one
        _, plan = captured(causal(start, -3e38, 0.18), [q, k, v])
        texts.append(emit(plan.kernels[0], plan, Facts(piece=PIECE)).text)
    assert "tl.abs(shift" in texts[0] and "tl.abs" not in texts[1] and "tl.fma(" in texts[1]
    assert "1.4426950408889634, -(" in texts[1] and "0.25968" not in texts[1]  # 0.18 is multiplied, as in the other


def test_the_two_texts_of_an_exponent():
    near, far = (scaling_in_pieces(const(1.0), apart=False, hidden=hidden) for hidden in (False, True))
    assert exponent_text(near, "x", "shift", TRITON) == "tl.fma(x, 1.4426950408889634, -(shift * 1.4426950408889634))"
    assert exponent_text(far, "x", "shift", TRITON).startswith(f"tl.fma((x - {FAR}, shift, 0.0)), ")
    assert decay_text(far, "x", "shift", TRITON).startswith(f"(x - {FAR}, shift, 0.0)) * ")
