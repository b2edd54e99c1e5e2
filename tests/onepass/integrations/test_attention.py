"""Attention in plain PyTorch: each argument against float64 written another way, rows without keys, gradients."""

import math

import pytest
import torch
from torch.nn.functional import scaled_dot_product_attention

from onepass.integrations.attention import AttentionVariant, attend

PLAIN = AttentionVariant(scaling=0.25)


def inputs(heads=4, key_heads=2, queries=5, keys=5, dtype=torch.float64):
    torch.manual_seed(0)
    sizes = ((heads, queries), (key_heads, keys), (key_heads, keys))
    return [torch.randn(2, count, length, 8, dtype=dtype, requires_grad=True) for count, length in sizes]


def library(q, k, v, **given):
    """torch's own attention, with the axes of a layer's result."""
    return scaled_dot_product_attention(q, k, v, scale=0.25, enable_gqa=True, **given).transpose(1, 2)


def by_hand(q, k, v, change):
    k, v = (x.repeat_interleave(q.shape[1] // x.shape[1], dim=1) for x in (k, v))
    weights = change(torch.einsum("bhid,bhjd->bhij", q, k) * 0.25)
    return torch.einsum("bhij,bhje->bihe", weights, v)


@pytest.mark.parametrize(("heads", "key_heads"), [(4, 4), (4, 2), (6, 2), (4, 1)])
def test_heads_in_groups_share_keys(heads, key_heads):
    q, k, v = inputs(heads, key_heads)
    torch.testing.assert_close(attend(q, k, v, variant=PLAIN), library(q, k, v))


def test_a_causal_query_sees_the_keys_up_to_its_own():
    q, k, v = inputs()
    result = attend(q, k, v, variant=AttentionVariant(0.25, causal=True))
    torch.testing.assert_close(result, library(q, k, v, is_causal=True))


@pytest.mark.parametrize("boolean", [True, False])
def test_a_mask_is_boolean_or_added_and_a_row_without_keys_is_zero(boolean):
    q, k, v = inputs()
    mask = torch.ones(2, 1, 5, 5, dtype=torch.bool).tril()
    mask[0, :, :, :2] = False
    given = mask if boolean else torch.zeros(2, 1, 5, 5, dtype=torch.float64).masked_fill(~mask, -math.inf)
    result = attend(q, k, v, given, variant=PLAIN)
    torch.testing.assert_close(result, library(q, k, v, attn_mask=mask))
    assert not result[0, :2].any()
    if boolean:  # through the softmax of added -∞ alone, autograd's gradients are NaN
        result.square().sum().backward()
        assert all(x.grad.isfinite().all() for x in (q, k, v))


def test_the_cap_is_before_bias_and_mask():
    q, k, v = inputs()
    bias, mask = torch.randn(1, 4, 5, 5, dtype=torch.float64), torch.ones(5, 5, dtype=torch.bool).tril()

    def change(scores):
        return (torch.tanh(scores / 0.5) * 0.5 + bias).masked_fill(~mask, -math.inf).softmax(-1)

    result = attend(q, k, v, mask, bias, variant=AttentionVariant(0.25, softcap=0.5))
    torch.testing.assert_close(result, by_hand(q, k, v, change))


def test_a_sink_takes_weight_for_no_value():
    q, k, v = inputs()
    sinks = torch.randn(4, dtype=torch.float64)

    def change(scores):
        sink = sinks.exp()[:, None, None]
        return scores.exp() / (scores.exp().sum(-1, keepdim=True) + sink)

    torch.testing.assert_close(attend(q, k, v, sinks=sinks, variant=PLAIN), by_hand(q, k, v, change))


def test_a_row_of_only_a_sink_is_zero():
    q, k, v = inputs()
    none = torch.zeros(2, 1, 5, 5, dtype=torch.bool)
    assert not attend(q, k, v, none, sinks=torch.zeros(4, dtype=torch.float64), variant=PLAIN).any()


def test_dropped_weights_are_zero_and_the_others_grow():
    q, k, _ = inputs(keys=8)
    values = torch.eye(8, dtype=torch.float64).expand(2, 2, 8, 8)
    kept = attend(q, k, values, variant=PLAIN)
    dropped = attend(q, k, values, variant=AttentionVariant(0.25, dropout=0.5))
    assert 0 < (dropped == 0).sum() < dropped.numel()
    torch.testing.assert_close(dropped, torch.where(dropped == 0, 0.0, 2 * kept))


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision_is_as_near_as_the_librarys(dtype):
    q, k, v = (x.detach() for x in inputs(dtype=dtype))
    exact = library(*(x.double() for x in (q, k, v)))
    own, others = (((f - exact).abs().max()) for f in (attend(q, k, v, variant=PLAIN).double(), library(q, k, v)))
    assert attend(q, k, v, variant=PLAIN).dtype == dtype
    assert own <= 4 * others + 1e-3
