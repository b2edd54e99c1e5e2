"""Attention to a paged cache in plain PyTorch, for packed tokens of sequences of any lengths: a step of a server.

What a sequence has is said by its row of a table of pages and by its length; what lies behind it changes nothing.
Example: `write(keys, new_keys, slots)`, then `paged(query, (keys, values), (table, lengths, starts), ...)`.
"""

from __future__ import annotations

import torch

from .attention import AttentionVariant, attend

Tensors = tuple[torch.Tensor, ...]


def write(cache: torch.Tensor, new: torch.Tensor, slot: torch.Tensor) -> None:
    """Writes [tokens, heads, width] to slots of [pages, slots, heads, width]; what has a negative slot is left out."""
    place = slot.clamp(min=0)
    at = place // cache.shape[1], place % cache.shape[1]
    cache[at] = torch.where((slot >= 0)[:, None, None], new.view(-1, *cache.shape[2:]), cache[at])


def paged(
    query: torch.Tensor,
    caches: Tensors,
    batch: Tensors,
    of_heads: tuple[torch.Tensor | None, torch.Tensor | None],
    rows: int,
    window: int | None,
    variant: AttentionVariant,
) -> torch.Tensor:
    """Attention of packed queries [tokens, heads, width] to pages; sequence n has at most `rows` tokens.

    caches: keys and values. batch: table of pages, lengths, and where the tokens of each sequence start. of_heads:
    slopes by age, and sinks.
    """
    (table, lengths, starts), (slopes, sinks) = batch, of_heads
    i, token = torch.arange(rows, device=query.device), torch.arange(query.shape[0], device=query.device)
    k, v = (c[table].flatten(1, 2).transpose(1, 2) for c in caches)
    own = starts[1:] - starts[:-1]
    place = (starts[:-1, None] + i).clamp(max=query.shape[0] - 1)
    q = query[place].transpose(1, 2)
    at = (lengths - own)[:, None] + i
    age = at[:, :, None] - torch.arange(k.shape[2], device=query.device)
    kept = (age >= 0) & (i < own[:, None])[:, :, None]
    kept = kept if window is None else kept & (age < window)
    bias = None if slopes is None else -slopes[:, None, None] * age[:, None]
    found = attend(q, k, v, kept[:, None], bias, sinks, variant=variant)
    sequence = torch.searchsorted(starts[1:].contiguous(), token, right=True).clamp(max=table.shape[0] - 1)
    return found[sequence, (token - starts[sequence]).clamp(0, rows - 1)]
