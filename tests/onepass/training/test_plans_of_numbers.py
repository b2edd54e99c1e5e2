"""Gradients that lack the rows of the scores, as of slopes and temperatures: one more sum of a loop that is there."""

import math

import pytest
import torch

from onepass.egraph.terms.traversal import reduces
from tests.support.backwards import backward_of, drawn, hold_gradients, kernel_of, leaves, part_bytes, parts

pytestmark = pytest.mark.usefixtures("fresh")
LENGTH = 4096


def positions(s):
    return torch.arange(s.shape[-2])[:, None], torch.arange(s.shape[-1])


def everything(s, *_):
    return s


def causal(s, *_):
    i, j = positions(s)
    return s.masked_fill(j > i, -torch.inf)


def window(s, *_):
    i, j = positions(s)
    return s.masked_fill((j > i) | (i - j > 17), -torch.inf)


def documents(s, ids):
    return s.masked_fill((ids[:, :, None] != ids[:, None, :])[:, None], -torch.inf)


def attend(change, mask=everything):
    """Attention whose scores are changed by a learned tensor, which is the last input but the documents."""

    def function(q, k, v, learned, *rest):
        s = change(q @ k.mT / math.sqrt(q.shape[-1]), learned)
        return mask(s, *rest).softmax(-1).to(v.dtype) @ v

    return function


def by_slopes(s, slopes):
    i, j = positions(s)
    return s + slopes[:, None, None] * (j - i) * 0.1


def by_temperature(s, t):
    return s * t


def by_heads_temperature(s, t):
    return s * t[:, None, None]


def by_bias(s, bias):
    return s + bias


def by_sigmoid(s, bias):
    return (s + bias).sigmoid()


def grouped_slopes(q, k, v, slopes):
    n = q.shape[1] // k.shape[1]
    return attend(by_slopes, causal)(q, k.repeat_interleave(n, 1), v.repeat_interleave(n, 1), slopes)


def differential(q, k, v, lam, q2, k2):
    one, two = ((a @ b.mT / math.sqrt(a.shape[-1])).softmax(-1) for a, b in ((q, k), (q2, k2)))
    return (one - lam * two) @ v


def sinks(q, k, v, sink):
    s = q @ k.mT / math.sqrt(q.shape[-1])
    s = torch.cat([s, sink[None, :, None, None].expand(*s.shape[:3], 1)], -1)
    return s.softmax(-1)[..., :-1] @ v


SHAPE = (2, 8, LENGTH, 128)
ROW_SUMS = {  # the function, the learned tensor's shape, what else the loop of its part stores
    "slopes": (attend(by_slopes), (8,), "grad_v"),
    "slopes, causal": (attend(by_slopes, causal), (8,), "grad_v"),
    "temperature": (attend(by_temperature), (), "grad_v"),
    "temperature by head": (attend(by_heads_temperature), (8,), "grad_v"),
    "bias by key": (attend(by_bias), (2, 1, 1, LENGTH), "grad_v"),
    "bias by key and head": (attend(by_bias), (1, 8, 1, LENGTH), "grad_v"),
    "bias by query": (attend(by_sigmoid), (1, 8, LENGTH, 1), "grad_q"),
}


def kernel_with(plan, shape):
    """The kernel that stores the gradient of a tensor with as many elements as the shape has."""
    (found,) = (o.name for o in plan.outputs if math.prod(o.shape) == math.prod(shape))
    return kernel_of(plan, found)


@pytest.mark.sampled(1)
@pytest.mark.parametrize("name", ROW_SUMS)
def test_a_number_for_each_row_is_one_more_sum_of_a_loop(name):
    function, shape, beside = ROW_SUMS[name]
    plan = backward_of(function, *leaves(SHAPE, SHAPE, SHAPE, shape))
    last = kernel_with(plan, shape)
    (part,) = (t for t in last.inputs if t.name in parts(plan))
    assert part.shape == (2, 8, LENGTH) and part.dtype == "float32"
    shared = kernel_of(plan, part.name)
    (loop,) = shared.loops
    assert beside in {store.output.name for store in shared.stores} and len(loop.accumulators) == len(shared.stores)
    assert part_bytes(plan) == 2 * 4 * 2 * 8 * LENGTH, "and delta"
    assert [len(k.loops) for k in plan.kernels].count(1) <= 3 and {t.name for t in last.inputs} <= {part.name}


