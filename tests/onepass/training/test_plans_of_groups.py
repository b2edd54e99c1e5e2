"""Gradients of tensors that several heads, or several batches, read: one loop over the pairs of member and row."""

import math

import pytest
import torch
import torch.nn.functional as F

import onepass
from onepass.lowering.executors import GLUON
from onepass.lowering.hopper.kernel_form import bind
from tests.support.backwards import backward_of, drawn, hold_gradients, leaves, parts

pytestmark = pytest.mark.usefixtures("fresh")


def enabled(q, k, v):
    return F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)


def repeated(q, k, v):
    n = q.shape[1] // k.shape[1]
    k, v = k.repeat_interleave(n, 1), v.repeat_interleave(n, 1)
    return F.scaled_dot_product_attention(q, k, v, is_causal=True)


def expanded(q, k, v):
    b, h, s, d = k.shape
    n = q.shape[1] // h
    k, v = (x[:, :, None].expand(b, h, n, s, d).reshape(b, n * h, s, d) for x in (k, v))
    return F.scaled_dot_product_attention(q, k, v, is_causal=True)


def einsum(q, k, v):
    q = q.unflatten(1, (k.shape[1], -1))
    s = torch.einsum("bgmid,bgjd->bgmij", q, k) / math.sqrt(q.shape[-1])
    i, j = torch.arange(s.shape[-2]), torch.arange(s.shape[-1])
    s = s.masked_fill(j > i[:, None], -torch.inf)
    return torch.einsum("bgmij,bgjd->bgmid", s.softmax(-1), v).flatten(1, 2)


def windows(q, k, v):
    q = q.unflatten(1, (k.shape[1], -1))
    s = torch.einsum("bgmid,bgjd->bgmij", q, k)
    i, j = torch.arange(s.shape[-2])[:, None], torch.arange(s.shape[-1])
    s = s.masked_fill((j > i) | (i - j > 17), -torch.inf)
    return torch.einsum("bgmij,bgjd->bgmid", s.softmax(-1), v).flatten(1, 2)


def no_mask(q, k, v):
    return F.scaled_dot_product_attention(q, k, v, enable_gqa=True)


def temperatures(q, k, v, t):
    q = q.unflatten(1, (k.shape[1], -1))
    s = torch.einsum("bgmid,bgjd->bgmij", q, k) * t[:, :, None, None]
    return torch.einsum("bgmij,bgjd->bgmid", s.softmax(-1), v).flatten(1, 2)


def documents(q, k, v, documents):
    q = q.unflatten(1, (k.shape[1], -1))
    s = torch.einsum("bgmid,bgjd->bgmij", q, k)
    kept = documents[:, :, None] == documents[:, None, :]
    s = s.masked_fill(~kept[:, None, None], -torch.inf)
    return torch.einsum("bgmij,bgjd->bgmid", s.softmax(-1), v).flatten(1, 2)


def shared_over_the_batch(q, k, v, documents):
    s = torch.einsum("bhid,hjd->bhij", q, k)
    s = s.masked_fill((documents[:, :, None] != documents[:, None, :])[:, None], -torch.inf)
    return torch.einsum("bhij,hjd->bhid", s.softmax(-1), v)


def shared_by_all(q, k, v):
    return torch.einsum("bhij,jd->bhid", torch.einsum("bhid,jd->bhij", q, k).softmax(-1), v)


SPELLINGS = (enabled, repeated, expanded, einsum)
LENGTH = 4096


def hold_one_loop(plan, outer: list[int]):
    """One kernel for the keys' gradient and the values', with nothing but a number for each row stored before it."""
    (shared,) = (k for k in plan.kernels if len(k.stores) > 1)
    (loop,) = shared.loops
    assert loop.dim.size == LENGTH and [d.size for d in loop.outer] == outer
    assert len(loop.accumulators) == 2 and shared.rows.size == LENGTH
    assert [len(k.stores) for k in plan.kernels].count(1) == len(plan.kernels) - 1
    assert all(math.prod(shape) <= 3 * 8 * LENGTH for shape in parts(plan).values())
    return shared, loop


