"""Masks and biases: what depends on positions only, what depends on data."""

import math

import torch

from tests.variants import Variant, heads

MINUS_INFINITY = -math.inf


def scores_of(q, k):
    return q @ k.mT / math.sqrt(q.shape[-1])


def positions(q, k):
    return torch.arange(q.shape[-2])[:, None], torch.arange(k.shape[-2])[None, :]


def masked(q, k, v, kept):
    return torch.softmax(scores_of(q, k).masked_fill(~kept, MINUS_INFINITY), -1) @ v


def window(q, k, v):
    i, j = positions(q, k)
    return masked(q, k, v, (i - j >= 0) & (i - j <= 64))


def window_by_triangles(q, k, v):
    ones = torch.ones(q.shape[-2], k.shape[-2], dtype=torch.bool)
    return masked(q, k, v, ones.tril() & ones.triu(-64))


def window_by_finite_fill(q, k, v):
    i, j = positions(q, k)
    kept = (i - j >= 0) & (i - j <= 64)
    return torch.softmax(torch.where(kept, scores_of(q, k), torch.finfo(q.dtype).min), -1) @ v


def window_by_large_number(q, k, v):
    i, j = positions(q, k)
    return torch.softmax(scores_of(q, k).masked_fill((i < j) | (i - j > 64), -1e9), -1) @ v


def dilated_window(q, k, v):
    i, j = positions(q, k)
    return masked(q, k, v, ((i - j).abs() <= 64) & ((i - j) % 4 == 0))


def prefix(q, k, v):
    i, j = positions(q, k)
    return masked(q, k, v, (j < 100) | (j <= i))


def documents(q, k, v, ids):
    return masked(q, k, v, ids[:, None] == ids[None, :])


def documents_causal(q, k, v, ids):
    i, j = positions(q, k)
    return masked(q, k, v, (ids[:, None] == ids[None, :]) & (j <= i))


def documents_from_lengths(q, k, v, ends):
    ids = torch.bucketize(torch.arange(q.shape[-2]), ends, right=True)
    return documents(q, k, v, ids)


def documents_from_lengths_searched(q, k, v, ends):
    ids = torch.searchsorted(ends, torch.arange(q.shape[-2]), right=True)
    return documents(q, k, v, ids)


def key_padding(q, k, v, kept):
    return masked(q, k, v, kept[:, None, None, :])


def key_padding_added(q, k, v, kept):
    return torch.softmax(scores_of(q, k) + torch.where(kept, 0.0, MINUS_INFINITY)[:, None, None, :], -1) @ v


def key_padding_finite(q, k, v, kept):
    added = (1.0 - kept.to(q.dtype)) * torch.finfo(q.dtype).min
    return torch.softmax(scores_of(q, k) + added[:, None, None, :], -1) @ v


def key_lengths(q, k, v, lengths):
    return masked(q, k, v, torch.arange(k.shape[-2]) < lengths[:, None, None, None])


def boolean_mask(q, k, v, mask):
    return masked(q, k, v, mask)


def added_mask(q, k, v, bias):
    return torch.softmax(scores_of(q, k) + bias, -1) @ v


def alibi(q, k, v):
    i, j = positions(q, k)
    slopes = 2.0 ** (-8.0 * (torch.arange(q.shape[1]) + 1) / q.shape[1])
    return torch.softmax(scores_of(q, k) + slopes[:, None, None] * (j - i), -1) @ v


def alibi_given_slopes(q, k, v, slopes):
    i, j = positions(q, k)
    return torch.softmax(scores_of(q, k) - slopes[:, None, None] * (i - j).abs(), -1) @ v


def softcap(q, k, v):
    return torch.softmax(30.0 * torch.tanh(scores_of(q, k) / 30.0), -1) @ v


def relative_bias(q, k, v, table):
    i, j = positions(q, k)
    return torch.softmax(scores_of(q, k) + table[(i - j).clamp(-32, 32) + 32].permute(2, 0, 1), -1) @ v


def t5_bias(q, k, v, table):
    """T5's buckets: half exact, half logarithmic, both directions."""
    i, j = positions(q, k)
    distance = j - i
    side = (distance > 0).long() * 16
    distance = distance.abs()
    far = 8 + (torch.log(distance.float() / 8) / math.log(128 / 8) * 8).long()
    bucket = side + torch.where(distance < 8, distance, torch.minimum(far, torch.full_like(far, 15)))
    return torch.softmax(q @ k.mT + torch.nn.functional.embedding(bucket, table).permute(2, 0, 1), -1) @ v