def test_the_mixing_number_of_two_softmaxes():
    plan = backward_of(differential, *leaves(SHAPE, SHAPE, SHAPE, (), SHAPE, SHAPE))
    (part,) = kernel_with(plan, ()).inputs
    assert part.shape == (2, 8, LENGTH) and "grad_v" in {s.output.name for s in kernel_of(plan, part.name).stores}
    assert len(plan.kernels) == 5


def test_heads_of_a_group_have_numbers_for_each_query():
    plan = backward_of(grouped_slopes, *leaves(SHAPE, (2, 2, LENGTH, 128), (2, 2, LENGTH, 128), (8,)))
    (part,) = kernel_with(plan, (8,)).inputs
    assert part.shape == (2, 8, LENGTH) and "grad_q" in {s.output.name for s in kernel_of(plan, part.name).stores}


def test_without_another_loop_the_rows_are_one_side():
    given = [x.detach() for x in leaves(SHAPE, SHAPE, SHAPE)]
    plan = backward_of(attend(by_slopes), *given, *leaves((8,)))
    shapes = sorted(parts(plan).values())
    assert shapes == [(8, 2, LENGTH)] * 2, "delta, and a number for each row"
    (loop,) = next(k for k in plan.kernels if k.loops and not k.loops[0].outer and k.rows.size == LENGTH).loops
    assert len(loop.accumulators) == 1


def test_numbers_of_many_heads_are_added_in_two_steps():
    shape = (64, 32, LENGTH, 128)
    plan = backward_of(attend(by_temperature), *leaves(shape, shape, shape, ()))
    assert sorted(parts(plan).values()) == [(64, 32), (64, 32, LENGTH), (64, 32, LENGTH)]


@pytest.mark.sampled(1)
@pytest.mark.parametrize("mask", [everything, causal])
def test_no_loop_sums_what_its_dim_alone_has(mask):
    """What the loop's dim alone has is stored before: each tile of rows would sum it again."""
    plan = backward_of(attend(by_slopes, mask), *leaves(SHAPE, SHAPE, SHAPE, (8,)))
    for kernel in plan.kernels:
        for loop in kernel.loops:
            found = {r for a in loop.accumulators for value in a.values for r in reduces(value)}
            assert found and all({kernel.rows, loop.dim} <= r.dims for r in found)


IDS = (torch.arange(75) * torch.tensor([[3], [5]]) // 75).long()
S = (2, 3, 75, 16)
CASES = {
    "slopes": (attend(by_slopes), S, S, S, (3,)),
    "slopes, causal": (attend(by_slopes, causal), S, S, S, (3,)),
    "slopes, window": (attend(by_slopes, window), S, S, S, (3,)),
    "slopes, documents": (attend(by_slopes, documents), S, S, S, (3,), IDS),
    "temperature": (attend(by_temperature), S, S, S, ()),
    "temperature by head, causal": (attend(by_heads_temperature, causal), S, S, S, (3,)),
    "temperature, documents": (attend(by_temperature, documents), S, S, S, (), IDS),
    "bias by key": (attend(by_bias), S, S, S, (2, 1, 1, 75)),
    "bias by key, window": (attend(by_bias, window), S, S, S, (1, 3, 1, 75)),
    "bias by query": (attend(by_sigmoid), S, S, S, (1, 3, 75, 1)),
    "grouped slopes": (grouped_slopes, (1, 4, 75, 16), (1, 2, 75, 16), (1, 2, 75, 16), (4,)),
    "differential": (differential, S, S, S, (), S, S),
    "sinks": (sinks, S, S, S, (3,)),
}


@pytest.mark.sampled(1)
@pytest.mark.parametrize("executor", ["tiled", "triton"])
@pytest.mark.parametrize("name", CASES)
def test_gradients_are_those_of_float64(name, executor):
    function, *shapes = CASES[name]
    hold_gradients(function, drawn(shapes), executor)


@pytest.mark.sampled(1)
@pytest.mark.parametrize("executor", ["tiled", "triton"])
def test_long_rows_of_a_part_are_those_of_float64(executor):
    """Rows that are long for a tile: parts are stored, which shorter ones need not be."""
    shape = (1, 2, 300, 16)
    inputs = [torch.randn(x) for x in (shape, shape, shape, (2,))]
    hold_gradients(attend(by_slopes, causal), inputs, executor)


def test_a_gradient_of_half_precision_is_rounded_once():
    shape = (1, 2, 300, 16)
    inputs = [torch.randn(x).bfloat16() for x in (shape, shape, shape)]
    hold_gradients(attend(by_bias), [*inputs, torch.randn(1, 1, 1, 300).bfloat16()], "tiled", allowed=1e-2)
