"""Spellings of attention in plain PyTorch: functions of (q, k, v) that all mean the same, by group.

Shared by the tests of capture and of regions.
"""

import math

import torch
import torch.nn.functional as F

MINUS_INFINITY = float("-inf")


def attend(q, k, v):
    return torch.softmax(q @ k.transpose(-2, -1) / math.sqrt(q.shape[-1]), dim=-1) @ v


def scale_first(q, k, v):
    return torch.softmax((q / math.sqrt(q.shape[-1])) @ k.mT, dim=-1) @ v


def scale_by_multiplication(q, k, v):
    return (q @ k.mT * (1.0 / math.sqrt(q.shape[-1]))).softmax(-1) @ v


def by_einsum(q, k, v):
    scores = torch.einsum("bhid,bhjd->bhij", q, k) / math.sqrt(q.shape[-1])
    return torch.einsum("...ij,...je->...ie", scores.softmax(-1), v)


def softmax_in_float32(q, k, v):
    scores = torch.matmul(q, k.mT) / math.sqrt(q.shape[-1])
    return F.softmax(scores, dim=-1, dtype=torch.float32).to(q.dtype) @ v


def by_hand(q, k, v):
    scores = q @ k.mT / math.sqrt(q.shape[-1])
    weights = torch.exp(scores - scores.amax(-1, keepdim=True))
    return weights / weights.sum(-1, keepdim=True) @ v


def by_bmm(q, k, v):
    batch, heads, rows, width = q.shape
    q, k, v = (x.reshape(batch * heads, -1, width) for x in (q, k, v))
    scores = torch.bmm(q, k.transpose(1, 2)) / math.sqrt(width)
    return torch.bmm(F.softmax(scores, dim=-1), v).view(batch, heads, rows, width)


def by_sdpa(q, k, v):
    return F.scaled_dot_product_attention(q, k, v)


PLAIN = [attend, scale_first, scale_by_multiplication, by_einsum, softmax_in_float32, by_hand, by_bmm, by_sdpa]


def masked_attend(q, k, v, mask):
    scores = q @ k.mT / math.sqrt(q.shape[-1])
    return torch.softmax(scores.masked_fill(mask, MINUS_INFINITY), dim=-1) @ v


def causal_tril(q, k, v):
    return masked_attend(q, k, v, ~torch.tril(torch.ones(q.shape[-2], k.shape[-2], dtype=torch.bool)))


def causal_tril_of_floats(q, k, v):
    mask = torch.tril(torch.ones(q.shape[-2], k.shape[-2]))[None, None]
    return masked_attend(q, k, v, mask[:, :, : q.shape[-2], : k.shape[-2]] == 0)


def causal_where(q, k, v):
    rows, columns = torch.arange(q.shape[-2]), torch.arange(k.shape[-2])
    scores = q @ k.mT / math.sqrt(q.shape[-1])
    return torch.softmax(torch.where(rows[:, None] >= columns, scores, MINUS_INFINITY), dim=-1) @ v


def causal_additive(q, k, v):
    mask = torch.triu(torch.full((q.shape[-2], k.shape[-2]), MINUS_INFINITY), diagonal=1)
    return torch.softmax(q @ k.mT / math.sqrt(q.shape[-1]) + mask, dim=-1) @ v


def causal_sdpa(q, k, v):
    return F.scaled_dot_product_attention(q, k, v, is_causal=True)


def causal_sdpa_mask(q, k, v):
    mask = torch.ones(q.shape[-2], k.shape[-2], dtype=torch.bool).tril()
    return F.scaled_dot_product_attention(q, k, v, attn_mask=mask)


CAUSAL = [causal_tril, causal_tril_of_floats, causal_where, causal_additive, causal_sdpa, causal_sdpa_mask]


def groups_by_repeat_interleave(q, k, v):
    times = q.shape[1] // k.shape[1]
    return attend(q, k.repeat_interleave(times, dim=1), v.repeat_interleave(times, 1))


def groups_by_expand(q, k, v):
    batch, heads, columns, width = k.shape
    shape = (batch, heads, q.shape[1] // heads, columns, width)
    k, v = (x[:, :, None].expand(shape).reshape(batch, q.shape[1], columns, width) for x in (k, v))
    return attend(q, k, v)


def groups_by_view(q, k, v):
    batch, heads, rows, width = q.shape
    grouped = q.view(batch, k.shape[1], heads // k.shape[1], rows, width)
    return attend(grouped, k.unsqueeze(2), v.unsqueeze(2)).reshape(batch, heads, rows, width)


def groups_by_sdpa(q, k, v):
    return F.scaled_dot_product_attention(q, k, v, enable_gqa=True)


GROUPED = [groups_by_repeat_interleave, groups_by_expand, groups_by_view, groups_by_sdpa]

ALL = [*PLAIN, *CAUSAL, *GROUPED]