def graphormer(q, k, v, distance, table):
    return torch.softmax(scores_of(q, k) + table[distance].permute(0, 3, 1, 2), -1) @ v


def neighbourhood(q, k, v):
    """NATTEN in one dim: as many neighbours at the ends as in the middle."""
    i, j = positions(q, k)
    first = (i - 6).clamp(0, k.shape[-2] - 13)
    return masked(q, k, v, (j >= first) & (j < first + 13))


def neighbourhood_2d(q, k, v):
    """NATTEN in two dims, on 15 x 20 points."""
    i, j = positions(q, k)
    row = (i // 20 - 3).clamp(0, 15 - 7)
    column = (i % 20 - 3).clamp(0, 20 - 7)
    rows = (j // 20 >= row) & (j // 20 < row + 7)
    return masked(q, k, v, rows & (j % 20 >= column) & (j % 20 < column + 7))


def longformer(q, k, v, is_global):
    i, j = positions(q, k)
    return masked(q, k, v, ((i - j).abs() <= 32) | is_global[None, :] | is_global[:, None])


def longformer_leading(q, k, v):
    i, j = positions(q, k)
    return masked(q, k, v, ((i - j).abs() <= 32) | (i < 4) | (j < 4))


def bigbird(q, k, v, blocks):
    """Window, leading and random blocks of 20; blocks[i, j] says which are drawn."""
    i, j = positions(q, k)
    near = (i // 20 - j // 20).abs() <= 1
    return masked(q, k, v, near | (i < 20) | (j < 20) | blocks[i // 20, j // 20])


def tree(q, k, v, enters, leaves):
    """Drafts in a tree: a node sees its ancestors, by the times of a walk."""
    return masked(q, k, v, (enters[None, :] <= enters[:, None]) & (leaves[:, None] <= leaves[None, :]))


def permuted_causal(q, k, v, order):
    return masked(q, k, v, order[None, :] <= order[:, None])


def with_(*more, **sizes):
    return lambda: [*heads(2, **sizes), *(each() for each in more)]


_ids = lambda: torch.arange(300) // 70
_kept = lambda: torch.rand(2, 300) > 0.3
_random = lambda: (torch.rand(300, 300) > 0.5) | torch.eye(300, dtype=torch.bool)
_tree = lambda: torch.arange(300)
VARIANTS = [
    Variant(
        "sliding window",
        window,
        with_(),
        spellings=(window_by_triangles, window_by_finite_fill, window_by_large_number),
    ),
    Variant("dilated window", dilated_window, with_()),
    Variant("prefix LM", prefix, with_()),
    Variant("documents", documents, with_(_ids)),
    Variant("documents, causal", documents_causal, with_(_ids)),
    Variant(
        "documents from cumulative lengths",
        documents_from_lengths,
        with_(lambda: torch.tensor([70, 140, 290])),
        spellings=(documents_from_lengths_searched,),
    ),
    Variant("key padding", key_padding, with_(_kept, batch=2), spellings=(key_padding_added, key_padding_finite)),
    Variant("key lengths", key_lengths, with_(lambda: torch.tensor([13, 300]), batch=2)),
    Variant("boolean mask", boolean_mask, with_(_random)),
    Variant("added mask", added_mask, with_(lambda: torch.randn(2, 300, 300))),
    Variant("ALiBi", alibi, with_()),
    Variant("ALiBi, slopes given", alibi_given_slopes, with_(lambda: torch.rand(2))),
    Variant("softcap", softcap, with_()),
    Variant("relative bias", relative_bias, with_(lambda: torch.randn(65, 2))),
    Variant("T5 bias", t5_bias, with_(lambda: torch.randn(32, 2))),
    Variant("Graphormer", graphormer, with_(lambda: torch.randint(0, 8, (1, 300, 300)), lambda: torch.randn(8, 2))),
    Variant("NATTEN", neighbourhood, with_()),
    Variant("NATTEN in 2-D", neighbourhood_2d, with_()),
    Variant("Longformer", longformer, with_(lambda: torch.arange(300) % 97 == 0), spellings=()),
    Variant("Longformer, leading tokens", longformer_leading, with_()),
    Variant("BigBird", bigbird, with_(lambda: torch.rand(15, 15) > 0.8)),
    Variant("tree of drafts", tree, with_(_tree, lambda: torch.arange(300) % 50 + 300)),
    Variant("order given", permuted_causal, with_(lambda: torch.randperm(300))),
]
