"""A tile of three coordinates of points had 64 columns, as a matrix would: registers for 262144 numbers a step."""

import inspect

import pytest
import torch

from onepass.bench.beyond import invariant_points
from onepass.capture import program_of
from onepass.lowering.triton_emit import emit
from onepass.lowering.triton_launch import Launcher
from onepass.pipeline import optimize_all
from onepass.translate import translate

BATCH, ROWS, HEADS, WIDTH, POINTS, PAIR = 1, 20, 3, 16, 4, 128


def tensors(rows=ROWS, heads=HEADS, dtype=torch.float32):
    torch.manual_seed(0)
    make = lambda *shape: torch.randn(BATCH, rows, *shape).to(dtype)
    flat = [make(heads, WIDTH) for _ in range(3)]
    points = [make(heads, POINTS, 3), make(heads, POINTS, 3), make(heads, 2 * POINTS, 3)]
    return [*flat, *points, make(rows, heads), make(rows, PAIR), torch.randn(heads).to(dtype)]


def plan_of(inputs):
    return optimize_all(translate(program_of(invariant_points, *inputs)).results).plan


def test_dims_of_no_matrix_are_as_long_as_they_are():
    plan = plan_of(tensors(rows=64, heads=12, dtype=torch.bfloat16))
    (kernel,) = plan.kernels
    text = emit(kernel, plan).text
    extents = dict(line.strip().split(" = tl.arange(0, ") for line in text.splitlines() if "= tl.arange(0, " in line)
    sizes = {d.name: d.size for d in kernel.held}
    short = {name for name, size in sizes.items() if size in (3, POINTS, 2 * POINTS)}
    assert len(short) >= 4
    for name in short:
        assert int(extents[name].rstrip(")")) == 1 << (sizes[name] - 1).bit_length()


def test_rows_are_those_whose_pairs_are_a_matrix():
    """Queries would each have pairs of their own: 128 numbers for each score; heads share a query's."""
    plan = plan_of(tensors(rows=64, heads=12, dtype=torch.bfloat16))
    (kernel,) = plan.kernels
    assert kernel.rows.size == 12 and "tl.dot(weight" in emit(kernel, plan).text


def test_few_heads_leave_queries_as_rows():
    (kernel, *_) = plan_of(tensors(rows=64, heads=1, dtype=torch.bfloat16)).kernels
    assert kernel.rows.size == 64


@pytest.mark.parametrize("heads", [1, HEADS, 12])
def test_it_computes_the_same(heads):
    inputs = tensors(heads=heads)
    plan = plan_of(inputs)
    exact = invariant_points(*(x.double() for x in inputs))
    values = dict(zip(inspect.signature(invariant_points).parameters, inputs, strict=True))
    for result, expected in zip(Launcher(plan).results(values), exact, strict=True):
        assert (result - expected).abs().max() < 1e-4
