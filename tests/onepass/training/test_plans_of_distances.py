"""Gradients of tables by distance: sums along the diagonals of a tile, by the loop that has the scores' gradients."""

import math

import pytest
import torch

from onepass.lowering.plan.kernel_config import TritonConfig
from onepass.lowering.triton.kernel import emit
from onepass.lowering.triton.slot_sums import SlotSum
from tests.support.backwards import backward_of, drawn, hold_gradients, kernel_of, leaves, part_bytes, parts

pytestmark = pytest.mark.usefixtures("fresh")
LENGTH = 4096


def relative(s, table, i, j):
    return s + table[:, j - i + s.shape[-2] - 1]


def clamped(s, table, i, j):
    return s + table[:, (j - i).clamp(-8, 8) + 8]


def buckets(s, table, i, j):
    """T5's buckets of distances to earlier keys: exact ones, then logarithmic ones."""
    n, half = (i - j).clamp(min=0), table.shape[0] // 2
    far = half + (torch.log(n.clamp(min=1).float() / half) / math.log(8) * half).long()
    return s + table[torch.where(n < half, n, far.clamp(max=2 * half - 1))].permute(2, 0, 1)


def every_second(s, table, i, j):
    return s + table[:, (i - j).abs() // 2]


def attend(change, mask=""):
    def function(q, k, v, table, *ids):
        s = q @ k.mT / math.sqrt(q.shape[-1])
        i, j = torch.arange(s.shape[-2])[:, None], torch.arange(s.shape[-1])
        s = change(s, table, i, j)
        if mask == "causal":
            s = s.masked_fill(j > i, -torch.inf)
        if mask == "window":
            s = s.masked_fill((j > i) | (i - j > 17), -torch.inf)
        if mask == "documents":
            s = s.masked_fill((ids[0][:, :, None] != ids[0][:, None, :])[:, None], -torch.inf)
        return s.softmax(-1).to(v.dtype) @ v

    return function


def grouped(q, k, v, table):
    n = q.shape[1] // k.shape[1]
    return attend(relative, "causal")(q, k.repeat_interleave(n, 1), v.repeat_interleave(n, 1), table)


def only_table(q, k, v, table):
    return attend(relative, "causal")(q.detach(), k.detach(), v.detach(), table)


SHAPE = (2, 8, LENGTH, 128)
TABLES = {"relative": (8, 2 * LENGTH - 1), "clamped": (8, 17), "buckets": (32, 8), "every_second": (8, LENGTH // 2)}


@pytest.mark.sampled(1)
@pytest.mark.parametrize("mask", ["", "causal"])
@pytest.mark.parametrize("change", [relative, clamped, buckets, every_second], ids=lambda f: f.__name__)
def test_the_loop_of_the_queries_adds_up_by_distance(change, mask):
    table = TABLES[change.__name__]
    plan = backward_of(attend(change, mask), *leaves(SHAPE, SHAPE, SHAPE, table))
    kernel = kernel_of(plan, "grad_q")
    (loop,) = kernel.loops
    (added,) = kernel.written_by(loop)
    assert added.output.shape == (2, 8, 2 * LENGTH - 1) and added.output.dtype == "float32"
    assert [i.dims == {kernel.rows, loop.dim} for i in added.places] == [False, False, True]
    assert part_bytes(plan) <= 4 * 2 * 8 * 2 * LENGTH * 4, "no more than a few numbers for each row"
    assert emit(kernel, plan).text.count("tl.dot") == 3 * emit(kernel, plan).text.count("in tl.range")
    assert all(len(shape) <= 3 and max(shape) < 2 * LENGTH for shape in parts(plan).values())


@pytest.mark.sampled(1)
@pytest.mark.parametrize("rows, columns", [(64, 64), (128, 64)])
def test_slots_take_a_thirty_second_of_rows_by_columns(rows, columns):
    plan = backward_of(attend(relative), *leaves(SHAPE, SHAPE, SHAPE, TABLES["relative"]))
    kernel = kernel_of(plan, "grad_q")
    (added,) = kernel.written_by(kernel.loops[0])
    found = SlotSum.of(kernel, added, TritonConfig(rows, columns, 4, 1), {}, {})
    assert math.prod(found.shape) * sum(found.tile) <= 16 * LENGTH**2 / 32


IDS = (torch.arange(75) * torch.tensor([[3], [5]]) // 75).long()
S, T = (2, 3, 75, 16), (2, 3, 61, 16)
CASES = {
    "relative": (attend(relative), S, S, S, (3, 149)),
    "relative, causal": (attend(relative, "causal"), S, S, S, (3, 149)),
    "relative, window": (attend(relative, "window"), S, S, S, (3, 149)),
    "relative, documents": (attend(relative, "documents"), S, S, S, (3, 149), IDS),
    "relative, more rows": (attend(relative), S, T, T, (3, 135)),
    "relative, more columns": (attend(relative, "causal"), T, S, S, (3, 135)),
    "clamped, causal": (attend(clamped, "causal"), S, S, S, (3, 17)),
    "clamped, documents": (attend(clamped, "documents"), S, S, S, (3, 17), IDS),
    "buckets": (attend(buckets), S, S, S, (16, 3)),
    "buckets, window": (attend(buckets, "window"), S, S, S, (16, 3)),
    "every second": (attend(every_second), S, S, S, (3, 38)),
    "grouped": (grouped, (1, 4, 75, 16), (1, 2, 75, 16), (1, 2, 75, 16), (4, 149)),
    "only the table": (only_table, S, S, S, (3, 149)),
    "long rows": (attend(relative, "causal"), (1, 2, 300, 16), (1, 2, 300, 16), (1, 2, 300, 16), (2, 599)),
    "long rows, buckets": (attend(buckets), (1, 2, 290, 16), (1, 2, 300, 16), (1, 2, 300, 16), (16, 2)),
}


@pytest.mark.slow
@pytest.mark.parametrize("executor", ["tiled", "triton"])
@pytest.mark.parametrize("name", CASES)
def test_gradients_are_those_of_float64(name, executor):
    function, *shapes = CASES[name]
    hold_gradients(function, drawn(shapes), executor)


@pytest.mark.slow
def test_two_runs_give_the_same_bits():
    inputs = [torch.randn(x, requires_grad=True) for x in (S, S, S, (3, 149))]
    options = {"inner": "eager", "strict": True, "executor": "triton"}
    compiled = torch.compile(attend(relative, "causal"), backend="onepass", options=options)
    runs = [torch.autograd.grad(compiled(*inputs).sum(), inputs[-1:])[0] for _ in range(3)]
    assert torch.equal(runs[0], runs[1]) and torch.equal(runs[0], runs[2])


def test_a_dynamic_length_has_the_same_plan():
    options = {"inner": "eager", "strict": True, "executor": "tiled"}
    compiled = torch.compile(attend(relative, "causal"), backend="onepass", options=options, dynamic=True)
    for rows in (75, 90, 120):
        inputs = [torch.randn(x, requires_grad=True) for x in ((1, 3, rows, 16),) * 3 + ((3, 2 * rows - 1),)]
        found = torch.autograd.grad(compiled(*inputs).square().sum(), inputs)
        exact = [x.detach().double().requires_grad_() for x in inputs]
        wanted = torch.autograd.grad(attend(relative, "causal")(*exact).square().sum(), exact)
        for a, b in zip(found, wanted, strict=True):
            torch.testing.assert_close(a.double(), b, rtol=1e-4, atol=1e-4)
