"""Attention in plain PyTorch, with the variants that libraries of models ask for.

It is the meaning of an integration: any backend runs it, and eager too. A row whose every key is masked gives zeros, as
in PyTorch's scaled_dot_product_attention.
Example: `attend(q, k, v, variant=AttentionVariant(scaling=0.125, causal=True))`.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch.nn import functional as F


@dataclass(frozen=True)
class AttentionVariant:
    """What is the same in each call of a layer. softcap: the scores stay between -softcap and softcap.

    causal: query i sees the keys up to i, counted from the first key. dropout: the share of weights that are dropped.
    """

    scaling: float
    softcap: float | None = None
    causal: bool = False
    dropout: float = 0.0


def attend(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    mask: torch.Tensor | None = None,
    bias: torch.Tensor | None = None,
    sinks: torch.Tensor | None = None,
    *,
    variant: AttentionVariant,
) -> torch.Tensor:
    """The weighted values, of shape [batch, queries, heads, value dim], contiguous.

    query: [batch, heads, queries, dim]. key and value: [batch, key heads, keys, dim]; the key heads divide the heads.
    mask: boolean, true where a key is seen, or numbers that are added to the scores; it broadcasts to
    [batch, heads, queries, keys], as `bias` does, which is added. sinks: [heads], a score beside those of the keys,
    whose weight is for no value. Tensors that do not fit raise PyTorch's RuntimeError.
    """
    groups = query.shape[1] // key.shape[1]
    if groups > 1:
        key, value = repeated(key, groups), repeated(value, groups)
    scores = query @ key.transpose(-2, -1) * variant.scaling
    if variant.softcap is not None:
        scores = torch.tanh(scores / variant.softcap) * variant.softcap
    if bias is not None:
        scores = scores + bias
    scores = masked(scores, mask, variant.causal)
    weights = normalized(scores, sinks, may_be_empty=mask is not None or bias is not None).to(value.dtype)
    if variant.dropout:
        weights = F.dropout(weights, variant.dropout)
    return (weights @ value).transpose(1, 2).contiguous()


def repeated(heads: torch.Tensor, groups: int) -> torch.Tensor:
    """Each head, once for each head of its group: [batch, heads, n, d] becomes [batch, heads · groups, n, d]."""
    batch, count, length, width = heads.shape
    return heads[:, :, None].expand(batch, count, groups, length, width).reshape(batch, count * groups, length, width)


def masked(scores: torch.Tensor, mask: torch.Tensor | None, causal: bool) -> torch.Tensor:
    """Scores [batch, heads, queries, keys], -∞ where a boolean mask is false or a key is behind the query."""
    if causal:
        rows = torch.arange(scores.shape[-2], device=scores.device)
        columns = torch.arange(scores.shape[-1], device=scores.device)
        scores = scores.masked_fill(columns > rows[:, None], -math.inf)
    if mask is None:
        return scores
    return scores.masked_fill(~mask, -math.inf) if mask.dtype == torch.bool else scores + mask


def normalized(scores: torch.Tensor, sinks: torch.Tensor | None, may_be_empty: bool) -> torch.Tensor:
    """The weights of scores [..., heads, queries, keys], at least in float32; a row that has only -∞ gets zeros."""
    dtype = torch.promote_types(scores.dtype, torch.float32)
    if sinks is not None:
        batch, heads, rows, _ = scores.shape
        column = sinks.reshape(1, -1, 1, 1).expand(batch, heads, rows, 1).to(scores.dtype)
        return torch.cat([scores, column], dim=-1).softmax(-1, dtype=dtype)[..., :-1]
    weights = scores.softmax(-1, dtype=dtype)
    if not may_be_empty:
        return weights
    return weights.masked_fill(scores.amax(-1, keepdim=True) == -math.inf, 0.0)
