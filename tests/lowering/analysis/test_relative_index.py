"""What is a function of loop minus rows is stored as a vector of its values: plans, values and refusals.

The sizes from which it pays are lowered where values are checked; a test with the real ones says where it stays.
"""

import math

import numpy as np
import pytest
import torch

from onepass.compiler.optimize import optimize_all
from onepass.egraph.terms.ops import (
    cast,
    const,
    exp,
    iota,
    le,
    load,
    logical_and,
    lt,
    max_over,
    maximum,
    minimum,
    sum_over,
    where,
)
from onepass.egraph.terms.term import Dim, Tensor
from onepass.egraph.terms.traversal import subterms
from onepass.graph.trace import program_of
from onepass.lowering.analysis import relative_index
from onepass.lowering.analysis.relative_index import is_relative, relative_table
from onepass.lowering.hopper.kernel_form import bind
from onepass.lowering.planning.planner import build_plan
from onepass.lowering.tiled.executor import run_tiled, tiled_results
from onepass.lowering.triton.kernel import Facts, emit
from onepass.lowering.triton.launch import Launcher
from onepass.translate.translate import translate

I, J, H = Dim("i", 40), Dim("j", 300), Dim("h", 2)
TABLE, SLOPE = Tensor("table", "float32", (9,)), Tensor("slope", "float32", (2,))
number = lambda x: cast(x, "float32")


def far(q, k):
    return torch.arange(q.shape[-2])[:, None] - torch.arange(k.shape[-2])


def retention(q, k, v):
    decay = 1 - torch.exp2(-5.0 - torch.arange(q.shape[1]))
    distance = far(q, k)
    return torch.where(distance >= 0, q @ k.mT * decay[:, None, None] ** distance.clamp(min=0), 0.0).to(v.dtype) @ v


def clamped_table(q, k, v, table):
    return torch.softmax(q @ k.mT + table[:, far(q, k).clamp(-9, 9) + 9], -1) @ v


def buckets(q, k, v, table):
    """T5's, of the past: half exact, half logarithmic; the logarithm of zero is not chosen."""
    distance = far(q, k).clamp(min=0)
    coarse = 5 + (torch.log(distance / 5) / math.log(40 / 5) * 5).clamp(min=0).long().clamp(max=13)
    score = q @ k.mT + table[:, torch.where(distance < 5, distance, coarse)]
    return torch.softmax(score.masked_fill(far(q, k) < 0, -math.inf), -1) @ v


def near(q, k, v, width):
    return torch.softmax(q @ k.mT - torch.exp(-far(q, k).abs() / width[:, None, None]), -1) @ v


