"""FlexAttention's variants as data: what each does to the scores, in plain PyTorch and in FlexAttention's own words.

A mask that reads positions only is written once, for both. A new variant is one row here.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch

from .problems import Shape, Variant
from .scales import Scale

CAP = 30.0
STEP = 4  # of the dilated window
MAX_DISTANCE = 128  # distances that a learned relative bias tells apart, each way
BRANCHES = 8  # of the tree, behind a prefix of half the length


def positions(score: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Row numbers [Sq, 1] and column numbers [1, Sk]."""
    rows, columns = (torch.arange(n, device=score.device) for n in score.shape[-2:])
    return rows[:, None], columns[None, :]


def _keep(score: torch.Tensor, kept: torch.Tensor) -> torch.Tensor:
    return torch.where(kept, score, float("-inf"))


def _far(score: torch.Tensor) -> torch.Tensor:
    """Column minus row, [Sq, Sk]."""
    rows, columns = positions(score)
    return columns - rows


def of_positions(kept: Callable, **more: Any) -> Variant:
    """A mask that keeps what `kept(row, column)` says."""
    return Variant(lambda s: _keep(s, kept(*positions(s))), mask_mod=lambda: lambda b, h, i, j: kept(i, j), **more)


def variants(scale: Scale) -> dict[str, Variant]:
    """Every variant by name."""
    causal = of_positions(lambda i, j: i >= j, words={"is_causal": True}, fa3={"causal": True})
    plain = {"full": Variant(lambda s: s, words={}, fa3={}), "causal": causal}
    plain |= {"gqa8_causal": replace(causal, group=8), "cross": replace(plain["full"], fewer_keys=4)}
    return plain | _biases() | _masks_of_positions(scale) | _masks_of_data(scale)


# Scores that are changed ----------------------------------------------------------------------------------------------


def _slopes(shape: Shape, device, dtype) -> tuple[torch.Tensor]:
    return (torch.exp2(-8.0 * torch.arange(1, shape.heads + 1, device=device) / shape.heads),)


def _buckets(shape: Shape, device, dtype) -> tuple[torch.Tensor]:
    """T5's bias, by distance from -(S-1) to S-1: its buckets looked up beforehand, as small as they are."""
    far = torch.arange(1 - shape.length, shape.length, device=device)
    near, many = far.abs(), 16
    wide = 8 + (torch.log(near.clamp(min=1) / 8) / torch.log(torch.tensor(128 / 8)) * 8).long()
    bucket = (far > 0).long() * many + torch.where(near < 8, near, wide.clamp(max=many - 1))
    return (torch.randn(shape.heads, 2 * many, device=device)[:, bucket].contiguous(),)


