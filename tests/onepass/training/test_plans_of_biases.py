"""Gradients of biases with rows and columns: written by a loop that has them, or a loop over the batch they lack."""

import math

import pytest
import torch

from onepass.lowering.cost import cheapest_plan, estimated_plan
from onepass.lowering.triton.kernel import emit
from tests.support.backwards import backward_of, drawn, hold_gradients, kernel_of, leaves, part_bytes, parts

pytestmark = pytest.mark.usefixtures("fresh")
LENGTH = 4096


def masked(s, ids, mask):
    i, j = torch.arange(s.shape[-2])[:, None], torch.arange(s.shape[-1])
    if mask == "causal":
        return s.masked_fill(j > i, -torch.inf)
    if mask == "window":
        return s.masked_fill((j > i) | (i - j > 17), -torch.inf)
    if mask == "documents":
        return s.masked_fill((ids[:, :, None] != ids[:, None, :])[:, None], -torch.inf)
    return s


def biased(mask=""):
    def function(q, k, v, bias, *ids):
        s = q @ k.mT / math.sqrt(q.shape[-1]) + bias
        return masked(s, *(ids or (None,)), mask).softmax(-1).to(v.dtype) @ v

    return function


def only_bias(q, k, v, bias):
    return biased("causal")(q.detach(), k.detach(), v.detach(), bias)


def looked_up(q, k, v, table, index):
    return biased("causal")(q, k, v, table[:, index])


SHAPE = (2, 8, LENGTH, 128)


@pytest.mark.sampled(1)
@pytest.mark.parametrize("mask", ["", "causal"])
def test_a_bias_for_each_score_is_written_by_the_loop_of_the_queries(mask):
    plan = backward_of(biased(mask), *leaves(SHAPE, SHAPE, SHAPE, (2, 8, LENGTH, LENGTH)))
    assert len(plan.kernels) == 3 and part_bytes(plan) == 4 * 2 * 8 * LENGTH, "delta alone"
    kernel = kernel_of(plan, "grad_bias")
    (loop,) = kernel.loops
    assert kernel is kernel_of(plan, "grad_q") and [s.output.name for s in kernel.written_by(loop)] == ["grad_bias"]
    assert kernel.zeroed == (("grad_bias",) if mask else ())
    text = emit(kernel, plan).text
    assert text.count("tl.store(grad_bias") == 2 and text.count("tl.dot") == 3 * text.count("in tl.range")


@pytest.mark.sampled(1)
@pytest.mark.parametrize("mask", ["", "causal"])
def test_a_sum_over_a_batch_of_one_is_no_sum(mask):
    shape = (1, 8, LENGTH, 128)
    plan = backward_of(biased(mask), *leaves(shape, shape, shape, (8, LENGTH, LENGTH)))
    kernel = kernel_of(plan, "grad_bias")
    assert kernel is kernel_of(plan, "grad_q") and part_bytes(plan) == 4 * 8 * LENGTH, "delta alone"
    assert all(not loop.outer and loop.tile for k in plan.kernels for loop in k.loops)


BATCHED = {
    "over a batch": ((2, 8, LENGTH, 128), (8, LENGTH, LENGTH), ["b_0"]),
    "over batch and heads": ((2, 8, LENGTH, 128), (1, 1, LENGTH, LENGTH), ["b_0", "h_0"]),
    "over the rows of an alignment": ((1, 512, 8, 1024, 32), (1, 1, 8, 1024, 1024), ["b_0"]),
    "over a few rows of an alignment": ((1, 128, 8, 256, 32), (1, 1, 8, 256, 256), ["b_0_rest"]),
}


@pytest.mark.sampled(1)
@pytest.mark.parametrize("name", BATCHED)
def test_a_bias_of_all_in_a_batch_has_a_loop_over_the_batch(name):
    shape, bias, dims = BATCHED[name]
    plan = backward_of(biased(), *leaves(shape, shape, shape, bias))
    kernel = next(k for k in plan.kernels if k.stores[0].output.shape[-2:] == bias[-2:] and k.columns)
    (loop,) = kernel.loops
    assert [d.name for d in loop.single] and sorted(d.name for d in loop.single) == dims and not loop.tile
    assert kernel.rows.size == kernel.columns[0].size == bias[-1] and len(kernel.held) == 2
    rows, split = math.prod(shape[:-1]), dims == ["b_0_rest"]
    others = [s for s in parts(plan).values() if not (split and s[-2:] == bias[-2:])]
    assert all(math.prod(s) <= rows for s in others), "no scores are stored"
    products = [text.count("tl.dot") for k in plan.kernels if (text := emit(k, plan).text)]
    assert len(plan.kernels) <= 4 + split and 2 in products


