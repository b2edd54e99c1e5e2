"""Softmax attention itself in the ways people write it, and the results that are returned beside it."""

import math

import torch
import torch.nn.functional as F

from tests.support.spellings import ALL, CAUSAL, GROUPED, PLAIN, attend, causal_sdpa, groups_by_repeat_interleave
from tests.variants import Variant, heads


def by_exp_and_sum(q, k, v):
    weights = torch.exp(q @ k.mT / math.sqrt(q.shape[-1]))
    return weights / weights.sum(-1, keepdim=True) @ v


def division_last(q, k, v):
    weights = torch.exp(q @ k.mT / math.sqrt(q.shape[-1]))
    return (weights @ v) / weights.sum(-1, keepdim=True)


def safe_division_last(q, k, v):
    scores = q @ k.mT / math.sqrt(q.shape[-1])
    weights = torch.exp(scores - scores.amax(-1, keepdim=True))
    return (weights @ v) / weights.sum(-1, keepdim=True)


def by_max_values(q, k, v):
    scores = q @ k.mT / math.sqrt(q.shape[-1])
    weights = (scores - scores.max(-1, keepdim=True).values).exp()
    return weights.div(weights.sum(-1, keepdim=True)).matmul(v)


def by_logsumexp(q, k, v):
    scores = q @ k.mT / math.sqrt(q.shape[-1])
    return torch.exp(scores - torch.logsumexp(scores, -1, keepdim=True)) @ v


def by_log_softmax(q, k, v):
    return F.log_softmax(q @ k.mT / math.sqrt(q.shape[-1]), -1).exp() @ v


def by_softmin(q, k, v):
    return F.softmin(-(q @ k.mT) / math.sqrt(q.shape[-1]), -1) @ v


def by_baddbmm(q, k, v):
    batch, count, rows, width = q.shape
    q, k, v = (x.reshape(batch * count, -1, width) for x in (q, k, v))
    empty = torch.empty(batch * count, rows, k.shape[1], dtype=q.dtype)
    scores = torch.baddbmm(empty, q, k.transpose(1, 2), beta=0, alpha=1 / math.sqrt(width))
    return torch.bmm(scores.softmax(-1), v).view(batch, count, rows, width)


def by_einsum_out_of_order(q, k, v):
    scores = torch.einsum("bhid,bhjd->bijh", q, k) / math.sqrt(q.shape[-1])
    return torch.einsum("bijh,bhjd->bhid", scores.softmax(2), v)


def by_einsum_of_rows(q, k, v):
    q, k, v = (x.transpose(1, 2) for x in (q, k, v))
    scores = torch.einsum("bqhd,bkhd->bhqk", q, k) / math.sqrt(q.shape[-1])
    return torch.einsum("bhqk,bkhd->bqhd", scores.softmax(-1), v).transpose(1, 2)


def by_broadcast(q, k, v):
    scores = (q.unsqueeze(-2) * k.unsqueeze(-3)).sum(-1) / math.sqrt(q.shape[-1])
    return (scores.softmax(-1).unsqueeze(-1) * v.unsqueeze(-3)).sum(-2)


def sequence_first(q, k, v):
    q, k, v = (x.permute(2, 0, 1, 3).flatten(1, 2).transpose(0, 1) for x in (q, k, v))
    return torch.bmm(torch.bmm(q, k.transpose(1, 2)).div(math.sqrt(q.shape[-1])).softmax(-1), v).unsqueeze(0)


def dropout_in_eval(q, k, v):
    return F.dropout(torch.softmax(q @ k.mT / math.sqrt(q.shape[-1]), -1), 0.1, training=False) @ v


def with_logsumexp(q, k, v):
    scores = q @ k.mT / math.sqrt(q.shape[-1])
    return scores.softmax(-1) @ v, scores.logsumexp(-1)


def with_logsumexp_by_hand(q, k, v):
    scores = q @ k.mT / math.sqrt(q.shape[-1])
    top = scores.amax(-1, keepdim=True)
    weights = torch.exp(scores - top)
    total = weights.sum(-1, keepdim=True)
    return (weights @ v) / total, (top + total.log()).squeeze(-1)


def with_largest(q, k, v):
    scores = q @ k.mT / math.sqrt(q.shape[-1])
    return scores.softmax(-1) @ v, scores.amax(-1)


def with_place(q, k, v):
    scores = q @ k.mT / math.sqrt(q.shape[-1])
    return scores.softmax(-1) @ v, scores.argmax(-1)


def with_weights(q, k, v):
    weights = torch.softmax(q @ k.mT / math.sqrt(q.shape[-1]), -1)
    return weights @ v, weights


def with_mean_weights(q, k, v):
    weights = torch.softmax(q @ k.mT / math.sqrt(q.shape[-1]), -1)
    return weights @ v, weights.mean(1)


def two_values(q, k, v):
    weights = torch.softmax(q @ k.mT / math.sqrt(q.shape[-1]), -1)
    return weights @ v, weights @ v.square()


def cross(q, k, v):
    return attend(q, k, v)


def sdpa_with_everything(q, k, v):
    mask = (torch.arange(k.shape[-2]) < k.shape[-2] - 7)[None, :]
    return F.scaled_dot_product_attention(q, k, v, attn_mask=mask, dropout_p=0.0, scale=0.3, enable_gqa=True)


def sdpa_with_everything_by_hand(q, k, v):
    times = q.shape[1] // k.shape[1]
    k, v = k.repeat_interleave(times, 1), v.repeat_interleave(times, 1)
    scores = (q @ k.mT * 0.3).masked_fill(torch.arange(k.shape[-2]) >= k.shape[-2] - 7, -math.inf)
    return scores.softmax(-1) @ v


_SELF = lambda: heads(2)
_PLAIN = (*PLAIN[1:], by_max_values, by_logsumexp, by_log_softmax, by_softmin, by_baddbmm, safe_division_last)
_PLAIN += (by_einsum_out_of_order, by_einsum_of_rows, sequence_first, dropout_in_eval)
assert len(ALL) == len(PLAIN) + len(CAUSAL) + len(GROUPED)
VARIANTS = [
    Variant("full", attend, _SELF, spellings=_PLAIN),
    Variant("full, without a maximum", by_exp_and_sum, _SELF, spellings=(division_last,)),
    Variant("full, products by broadcasting", by_broadcast, _SELF),
    Variant("causal", causal_sdpa, _SELF, spellings=tuple(f for f in CAUSAL if f is not causal_sdpa)),
    Variant("grouped queries", groups_by_repeat_interleave, lambda: heads(4, 2, 2), spellings=tuple(GROUPED[1:])),
    Variant("multi-query", groups_by_repeat_interleave, lambda: heads(4, 1, 1), spellings=tuple(GROUPED[1:])),
    Variant("cross attention", cross, lambda: heads(2, rows=37, columns=300)),
    Variant(
        "all arguments of SDPA",
        sdpa_with_everything,
        lambda: heads(4, 2, 2),
        spellings=(sdpa_with_everything_by_hand,),
    ),
    Variant("log-sum-exp beside the output", with_logsumexp, _SELF, spellings=(with_logsumexp_by_hand,)),
    Variant("largest score beside the output", with_largest, _SELF),
    Variant("place of the largest score beside the output", with_place, _SELF),
    Variant("weights beside the output", with_weights, _SELF, kernels=2, passes=2),
    Variant("mean weights beside the output", with_mean_weights, _SELF, kernels=2, passes=2, outside=("mean",)),
    Variant("two values under one softmax", two_values, _SELF),
]
