"""A tile of three coordinates of points had 64 columns, as a matrix would: registers for 262144 numbers a step."""

import inspect

import pytest
import torch

from onepass.bench.beyond_flex import invariant_points
from onepass.compiler.optimize import optimize_all
from onepass.graph.trace import program_of
from onepass.lowering.triton.kernel import emit
from onepass.lowering.triton.launch import Launcher
from onepass.translate.translate import translate

BATCH, ROWS, HEADS, WIDTH, POINTS, PAIR = 1, 20, 3, 16, 4, 128
MANY, FEWER = 48, 80  # heads, and columns of pairs that take less memory than their scores, which are then not stored


def tensors(rows=ROWS, heads=HEADS, dtype=torch.float32, pair=PAIR):
    torch.manual_seed(0)
    make = lambda *shape: torch.randn(BATCH, rows, *shape).to(dtype)
    flat = [make(heads, WIDTH) for _ in range(3)]
    points = [make(heads, POINTS, 3), make(heads, POINTS, 3), make(heads, 2 * POINTS, 3)]
    return [*flat, *points, make(rows, heads), make(rows, pair), torch.randn(heads).to(dtype)]


def plan_of(inputs):
    return optimize_all(translate(program_of(invariant_points, *inputs)).results).plan


def farthest(q, k, v):
    """Scores by the largest of three differences, each of a coordinate and the one before: a tile of three dims."""
    apart = (q[:, :, :, None, 1:] - k[:, :, None, :, :-1]).abs().amax(-1)
    return torch.softmax(-apart, -1) @ v


def test_dims_of_no_matrix_are_as_long_as_they_are():
    inputs = [torch.randn(1, 2, 64, width).bfloat16() for width in (4, 4, 16)]
    plan = optimize_all(translate(program_of(farthest, *inputs)).results).plan
    (kernel,) = plan.kernels
    text = emit(kernel, plan).text
    extents = dict(line.strip().split(" = tl.arange(0, ") for line in text.splitlines() if "= tl.arange(0, " in line)
    (coordinate,) = (d for d in kernel.held if d.size == 3)
    assert extents[coordinate.name] == "4)"


def test_rows_are_those_whose_pairs_are_a_matrix():
    """Queries would each have pairs of their own: 80 numbers for each score; heads share a query's."""
    plan = plan_of(tensors(rows=64, heads=MANY, dtype=torch.bfloat16, pair=FEWER))
    (kernel,) = plan.kernels
    assert kernel.rows.size == MANY and "tl.dot(weight" in emit(kernel, plan).text


def test_scores_no_larger_than_the_pairs_are_stored_and_every_product_is_one_of_matrices():
    plan = plan_of(tensors(rows=64, heads=12, dtype=torch.bfloat16))
    assert [kernel.rows.size for kernel in plan.kernels] == [64, 12]
    assert any("is stored between kernels" in note for note in plan.notes)
    first, second = (emit(kernel, plan).text for kernel in plan.kernels)
    assert "None, :, :" not in first + second
    loops = first.count("for j_start")  # scores, distances, values, and points whose coordinates are columns of one
    assert first.count("tl.dot(") == 4 * loops and first.count("tl.store(part0") == loops
    assert second.count("tl.dot(") == second.count("for j_start")
    sums = [line for line in second.splitlines() if "tl.sum(" in line]
    assert sums and all("tl.sum(weight" in line for line in sums)


def test_few_heads_leave_queries_as_rows():
    (kernel, *_) = plan_of(tensors(rows=64, heads=1, dtype=torch.bfloat16)).kernels
    assert kernel.rows.size == 64


@pytest.mark.sampled(1)
@pytest.mark.parametrize("heads, pair", [(1, PAIR), (HEADS, FEWER), (HEADS, PAIR), (12, PAIR), (MANY, FEWER)])
def test_it_computes_the_same(heads, pair):
    inputs = tensors(heads=heads, pair=pair)
    plan = plan_of(inputs)
    exact = invariant_points(*(x.double() for x in inputs))
    values = dict(zip(inspect.signature(invariant_points).parameters, inputs, strict=True))
    for result, expected in zip(Launcher(plan).results(values), exact, strict=True):
        assert (result - expected).abs().max() < 1e-4