def test_a_sum_over_an_alignment_is_done_in_parts_where_its_programs_are_few():
    """8 heads of 2 x 2 tiles are 32 programs; in 8 parts they are 256."""
    shape, bias, _ = BATCHED["over a few rows of an alignment"]
    plan = backward_of(biased(), *leaves(shape, shape, shape, bias))
    kernel = kernel_of(plan, "grad_bias")
    (part,) = (s for s in parts(plan).values() if s[-2:] == bias[-2:])
    assert part == (8, 1, 8, 256, 256) or math.prod(part) == 8 * math.prod(bias)
    assert not kernel.loops and [d.size for d in kernel.held] == [8] and len(kernel.inputs) == 1
    assert any("what is stored chosen by estimated time" in note for note in plan.notes)
    assert any("is reduced in 8 parts of b_0 by the law reduction_in_blocks" in note for note in plan.notes)
    assert plan.read_back.endswith("reductions by the law reduction_in_blocks: 4 terms as asked for")


def test_gradients_of_a_bias_in_parts_are_those_of_float64(monkeypatch):
    monkeypatch.setattr(estimated_plan.PlanEstimates, "could_change", True)
    in_parts = lambda one, other: bool(one.choice.split) and not other.choice.split
    monkeypatch.setattr(cheapest_plan._Found, "pays", in_parts)
    shape, bias = (1, 6, 2, 24, 8), (1, 1, 2, 24, 24)
    plan = backward_of(biased(), *leaves(shape, shape, shape, bias, dtype=torch.float32))
    assert any(s[-2:] == bias[-2:] and math.prod(s) > math.prod(bias) for s in parts(plan).values())
    hold_gradients(biased(), drawn([shape, shape, shape, bias]), "tiled")


def test_of_a_long_table_at_indices_that_are_data_each_score_is_stored_once():
    index = torch.zeros(LENGTH, LENGTH, dtype=torch.long)
    plan = backward_of(looked_up, *leaves(SHAPE, SHAPE, SHAPE, (8, 4096)), index)
    assert part_bytes(plan) == 4 * 2 * 8 * LENGTH, "delta alone"
    large = [o for o in plan.outputs if o.shape[-2:] == (LENGTH, LENGTH)]
    assert [o.shape for o in large] == [(8, LENGTH, LENGTH)] and len(plan.outputs) == 4


def test_of_a_short_table_at_indices_that_are_data_no_scores_are_stored():
    index = torch.zeros(LENGTH, LENGTH, dtype=torch.long)
    plan = backward_of(looked_up, *leaves(SHAPE, SHAPE, SHAPE, (8, 32)), index)
    assert part_bytes(plan) == 4 * 2 * 8 * LENGTH * (1 + 32), "delta, and a number by key for each entry"
    assert all(o.shape[-2:] != (LENGTH, LENGTH) for o in plan.outputs) and len(plan.outputs) == 4


def test_where_all_pairs_of_a_tile_are_masked_the_batch_is_left_out():
    plan = backward_of(biased("causal"), *leaves(SHAPE, SHAPE, SHAPE, (8, LENGTH, LENGTH)))
    (kernel,) = (k for k in plan.kernels if k.columns)
    assert "in tl.range(0, tl.where(tl.max(" in emit(kernel, plan).text


IDS = (torch.arange(75) * torch.tensor([[3], [5]]) // 75).long()
S = (2, 3, 75, 16)
CASES = {
    "each score": (biased(), S, S, S, (2, 3, 75, 75)),
    "each score, causal": (biased("causal"), S, S, S, (2, 3, 75, 75)),
    "each score, window": (biased("window"), S, S, S, (2, 3, 75, 75)),
    "each score, documents": (biased("documents"), S, S, S, (2, 3, 75, 75), IDS),
    "each head": (biased(), S, S, S, (3, 75, 75)),
    "each head, causal": (biased("causal"), S, S, S, (3, 75, 75)),
    "each head, documents": (biased("documents"), S, S, S, (3, 75, 75), IDS),
    "each head of one, causal": (biased("causal"), (1, 3, 75, 16), (1, 3, 75, 16), (1, 3, 75, 16), (3, 75, 75)),
    "one for all, window": (biased("window"), S, S, S, (1, 1, 75, 75)),
    "each batch": (biased("causal"), S, S, S, (2, 1, 75, 75)),
    "pairs of an alignment": (biased(), (1, 5, 2, 40, 16), (1, 5, 2, 40, 16), (1, 5, 2, 40, 16), (1, 1, 2, 40, 40)),
    "a table at indices that are data": (looked_up, S, S, S, (3, 9), torch.arange(75 * 75).reshape(75, 75) % 7),
    "only the bias": (only_bias, S, S, S, (3, 75, 75)),
    "long rows, each score": (biased("causal"), (1, 2, 300, 16), (1, 2, 300, 16), (1, 2, 300, 16), (1, 2, 300, 300)),
    "long rows, each head": (biased("window"), (2, 1, 300, 16), (2, 1, 300, 16), (2, 1, 300, 16), (1, 300, 300)),
}


@pytest.mark.sampled(1)
@pytest.mark.parametrize("executor", ["tiled", "triton"])
@pytest.mark.parametrize("name", CASES)
def test_gradients_are_those_of_float64(name, executor):
    function, *shapes = CASES[name]
    hold_gradients(function, drawn(shapes), executor)
