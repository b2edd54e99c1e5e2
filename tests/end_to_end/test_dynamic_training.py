"""Training with sizes that change: one graph for all lengths and batches, and float64's gradients at each of them.

torch itself makes a graph of its own for a size of 1.
"""

import math

import pytest
import torch
from torch.utils.checkpoint import checkpoint

import onepass
from onepass.api.backend import onepass_backend

pytestmark = pytest.mark.usefixtures("fresh")
INNER = ["eager", "inductor"]
SIZES = [(3, 40), (3, 71), (5, 127), (2, 13), (7, 2)]  # of batch and length


def relative(q, k, v, table, ids):
    """Causal attention within documents, with a learned table by clamped distance."""
    at = torch.arange(q.shape[2])
    apart = at[:, None] - at
    score = q @ k.mT / 4 + table[apart.clamp(0, 7)].permute(2, 0, 1)
    hidden = (apart < 0) | (ids[:, None, :, None] != ids[:, None, None, :])
    return torch.softmax(score.masked_fill(hidden, -math.inf), -1) @ v


def grouped(q, k, v, table, ids):
    """Two query heads of each key head, and slopes that are a row of the table."""
    keys, values = (x.repeat_interleave(2, 1) for x in (k[:, :1], v[:, :1]))
    at = torch.arange(q.shape[2])
    score = q @ keys.mT / 4 - table[0, :, None, None] * (at[:, None] - at).abs()
    return torch.softmax(score, -1) @ values


def checkpointed(*given):
    return checkpoint(relative, *given, use_reentrant=False)


FUNCTIONS = [relative, grouped, checkpointed]


def inputs(batch, length):
    torch.manual_seed(batch * 1000 + length)
    heads = [torch.randn(batch, 2, length, 16) for _ in range(3)]
    return [*heads, torch.randn(8, 2), torch.arange(length).expand(batch, length) // 50]


def leaves(given, kind):
    return [x.to(kind, copy=True).requires_grad_() if x.is_floating_point() else x.clone() for x in given]


def assert_as_in_float64(run, function, given):
    mine, exact = leaves(given, torch.float32), leaves(given, torch.float64)
    for call, own in ((run, mine), (function, exact)):
        call(*own).square().mean().backward()
    for x, right in zip(mine[:4], exact, strict=False):
        torch.testing.assert_close(x.grad, right.grad, check_dtype=False, atol=1e-5, rtol=1e-4)


def regions():
    return [region for report in onepass.reports() for region in report.regions]


def compiled(function, inner, **more):
    return torch.compile(function, backend=onepass_backend, options={"inner": inner, "strict": True}, **more)


@pytest.mark.slow
@pytest.mark.parametrize("inner", INNER)
@pytest.mark.parametrize("function", FUNCTIONS)
def test_one_graph_serves_all_sizes(function, inner):
    run = compiled(function, inner, dynamic=True)
    for size in SIZES:
        assert_as_in_float64(run, function, inputs(*size))
    assert len(onepass.reports()) == 1
    (region,) = regions()
    assert region.backward.startswith("derived") and not any("some sizes" in note for note in region.notes)


@pytest.mark.slow
@pytest.mark.parametrize("function", FUNCTIONS)
def test_sizes_of_one_are_right(function):
    run = compiled(function, "eager", dynamic=True)
    for size in (*SIZES[:2], (3, 1), (1, 40), (1, 1), (4, 29)):
        assert_as_in_float64(run, function, inputs(*size))
    assert len(onepass.reports()) == 4


@pytest.mark.slow
@pytest.mark.parametrize("inner", INNER)
def test_marked_axes_need_no_second_graph(inner):
    run = compiled(relative, inner)
    for size in SIZES:
        given = leaves(inputs(*size), torch.float32)
        for x in given[:3]:
            torch._dynamo.mark_dynamic(x, 0)
            torch._dynamo.mark_dynamic(x, 2)
        torch._dynamo.mark_dynamic(given[4], 0)
        torch._dynamo.mark_dynamic(given[4], 1)
        exact = leaves(inputs(*size), torch.float64)
        for call, own in ((run, given), (relative, exact)):
            call(*own).square().mean().backward()
        for x, right in zip(given[:4], exact, strict=False):
            torch.testing.assert_close(x.grad, right.grad, check_dtype=False, atol=1e-5, rtol=1e-4)
    assert len(onepass.reports()) == 1 and len(regions()) == 1


@pytest.mark.slow
def test_a_length_that_changes_unasked_needs_a_second_graph_and_no_third():
    run = compiled(relative, "eager")
    for length in (40, 41, 43, 97, 5):
        assert_as_in_float64(run, relative, inputs(3, length))
    assert len(onepass.reports()) == 2


@pytest.mark.slow
def test_which_gradients_are_needed_changes_with_the_length():
    run = compiled(grouped, "eager", dynamic=True)
    for length, frozen in ((40, ()), (41, (3,)), (53, ()), (59, (3,)), (61, ())):
        mine, exact = (leaves(inputs(3, length), kind) for kind in (torch.float32, torch.float64))
        for call, own in ((run, mine), (grouped, exact)):
            for number in frozen:
                own[number].requires_grad_(False)
            call(*own).square().mean().backward()
        for x, right in zip(mine[:4], exact, strict=False):
            assert (x.grad is None) == (right.grad is None)
            if x.grad is not None:
                torch.testing.assert_close(x.grad, right.grad, check_dtype=False, atol=1e-5, rtol=1e-4)
    assert len(onepass.reports()) == 2
