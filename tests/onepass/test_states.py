"""States of sets of keys merge to the state of all keys, in any order and tree; they are plain PyTorch, and fused."""

import math
from functools import reduce

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import onepass
from onepass import State, merge, merge_over, state, state_of
from onepass.api.backend import onepass_backend

LARGE = (0.0, 50.0, 800.0)  # of scores: exp of the last overflows in float64


def drawn(queries, keys, width=8, seed=0, large=0.0):
    torch.manual_seed(seed)
    q, k, v = (torch.randn(2, n, width, dtype=torch.float64) for n in (queries, keys, keys))
    return q * (1 + large), k, v


def assert_same(one: State, other: State):
    for mine, right in zip(one, other, strict=True):
        torch.testing.assert_close(mine, right, rtol=1e-10, atol=1e-10)


@given(sizes=st.lists(st.integers(0, 9), min_size=1, max_size=5), seed=st.integers(0, 99), large=st.sampled_from(LARGE))
@settings(max_examples=60, deadline=None)
def test_any_partition_and_any_tree(sizes, seed, large):
    """Sets without keys are among them, and all of them may be."""
    q, k, v = drawn(3, sum(sizes), seed=seed, large=large)
    parts = [state(q, *part) for part in zip(k.split(sizes, 1), v.split(sizes, 1), strict=True)]
    whole = state(q, k, v)
    assert_same(merge(*parts), whole)
    assert_same(reduce(merge, parts), whole)
    assert_same(reduce(merge, parts[::-1]), whole)
    assert_same(merge_over(State(*map(torch.stack, zip(*parts, strict=True))), 0), whole)


def test_a_state_is_attention_and_its_logarithm():
    q, k, v = drawn(5, 20)
    scores = q @ k.mT * 0.3
    output, total = state(q, k, v, scale=0.3)
    torch.testing.assert_close(output, scores.softmax(-1) @ v)
    torch.testing.assert_close(total, scores.logsumexp(-1, keepdim=True))
    assert_same(state_of(scores, v), State(output, total))


def test_rows_without_a_key_are_zero_and_change_nothing():
    q, k, v = drawn(4, 6)
    mask = torch.ones(4, 6, dtype=torch.bool)
    mask[1] = False
    masked, added = state(q, k, v, mask=mask), state(q, k, v, mask=torch.where(mask, 0.0, -math.inf))
    assert_same(masked, added)
    assert (masked.output[:, 1] == 0).all() and (masked.logsumexp[:, 1] == -math.inf).all()
    assert_same(merge(masked, masked), merge_over(State(*(torch.stack([x, x]) for x in masked)), 0))
    assert_same(merge(masked, state(q, k, v, mask=~mask)), state(q, k, v))


def test_half_precision_keeps_its_dtype_and_a_wide_logarithm():
    q, k, v = (x.bfloat16() for x in drawn(4, 6))
    one = merge(state(q, k, v), state(q, k, v))
    assert one.output.dtype == torch.bfloat16 and one.logsumexp.dtype == torch.float32


def test_what_cannot_be_merged_is_an_error():
    q, k, v = drawn(4, 6)
    with pytest.raises(ValueError, match="at least one"):
        merge()
    for dim in (1, 2, -1, -2):
        with pytest.raises(ValueError, match="last two axes"):
            merge_over(state(q, k, v), dim)


def two_sets(q, k1, v1, k2, v2, mask):
    return merge(state(q, k1, v1, mask=mask), state(q, k2, v2))


def in_parts(q, k, v):
    """Keys of 4 parts, as one view."""
    k, v = (x.unflatten(1, (4, -1)).transpose(0, 1) for x in (k, v))
    return merge_over(state(q[None], k, v), 0)


@pytest.mark.sampled(1)
@pytest.mark.usefixtures("fresh")
@pytest.mark.parametrize("dynamic", [False, True])
def test_two_sets_are_one_pass(dynamic):
    q, k1, v1 = drawn(6, 40)
    _, k2, v2 = drawn(6, 24, seed=1)
    mask = torch.rand(6, 40) > 0.5
    mask[2] = False
    given = q, k1, v1, k2, v2, mask
    compiled = torch.compile(two_sets, backend=onepass_backend, dynamic=dynamic, options={"inner": "eager"})
    assert_same(State(*compiled(*given)), two_sets(*given))
    (region,) = onepass.reports()[-1].regions
    assert region.passes == (3, 1) and [len(kernel.loops) for kernel in region.kernels] == [2]


@pytest.mark.usefixtures("fresh")
def test_parts_of_one_sequence():
    given = drawn(6, 64)
    compiled = torch.compile(in_parts, backend=onepass_backend, options={"inner": "eager"})
    assert_same(State(*compiled(*given)), in_parts(*given))
    assert_same(State(*in_parts(*given)), state(*given))
    assert onepass.reports()[-1].regions


@pytest.mark.usefixtures("fresh")
def test_gradients_flow_through_merged_states():
    given = [x.requires_grad_() for x in (*drawn(6, 40), *drawn(6, 24, seed=1)[1:])]
    function = lambda q, k1, v1, k2, v2: merge(state(q, k1, v1), state(q, k2, v2)).output
    compiled = torch.compile(function, backend=onepass_backend, options={"inner": "eager"})
    right = torch.autograd.grad(function(*given).square().sum(), given)
    found = torch.autograd.grad(compiled(*given).square().sum(), given)
    for mine, own in zip(found, right, strict=True):
        torch.testing.assert_close(mine, own, rtol=1e-8, atol=1e-8)