def _biases() -> dict[str, Variant]:
    def capped(score):
        return CAP * torch.tanh(score / CAP)

    def place(far):
        return far.clamp(-MAX_DISTANCE, MAX_DISTANCE) + MAX_DISTANCE

    def dense(*letters: str) -> Callable:
        def made(shape: Shape, device, dtype):
            sizes = {"b": shape.batch, "h": shape.heads, "i": shape.length, "j": shape.keys}
            return (torch.randn(*(sizes[x] for x in letters), device=device, dtype=dtype),)

        return made

    return {
        "alibi": Variant(
            lambda s, slopes: s + slopes[:, None, None] * _far(s),
            _slopes,
            ("h",),
            score_mod=lambda slopes: lambda s, b, h, i, j: s + slopes[h] * (j - i),
        ),
        "t5_bias": Variant(
            lambda s, bias: s + bias[:, _far(s) + s.shape[-1] - 1],
            _buckets,
            ("h.",),
            score_mod=lambda bias: lambda s, b, h, i, j: s + bias[h, j - i + (bias.shape[1] // 2)],
        ),
        "relative_bias": Variant(
            lambda s, table: s + table[:, place(_far(s))],
            lambda shape, device, dtype: (torch.randn(shape.heads, 2 * MAX_DISTANCE + 1, device=device),),
            ("h.",),
            score_mod=lambda table: lambda s, b, h, i, j: s + table[h, place(j - i)],
        ),
        "graphormer": Variant(
            lambda s, bias: s + bias,
            dense(*"bhij"),
            ("bhij",),
            score_mod=lambda bias: lambda s, b, h, i, j: s + bias[b, h, i, j],
        ),
        "added_mask": Variant(
            lambda s, bias: s + bias,
            dense(*"ij"),
            ("ij",),
            score_mod=lambda bias: lambda s, b, h, i, j: s + bias[i, j],
        ),
        "softcap": Variant(
            capped,
            score_mod=lambda: lambda s, b, h, i, j: capped(s),
            dense=False,
            fa3={"softcap": CAP},
        ),
    }


# Masks ----------------------------------------------------------------------------------------------------------------


def _masks_of_positions(scale: Scale) -> dict[str, Variant]:
    window, prefix, side = scale.window, scale.prefix, scale.side
    reach = side // 4 | 1  # neighbours along a side of the square, an odd number
    line = window - 1

    def neighbours(i, j, count: int, size: int):
        first = (i - count // 2).clamp(0, size - count)
        return (j >= first) & (j < first + count)

    def square(i, j):
        return neighbours(i // side, j // side, reach, side) & neighbours(i % side, j % side, reach, side)

    return {
        f"window{window}": of_positions(lambda i, j: (i >= j) & (i - j <= window)),
        f"prefix{prefix}": of_positions(lambda i, j: (i >= j) | (j < prefix)),
        f"dilated{window}": of_positions(lambda i, j: ((i - j).abs() <= window) & ((i - j) % STEP == 0)),
        f"natten{line}": of_positions(lambda i, j: neighbours(i, j, line, scale.middle)),
        f"natten{reach}x{reach}": of_positions(square),
    }


def _documents(count: int) -> Callable:
    def made(shape: Shape, device, dtype) -> tuple[torch.Tensor]:
        cuts = torch.randperm(shape.length - 1)[: count - 1].to(device) + 1
        return (torch.zeros(shape.length, dtype=torch.int64, device=device).index_fill_(0, cuts, 1).cumsum(0),)

    return made


def _padded(shape: Shape, device, dtype) -> tuple[torch.Tensor]:
    """Which keys there are: a quarter of them up to all, at random."""
    counts = torch.randint(shape.keys // 4, shape.keys + 1, (shape.batch, 1)).to(device)
    return (torch.arange(shape.keys, device=device)[None, :] < counts,)


def _half(shape: Shape, device, dtype) -> tuple[torch.Tensor]:
    """At random, and the diagonal, so that every row has a key."""
    kept = torch.rand(shape.length, shape.keys, device=device) < 0.5
    return (kept | torch.eye(shape.length, shape.keys, dtype=torch.bool, device=device),)


def _tree(shape: Shape, device, dtype) -> tuple[torch.Tensor, torch.Tensor]:
    """When a walk enters and leaves each node of a chain of half the length with branches behind it."""
    number, half = torch.arange(shape.length, device=device), shape.length // 2
    each = half // BRANCHES
    return number, torch.where(number < half, shape.length, (number - half) // each * each + half + each)


def _masks_of_data(scale: Scale) -> dict[str, Variant]:
    window, block = scale.window, scale.block

    def near_or_global(i, j, seen_i, seen_j):
        return ((i - j).abs() <= window) | seen_i | seen_j

    def within(i, j, of_i, of_j):
        return (of_i == of_j) & (i >= j)

    def blocks(i, j, drawn):
        return ((i // block - j // block).abs() <= 1) | (i < block) | (j < block) | drawn[i // block, j // block]

    def drawn(shape: Shape, device, dtype):
        count = shape.length // block
        return (torch.rand(count, count, device=device) < 3 / count,)

    return {
        f"document{scale.documents}": Variant(
            lambda s, of: _keep(s, of[:, None] == of[None, :]),
            _documents(scale.documents),
            (".",),
            mask_mod=lambda of: lambda b, h, i, j: of[i] == of[j],
        ),
        f"packed{scale.documents}": Variant(
            lambda s, of: _keep(s, within(*positions(s), of[:, None], of[None, :])),
            _documents(scale.documents),
            (".",),
            mask_mod=lambda of: lambda b, h, i, j: within(i, j, of[i], of[j]),
        ),
        "key_padding": Variant(
            lambda s, kept: _keep(s, kept[:, None, None, :]),
            _padded,
            ("b.",),
            mask_mod=lambda kept: lambda b, h, i, j: kept[b, j],
        ),
        "boolean_mask": Variant(_keep, _half, ("ij",), mask_mod=lambda kept: lambda b, h, i, j: kept[i, j]),
        "longformer": Variant(
            lambda s, seen: _keep(s, near_or_global(*positions(s), seen[:, None], seen[None, :])),
            lambda shape, device, dtype: (torch.arange(shape.length, device=device) < block,),
            (".",),
            mask_mod=lambda seen: lambda b, h, i, j: near_or_global(i, j, seen[i], seen[j]),
        ),
        "bigbird": Variant(
            lambda s, drawn: _keep(s, blocks(*positions(s), drawn)),
            drawn,
            ("..",),
            mask_mod=lambda drawn: lambda b, h, i, j: blocks(i, j, drawn),
        ),
        "tree": Variant(
            lambda s, enter, leave: _keep(s, (enter[None] <= enter[:, None]) & (leave[:, None] <= leave[None])),
            _tree,
            (".", "."),
            mask_mod=lambda enter, leave: lambda b, h, i, j: (enter[j] <= enter[i]) & (leave[i] <= leave[j]),
        ),
    }