@pytest.mark.sampled(1)
@pytest.mark.parametrize("function", SPELLINGS, ids=lambda f: f.__name__)
def test_the_members_of_a_group_are_around_the_loop(function):
    plan = backward_of(function, *leaves((2, 8, LENGTH, 128), (2, 2, LENGTH, 128), (2, 2, LENGTH, 128)))
    _, loop = hold_one_loop(plan, [4])
    assert [repr(limit.bound) for limit in loop.lowers] == ["j"] and loop.limits_only, "rows before the key are skipped"


def test_one_key_for_all_heads():
    hold_one_loop(backward_of(no_mask, *leaves((2, 8, LENGTH, 128), (2, 1, LENGTH, 128), (2, 1, LENGTH, 128))), [8])


def test_a_batch_that_shares_keys_is_around_the_loop_and_in_its_map():
    inputs = [*leaves((3, 8, LENGTH, 128), (8, LENGTH, 128), (8, LENGTH, 128)), torch.zeros(3, LENGTH).long()]
    _, loop = hold_one_loop(backward_of(shared_over_the_batch, *inputs), [3])
    assert loop.map is not None and loop.outer[0] in loop.map.dims


def test_hopper_has_no_form_of_it_yet():
    plan = backward_of(no_mask, *leaves((2, 8, LENGTH, 128), (2, 2, LENGTH, 128), (2, 2, LENGTH, 128)))
    shared, _ = hold_one_loop(plan, [4])
    assert "runs again for each h.member" in bind(shared) and GLUON.kernel_refusal(shared, plan) is not None


def test_a_dynamic_length_and_batch_have_the_same_loop():
    options = {"inner": "eager", "strict": True, "executor": "tiled"}
    compiled = torch.compile(no_mask, backend="onepass", options=options)
    for rows, batch in ((300, 5), (290, 3), (280, 6)):  # from the second one on, length and batch are dynamic
        inputs = leaves((batch, 4, rows, 16), (batch, 2, rows, 16), (batch, 2, rows, 16), dtype=torch.float32)
        with torch.no_grad():
            _ = [x.normal_() for x in inputs]
        got = torch.autograd.grad(compiled(*inputs).square().sum(), inputs)
        exact = [x.double().detach().requires_grad_() for x in inputs]
        want = torch.autograd.grad(no_mask(*exact).square().sum(), exact)
        for a, b in zip(got, want, strict=True):
            torch.testing.assert_close(a.double(), b, rtol=1e-4, atol=1e-4)
    found = onepass.reports()
    assert len(found) == 2 and all("for each h.member" in r.backward for one in found for r in one.regions)


IDS = (torch.arange(131) * torch.tensor([[3], [5]]) // 131).long()
CASES = {
    "enabled": (enabled, (2, 6, 131, 16), (2, 2, 131, 16), (2, 2, 131, 16)),
    "no mask, other length": (no_mask, (2, 4, 83, 16), (2, 2, 131, 16), (2, 2, 131, 24)),
    "one key": (enabled, (1, 3, 131, 16), (1, 1, 131, 16), (1, 1, 131, 16)),
    "einsum": (einsum, (2, 4, 131, 16), (2, 2, 131, 16), (2, 2, 131, 16)),
    "repeated": (repeated, (1, 4, 131, 16), (1, 2, 131, 16), (1, 2, 131, 16)),
    "windows": (windows, (1, 4, 131, 16), (1, 2, 131, 16), (1, 2, 131, 16)),
    "temperatures": (temperatures, (1, 4, 131, 16), (1, 2, 131, 16), (1, 2, 131, 16), (2, 2)),
    "documents": (documents, (2, 4, 131, 16), (2, 2, 131, 16), (2, 2, 131, 16), IDS),
    "shared over the batch": (shared_over_the_batch, (2, 2, 131, 16), (2, 131, 16), (2, 131, 16), IDS),
    "shared by all": (shared_by_all, (2, 3, 131, 16), (131, 16), (131, 16)),
}


@pytest.mark.sampled(1)
@pytest.mark.parametrize("executor", ["tiled", "triton"])
@pytest.mark.parametrize("name", CASES)
def test_gradients_are_those_of_float64(name, executor):
    function, *shapes = CASES[name]
    assert "for each" in hold_gradients(function, drawn(shapes), executor)
