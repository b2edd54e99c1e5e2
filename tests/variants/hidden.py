"""Rows in which a mask hides every key: what eager answers there (NaN, zero or -∞) is part of the meaning."""

import torch
import torch.nn.functional as F

from tests.variants import Variant, heads
from tests.variants.masks import MINUS_INFINITY, scores_of


def hidden(q, k, kept):
    return scores_of(q, k).masked_fill(~kept, MINUS_INFINITY)


def nothing_but_the_sink(q, k, v, sinks, kept):
    scores = hidden(q, k, kept)
    column = sinks.reshape(1, -1, 1, 1).expand(scores.shape[0], -1, scores.shape[2], -1)
    return torch.softmax(torch.cat([scores, column], -1), -1)[..., :-1] @ v


def nothing_plus_one(q, k, v, kept):
    scores = hidden(q, k, kept)
    top = scores.amax(-1, keepdim=True).clamp(min=0)
    weights = torch.exp(scores - top)
    return weights / (torch.exp(-top) + weights.sum(-1, keepdim=True)) @ v


def no_key(q, k, v, kept):
    return hidden(q, k, kept).softmax(-1) @ v


def no_key_by_logsumexp(q, k, v, kept):
    scores = hidden(q, k, kept)
    return torch.exp(scores - scores.logsumexp(-1, keepdim=True)) @ v


def no_key_by_log_softmax(q, k, v, kept):
    return F.log_softmax(hidden(q, k, kept), -1).exp() @ v


def no_key_division_last(q, k, v, kept):
    scores = hidden(q, k, kept)
    weights = torch.exp(scores - scores.amax(-1, keepdim=True))
    return (weights @ v) / weights.sum(-1, keepdim=True)


def no_key_with_results(q, k, v, kept):
    scores = hidden(q, k, kept)
    return scores.softmax(-1) @ v, scores.logsumexp(-1), scores.amax(-1)


def no_key_in_the_first_set(q, k1, v1, k2, v2, kept):
    weights = torch.cat([hidden(q, k1, kept), scores_of(q, k2)], -1).softmax(-1)
    return weights[..., : k1.shape[-2]] @ v1 + weights[..., k1.shape[-2] :] @ v2


def no_key_in_the_first_set_merged(q, k1, v1, k2, v2, kept):
    s1, s2 = hidden(q, k1, kept), scores_of(q, k2)
    l1, l2 = s1.logsumexp(-1, keepdim=True), s2.logsumexp(-1, keepdim=True)
    o1, o2 = s1.softmax(-1) @ v1, s2.softmax(-1) @ v2
    top = torch.maximum(l1, l2)
    w1, w2 = torch.exp(l1 - top), torch.exp(l2 - top)
    return (o1 * w1 + o2 * w2) / (w1 + w2)


def no_key_differential(q, k, v, weight, kept):
    (q1, q2), (k1, k2) = q.chunk(2, 1), k.chunk(2, 1)
    return (hidden(q1, k1, kept).softmax(-1) - weight * hidden(q2, k2, kept).softmax(-1)) @ v


def no_key_by_sdpa(q, k, v, kept):
    return F.scaled_dot_product_attention(q, k, v, attn_mask=kept)


def no_key_gives_zero(q, k, v, kept):
    return torch.nan_to_num(hidden(q, k, kept).softmax(-1)) @ v


def no_key_gives_zero_by_isnan(q, k, v, kept):
    weights = hidden(q, k, kept).softmax(-1)
    return weights.masked_fill(weights.isnan(), 0.0) @ v


def no_key_gives_zero_by_where(q, k, v, kept):
    weights = hidden(q, k, kept).softmax(-1)
    return torch.where(torch.isnan(weights), torch.zeros_like(weights), weights) @ v


def no_key_gives_zero_behind(q, k, v, kept):
    return (hidden(q, k, kept).softmax(-1) @ v).nan_to_num(0.0)


def no_key_gives_zero_divided_by_hand(q, k, v, kept):
    scores = hidden(q, k, kept)
    weights = (scores - scores.amax(-1, keepdim=True)).exp()
    return (weights / weights.sum(-1, keepdim=True)).nan_to_num(nan=0.0, posinf=0.0, neginf=0.0) @ v


def _kept():
    kept = torch.rand(300, 300) > 0.5
    kept[[3, 17, 299]] = False
    return kept


_masked = lambda *more: lambda: [*heads(2), *(torch.randn(*shape) for shape in more), _kept()]
_two = lambda: [*heads(2), *heads(2, columns=40)[1:], _kept()]
VARIANTS = [
    Variant(
        "hidden rows", no_key, _masked(), spellings=(no_key_by_logsumexp, no_key_by_log_softmax, no_key_division_last)
    ),
    Variant(
        "hidden rows give zero",
        no_key_gives_zero,
        _masked(),
        spellings=(
            no_key_gives_zero_by_isnan,
            no_key_gives_zero_by_where,
            no_key_gives_zero_behind,
            no_key_gives_zero_divided_by_hand,
        ),
    ),
    Variant("hidden rows, SDPA", no_key_by_sdpa, _masked()),
    Variant("hidden rows, sink", nothing_but_the_sink, _masked((2,))),
    Variant("hidden rows, plus one", nothing_plus_one, _masked()),
    Variant("hidden rows, results beside the output", no_key_with_results, _masked()),
    Variant("hidden rows of one key set", no_key_in_the_first_set, _two),
    Variant("hidden rows of one key set, merged", no_key_in_the_first_set_merged, _two),
    Variant(
        "hidden rows, differential",
        no_key_differential,
        lambda: [*heads(4, 4, 2, values=32), torch.rand(1), _kept()],
    ),
]
