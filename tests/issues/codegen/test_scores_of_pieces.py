"""With equal bits a row's exponents went by its program's terms: by constants, sizes and masks. A prefill whose mask is
a large number then had other bits than a decoding step, and rows hidden by one had NaN where a factor of the scores is
no power of two. After that each score was multiplied by such a factor, which took 0.05 of a prefill's time: only where
masks hide scores by -inf, and no number is made of places, is it left out of all programs alike.
"""

import math
from dataclasses import replace

import pytest
import torch

from onepass.compiler.optimize import optimize_all
from onepass.egraph.terms.ops import const, iota, load, make, reduce
from onepass.egraph.terms.term import Dim, Tensor
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


def capped(start, hidden, factor):
    def attend(q, k, v):
        i, j = start + torch.arange(q.shape[2])[:, None], torch.arange(k.shape[2])
        scores = 3 * torch.tanh(q @ k.mT * factor)
        return scores.masked_fill((j > i) | (j < i - 70), hidden).softmax(-1) @ v

    return attend


def with_sinks(start, hidden, factor):
    def attend(q, k, v):
        i, j = start + torch.arange(q.shape[2])[:, None], torch.arange(k.shape[2])
        scores = torch.where(j <= i, q @ k.mT * factor, hidden)
        sink = k.sum((2, 3), keepdim=True).expand(-1, -1, q.shape[2], -1)
        return torch.cat([scores, sink], -1).softmax(-1)[..., :-1] @ v

    return attend


def captured(function, inputs):
    """As a region is compiled, in short pieces."""
    program = program_of(function, *inputs)
    found = translate(program)
    plan = optimize_all(found.results, invariant=True).plan
    return found, replace(plan, piece=PIECE, factors_apart=not program.numbers_by_place)


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


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
@pytest.mark.parametrize("size", [1, 300])
@pytest.mark.parametrize("program", [causal, capped, with_sinks])
def test_a_factor_that_is_left_out_changes_no_bit_of_a_row_by_itself(program, size, dtype):
    """Of its last row a mask is left out, since it keeps all keys; the large scores of others are far apart."""
    q, k, v = inputs_of(dtype)
    q = q * torch.linspace(-size, size, 40).to(dtype)[:, None]
    start = KEYS - 40
    whole = result(program(start, -math.inf, 0.18), [q, k, v])
    assert same_bits(whole, result(program(start, -math.inf, 0.18), [q, k, v], parts=2))
    for row in (0, 17, 39):
        given = [q[:, :, row : row + 1].contiguous(), k, v]
        for parts in (1, 2):
            alone = result(program(start + row, -math.inf, 0.18), given, parts)
            assert same_bits(whole[:, :, row : row + 1], alone)
        first = [x[:1, :, : start + row + 1] for x in (k, v)]  # one sequence, of as many keys as the row sees
        alone = result(program(start + row, -math.inf, 0.18), [given[0][:1], *first])
        assert program is with_sinks or same_bits(whole[:1, :, row : row + 1], alone)
    right = program(start, -math.inf, 0.18)(q.double(), k.double(), v.double())
    error = 3e-2 if dtype == torch.bfloat16 else 1e-5 * size
    torch.testing.assert_close(whole.double(), right, atol=error, rtol=error)


def test_which_programs_leave_it_out():
    q, k, v = inputs_of(torch.bfloat16)
    for program, hidden, left_out in ((causal, -math.inf, True), (causal, -3e38, False), (added, -1e4, False)):
        texts = []
        for start, rows in ((0, 40), (KEYS - 1, 1)):
            _, plan = captured(program(start, hidden, 0.18), [q[:, :, :rows].contiguous(), k, v])
            facts = Facts(piece=PIECE, factors_apart=plan.factors_apart)
            texts.append(emit(plan.kernels[0], plan, facts).text)
        assert all(("* 0.18" in text, "0.25968" in text)[left_out] for text in texts)
        assert not any("= tl.dot" in line and "0.18" in line for text in texts for line in text.splitlines())
        assert all(("tl.fma(score, 0.25968" in text) == left_out for text in texts)


def test_a_mask_that_stays_in_the_scores_is_looked_through():
    i, d = Dim("i", 8), Dim("d", 16)
    score = reduce("sum", d, load(Tensor("x", "bfloat16", (8, 16)), iota(i), iota(d))) * 0.18
    kept, hidden = make("lt", (iota(i), const(5))), const(-math.inf)
    for masked in (make("where", (kept, score, hidden)), make("where", (kept, hidden, score))):
        found = scaling_in_pieces(masked, apart=False, hidden=False, any_factor=True)
        assert found.natural == 0.18 and not found.far and hidden in found.raw.args and found.raw.op == "where"
    finite = make("where", (kept, score, const(-1e9)))
    assert scaling_in_pieces(finite, apart=False, hidden=False, any_factor=True).natural == 1.0


def test_the_two_texts_of_an_exponent():
    near, far = (scaling_in_pieces(const(1.0), apart=False, hidden=hidden) for hidden in (False, True))
    assert exponent_text(near, "x", "shift", TRITON) == "tl.fma(x, 1.4426950408889634, -(shift * 1.4426950408889634))"
    assert exponent_text(far, "x", "shift", TRITON).startswith(f"tl.fma((x - {FAR}, shift, 0.0)), ")
    assert decay_text(far, "x", "shift", TRITON).startswith(f"(x - {FAR}, shift, 0.0)) * ")
