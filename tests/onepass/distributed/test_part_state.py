"""States of parts of the keys merge to the whole; gradients of parts add up to it, derived ones and autograd's."""

import math

import pytest
import torch

import onepass
from onepass.compiler.options import Options
from onepass.distributed.exchange import ALONE
from onepass.distributed.part_state import PartState
from onepass.distributed.pieces import Pieces
from onepass.distributed.schedules import Shards, merged_with
from onepass.distributed.shared_attention import Run, SharedAttention, Sides, proved

SIDES = Sides({0: 2, 3: 0}, {1: 2, 2: 2, 4: 0})
LENGTHS = (4, 1, 6)
pytestmark = pytest.mark.usefixtures("fresh")


def causal(q, k, v, i, j):
    return torch.softmax((q @ k.mT / 3).masked_fill(j > i[:, None], -math.inf), -1) @ v


def problem(dtype):
    """Queries of which the last has no key in most parts; scores are so large that exponentials overflow."""
    torch.manual_seed(0)
    q, k, v = (torch.randn(1, 2, n, 8, dtype=dtype) for n in (5, 11, 11))
    return [q * 60, k, v, torch.tensor([10, 7, 3, 5, 0]), torch.arange(11)]


def parts_of(tensors):
    shards = [tensors[number].split(LENGTHS, axis) for number, axis in SIDES.keys.items()]
    return [SIDES.with_keys(tensors, list(keys)) for keys in zip(*shards, strict=True)]


@pytest.mark.sampled(2)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize("derived", [True, False], ids=["derived backward", "autograd"])
def test_parts_add_up(dtype, derived):
    tensors, needed = problem(dtype), [True, True, True, False, False]
    tensors = [x.requires_grad_(n) for x, n in zip(tensors, needed, strict=True)]
    attention = SharedAttention(causal, SIDES, Options.read({"inner": "eager"}), proved(causal, tensors, SIDES))
    exact = [x.detach().double().requires_grad_() for x in tensors[:3]]
    right = causal(*exact, *tensors[3:])
    grad = torch.randn(right.shape, dtype=dtype)
    gradients = torch.autograd.grad(right, exact, grad.double())

    whole = None
    for given in parts_of(tensors):
        whole = merged_with(whole, attention.part(given).state(given))
    tolerance = dict(rtol=1e-3, atol=1e-3) if dtype == torch.float32 else dict(rtol=1e-9, atol=1e-9)
    torch.testing.assert_close(whole.output.double(), right, **tolerance)

    each = []
    for given in parts_of(tensors):
        part: PartState = attention.part(given)
        assert part.why_not == ""
        if not derived:
            part._given = None
        each.append(part.gradients(given, needed, whole, grad))
    assert all(found[3:] == [None, None] for found in each)
    scale = float(gradients[0].abs().max())
    queries = sum(found[0] for found in each).double()
    torch.testing.assert_close(queries / scale, gradients[0] / scale, **tolerance)
    for number in (1, 2):
        keys = torch.cat([found[number] for found in each], 2).double()
        scale = float(gradients[number].abs().max())
        torch.testing.assert_close(keys / scale, gradients[number] / scale, **tolerance)


def test_a_part_without_a_kept_key_does_not_count():
    nothing = onepass.State(torch.full((1, 2), math.nan), torch.full((1, 1), -math.inf))
    something = onepass.State(torch.tensor([[3.0, -1.0]]), torch.tensor([[0.5]]))
    for one, other in ((nothing, something), (something, nothing)):
        merged = merged_with(merged_with(None, one), other)
        torch.testing.assert_close(merged.output, torch.tensor([[3.0, -1.0]]))
        torch.testing.assert_close(merged.logsumexp, torch.tensor([[0.5]]))
    empty = merged_with(merged_with(None, nothing), nothing)
    assert torch.equal(empty.output, torch.zeros(1, 2)) and torch.equal(empty.logsumexp, nothing.logsumexp)


def with_sink(q, k, v, i, j, sinks):
    scores = (q @ k.mT / 3).masked_fill(j > i[:, None], -math.inf)
    return torch.softmax(torch.cat([scores, sinks.view(1, 2, 1, 1).expand(1, 2, len(i), 1)], -1), -1)[..., :-1] @ v


@pytest.mark.parametrize("sinks", [(-math.inf, 30.0), (0.5, -80.0), (-1e5, 1e5)], ids=str)
def test_sinks_are_merged_once(sinks):
    """Of rows without a key, whose result is 0, and of rows whose scores are far below the sink, and far above."""
    tensors = [*problem(torch.float32), torch.tensor(sinks)]
    tensors[0] /= 20  # exponentials that are all 0 but one leave no gradient to compare
    tensors[3] = torch.tensor([10, 7, 3, 5, 0] if -math.inf in sinks else [10, -1, 3, 5, 0])
    needed = [True, True, True, False, False, True]
    tensors = [x.requires_grad_(n) for x, n in zip(tensors, needed, strict=True)]
    exact = [x.detach().double().requires_grad_() if n else x for x, n in zip(tensors, needed, strict=True)]
    right = with_sink(*exact)
    grad = torch.randn(right.shape)
    wanted = [0, 1, 2, 5]
    gradients = torch.autograd.grad(right, [exact[k] for k in wanted], grad.double())

    attention = SharedAttention(with_sink, SIDES, Options.read({"inner": "eager"}), proved(with_sink, tensors, SIDES))
    run = Run(attention, attention, Shards(ALONE, ALONE, [[11]], [*SIDES.keys.values()]), Pieces())
    result = run(tensors)
    torch.testing.assert_close(result.double(), right, rtol=1e-3, atol=1e-3)
    found = torch.autograd.grad(result, [tensors[k] for k in wanted], grad)
    for mine, expected in zip(found, gradients, strict=True):
        scale = max(float(expected.abs().max()), 1e-2)
        torch.testing.assert_close(mine.double() / scale, expected / scale, rtol=1e-3, atol=1e-3)
