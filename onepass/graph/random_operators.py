"""torch's random calls with a seed as one more argument: the same seed gives the same numbers, wherever they are used.

A seed is a tensor of two int64 numbers. The number of an element depends on the seed and on the element's place in the
logical shape, and not on strides, on who computes it or in which order. Registered at import.
Example: `torch.ops.onepass.dropout(x, 0.1, seed)` keeps the same elements in the forward and in the backward.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import ceil, prod, sqrt
from typing import Any

import torch
from torch import library

from ..egraph.terms import philox

SEED_NUMBERS = 2  # of a seed: the key of the generator, and words of its counter
OPERATORS = ("uniform_numbers", "dropout", "scaled_dot_product_attention")
_SCHEMAS = {
    "uniform_numbers": "(SymInt[] size, Tensor seed) -> Tensor",
    "dropout": "(Tensor input, float p, Tensor seed) -> Tensor",
    "scaled_dot_product_attention": (
        "(Tensor query, Tensor key, Tensor value, Tensor? attn_mask, float dropout_p, bool is_causal, float? scale, "
        "bool enable_gqa, Tensor seed) -> Tensor"
    ),
}


def least_kept(p: float) -> float:
    """The least uniform number that is kept where a share p is dropped: every float dtype compares with it exactly."""
    return ceil(p / philox.UNIT) * philox.UNIT


def scale_of_kept(p: float) -> float:
    """The factor of what is kept; where all is dropped, that of all."""
    return 0.0 if p == 1 else 1.0 / (1.0 - p)


def uniform_numbers(size: Sequence[int], seed: torch.Tensor) -> torch.Tensor:
    """Numbers from 0 to below 1 in float32: multiples of 2^-24."""
    if prod(size) == 0:
        return seed.new_empty(size, dtype=torch.float32)
    *around, rows, columns = (1, 1, *size)[min(len(size), 2) :]
    matrices = torch.arange(prod(around), device=seed.device)[:, None, None]
    halves = [torch.arange(-(-n // philox.BLOCK_SIZE) * philox.HALF, device=seed.device) for n in (rows, columns)]
    bits = philox.bits_of_block(seed[0], seed[1], matrices, halves[0][:, None], halves[1])
    block = [one.to(torch.float32) for one in torch.broadcast_tensors(*bits)]
    found = philox.spread_out(block, 1, 2, torch.stack)[:, :rows, :columns]
    return found.mul(philox.UNIT).reshape(list(size))


def dropout(x: torch.Tensor, p: float, seed: torch.Tensor) -> torch.Tensor:
    """x with a share p of its elements dropped, and the others scaled."""
    kept = torch.ops.onepass.uniform_numbers(x.shape, seed) >= least_kept(p)
    return x * kept * scale_of_kept(p)


def attention(
    query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, attn_mask: torch.Tensor | None, *settings: Any
) -> torch.Tensor:
    """torch's attention with dropout of its weights, as its mathematics; halves are computed in float32.

    settings: those of the schema behind the mask.
    """
    dropout_p, is_causal, scale, enable_gqa, seed = settings
    dtype = torch.promote_types(query.dtype, torch.float32)
    q, k, v = (x.to(dtype) for x in (query, key, value))
    if enable_gqa:
        k, v = (x.repeat_interleave(q.shape[-3] // x.shape[-3], -3) for x in (k, v))
    scores = q @ k.mT * (1.0 / sqrt(q.shape[-1]) if scale is None else scale)
    if is_causal:
        attn_mask = torch.ones(scores.shape[-2:], dtype=torch.bool, device=q.device).tril()
    if attn_mask is not None:
        is_choice = attn_mask.dtype == torch.bool
        scores = scores.masked_fill(~attn_mask, -torch.inf) if is_choice else scores + attn_mask
    weights = torch.ops.onepass.dropout(torch._safe_softmax(scores, -1), dropout_p, seed)
    return (weights @ v).to(query.dtype)


def _fake_numbers(size: Sequence[int], seed: torch.Tensor) -> torch.Tensor:
    return seed.new_empty(size, dtype=torch.float32)


_LIBRARY = library.Library("onepass", "FRAGMENT")
for _name, _schema in _SCHEMAS.items():
    _LIBRARY.define(_name + _schema, tags=(torch.Tag.pt2_compliant_tag,))
_LIBRARY.impl("uniform_numbers", uniform_numbers, "CompositeExplicitAutograd")
library.register_fake("onepass::uniform_numbers", _fake_numbers, lib=_LIBRARY)
_LIBRARY.impl("dropout", dropout, "CompositeImplicitAutograd")
_LIBRARY.impl("scaled_dot_product_attention", attention, "CompositeImplicitAutograd")