def causal_table(q, k, v, table):
    score = torch.where(far(q, k) >= 0, q @ k.mT + table[:, far(q, k).clamp(0, 39) // 2], -math.inf)
    return torch.softmax(score, -1) @ v


VARIANTS = {retention: [], clamped_table: [(2, 19)], buckets: [(2, 19)], near: [(2,)], causal_table: [(2, 20)]}


def made(function, rows=40, columns=300, width=16, dtype=torch.float32):
    """(plan, inputs by name, the result in float64)."""
    torch.manual_seed(0)
    shapes = [(1, 2, rows, width), *[(1, 2, columns, width)] * 2, *VARIANTS[function]]
    inputs = [torch.randn(s).to(dtype) for s in shapes]
    inputs[3:] = [x.abs() + 1 for x in inputs[3:]]
    program = program_of(function, *inputs)
    plan = optimize_all(translate(program).results).plan
    named = {entry.name: x for entry, x in zip(program.inputs, inputs, strict=True)}
    return plan, named, function(*(x.double() for x in inputs))


@pytest.fixture
def any_size(monkeypatch):
    monkeypatch.setattr(relative_index, "MIN_SCORES", 1)
    monkeypatch.setattr(relative_index, "MIN_SAVED_WORK", 1)


@pytest.mark.sampled(1)
@pytest.mark.parametrize("function", VARIANTS, ids=lambda f: f.__name__)
def test_values_are_those_of_float64(function, any_size):
    plan, inputs, exact = made(function)
    first, second = plan.kernels
    assert first.output.shape == (2, 339) and not first.loops and len(second.loops) == 1
    assert not any(n.op in ("pow", "log") for s in second.stores for n in subterms(s.term))
    (note,) = plan.notes
    assert "is a function of j_i = j - i + 39 alone" in note
    for results in (tiled_results(plan, inputs), Launcher(plan).results(inputs, {})):
        torch.testing.assert_close(results[0].double().cpu(), exact, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("function, rows, columns", [(retention, 300, 260), (clamped_table, 70, 24)])
def test_more_rows_than_columns(function, rows, columns, any_size):
    plan, inputs, exact = made(function, rows, columns)
    assert plan.kernels[0].output.shape == (2, rows + columns - 1)
    torch.testing.assert_close(tiled_results(plan, inputs)[0].double(), exact, rtol=1e-4, atol=1e-4)


@pytest.mark.sampled(4)
@pytest.mark.parametrize("function", VARIANTS, ids=lambda f: f.__name__)
def test_short_sequences_keep_one_kernel(function):
    assert len(made(function, 300, 300)[0].kernels) == 1


def test_hopper_reads_the_values_as_a_diagonal(any_size):
    plan, _, _ = made(retention, 512, 512, 64, torch.bfloat16)
    (diagonal,) = bind(plan.kernels[-1]).diagonals
    assert diagonal.tensor.name == plan.kernels[0].output.name and diagonal.step == 1


def test_what_is_stored_does_not_make_a_product_of_halves_one_of_single_precision(any_size):
    plan, _, _ = made(retention, 40, 300, 16, torch.bfloat16)
    assert "ieee" not in emit(plan.kernels[-1], plan, Facts(frozenset("ij"))).text


def test_a_guard_of_the_difference_stays_one(any_size):
    plan, _, _ = made(causal_table)
    assert plan.kernels[-1].loops[0].limits_only and len(plan.kernels[-1].loops[0].uppers) == 1


# What is a function of the difference, and what pays


DISTANCE = iota(J) - iota(I)
FUNCTIONS = {
    "difference": number(DISTANCE),
    "multiple": number(DISTANCE * const(3) + const(7)),
    "clamped": load(TABLE, minimum(maximum(DISTANCE, -4), 4) + const(4)),
    "power": (1 - number(load(SLOPE, iota(H)))) ** number(maximum(-DISTANCE, 0)),
    "chosen": where(lt(DISTANCE, const(3)), exp(number(DISTANCE)), const(0.0)),
    "compared": load(TABLE, where(le(iota(I), iota(J) + const(3)), minimum(maximum(DISTANCE, 0), 4), const(8))),
}
OTHERS = {
    "sum": number(iota(I) + iota(J)),
    "skewed": number(iota(J) * const(2) - iota(I)),
    "both": exp(number(iota(J))) * exp(number(-iota(I))),
    "rows too": load(TABLE, maximum(DISTANCE, iota(I))),
    "blocks": number(iota(J) // const(4) - iota(I) // const(4)),
    "compared sums": where(le(iota(I) + iota(J), const(3)), number(DISTANCE), const(0.0)),
    "compared rows": where(le(iota(I), const(3)), number(DISTANCE), const(0.0)),
}


@pytest.mark.parametrize("name", [*FUNCTIONS, *OTHERS])
def test_coordinates_must_cancel_in_sums(name):
    assert is_relative({**FUNCTIONS, **OTHERS}[name], I, J) == (name in FUNCTIONS)


@pytest.mark.parametrize("name", FUNCTIONS)
def test_only_what_costs_more_than_reading_it_is_stored(name, any_size):
    score = load(Tensor("x", "float32", (40, 300)), iota(I), iota(J))
    found = relative_table([score + FUNCTIONS[name]], I, J, (H,))
    assert (found is not None) == (name in ("clamped", "power", "compared"))
    assert found is None or found.part is FUNCTIONS[name]


def test_a_condition_a_dim_that_is_no_grid_and_symbolic_sizes_are_left(any_size):
    part, x = FUNCTIONS["power"], load(Tensor("x", "float32", (40, 300)), iota(I), iota(J))
    assert relative_table([x + part], I, J, (H,)) is not None
    assert relative_table([x + part], I, J, ()) is None
    assert relative_table([where(lt(part, const(0.5)), x, const(0.0))], I, J, (H,)) is None
    assert relative_table([x + part], I, Dim("j", "length"), (H,)) is None and relative_table([x], None, J, ()) is None


def test_an_index_that_only_a_guard_keeps_inside_is_never_read_outside(any_size):
    """table[j - i] for 0 <= j - i < 9, for other differences NaN lies there."""
    inside = logical_and(lt(const(-1), DISTANCE), lt(DISTANCE, const(9)))
    value = load(TABLE, maximum(DISTANCE, -1)) * load(Tensor("x", "float32", (40, 300)), iota(I), iota(J))
    plan = build_plan(sum_over(J, where(inside, value, const(0.0))), Tensor("out", "float32", (40,)), (I,))
    around = torch.full((109,), math.nan)
    around[50:59] = torch.arange(9.0)
    x = torch.randn(40, 300)
    i, j = np.arange(40)[:, None], np.arange(300)
    kept = (j - i >= 0) & (j - i < 9)
    exact = (np.where(kept, (j - i), 0) * x.double().numpy()).sum(1)
    assert len(plan.kernels) == 2
    given = {"table": around[50:59], "x": x}
    for result in (run_tiled(plan, given), Launcher(plan).results(given, {})[0]):
        np.testing.assert_allclose(result.double().cpu().numpy(), exact, rtol=1e-5, atol=1e-5)


def test_two_passes_over_one_loop_share_the_values(any_size):
    score = load(Tensor("x", "float32", (40, 300)), iota(I), iota(J)) + FUNCTIONS["clamped"]
    term = sum_over(J, exp(score - max_over(J, score)))
    plan = build_plan(term, Tensor("out", "float32", (40,)), (I,))
    assert [len(k.loops) for k in plan.kernels] == [0, 2]
    inputs = {"x": torch.randn(40, 300), "table": torch.randn(9)}
    i, j = torch.arange(40)[:, None], torch.arange(300)
    wanted = inputs["x"].double() + inputs["table"].double()[(j - i).clamp(-4, 4) + 4]
    wanted = (wanted - wanted.amax(1, keepdim=True)).exp().sum(1)
    torch.testing.assert_close(run_tiled(plan, inputs).double(), wanted, rtol=1e-5, atol=1e-5)
