"""The suites as data: which problems at which shapes. Full and causal; FlexAttention's variants; Flashlight's two.

A Scale says how large; the H200's figures use GPU. Called by run.py; a new variant is one row here.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import torch

from .problems import Problem, Shape, Variant, differential, evoformer, problem


@dataclass(frozen=True)
class Scale:
    """Tokens a batch, hidden width (heads times head dim), lengths, head dims, and Evoformer's rows and batches."""

    tokens: int
    hidden: int
    lengths: tuple[int, ...]
    middle: int
    widths: tuple[int, ...]
    window: int
    prefix: int
    documents: int
    rows: int
    batches: tuple[int, ...]


GPU = Scale(16384, 2048, (1024, 4096, 16384), 4096, (64, 128, 256), 256, 1024, 12, 256, (1, 8, 32))
CPU = Scale(2048, 512, (512, 2048), 1024, (64,), 64, 256, 12, 32, (1,))
TINY = Scale(128, 64, (64,), 64, (16,), 16, 32, 3, 16, (1,))
SCALES = {"gpu": GPU, "cpu": CPU, "tiny": TINY}
CAP = 30.0


@dataclass(frozen=True)
class Case:
    """One row of a suite: `make(device, dtype)` makes its tensors."""

    suite: str
    variant: str
    shape: str
    make: Callable[[str, torch.dtype], Problem]


def _difference(score: torch.Tensor) -> torch.Tensor:
    """Column minus row, [S, S]."""
    rows, columns = (torch.arange(n, device=score.device) for n in score.shape[-2:])
    return columns[None, :] - rows[:, None]


def _keep(score: torch.Tensor, keep: torch.Tensor) -> torch.Tensor:
    return torch.where(keep, score, float("-inf"))


def _prefix(score, length: int):
    columns = torch.arange(score.shape[-1], device=score.device)
    return _keep(score, (_difference(score) <= 0) | (columns[None, :] < length))


def _slopes(shape: Shape, device: str) -> tuple[torch.Tensor]:
    return (torch.exp2(-8.0 * torch.arange(1, shape.heads + 1, device=device) / shape.heads),)


def _relative(shape: Shape, device: str) -> tuple[torch.Tensor]:
    """T5's bias, by distance from -(S-1) to S-1: its buckets looked up beforehand, as small as they are."""
    far = torch.arange(1 - shape.length, shape.length, device=device)
    near, many = far.abs(), 16
    wide = 8 + (torch.log(near.clamp(min=1) / 8) / torch.log(torch.tensor(128 / 8)) * 8).long()
    bucket = (far > 0).long() * many + torch.where(near < 8, near, wide.clamp(max=many - 1))
    return (torch.randn(shape.heads, 2 * many, device=device)[:, bucket].contiguous(),)


def _documents(count: int) -> Callable:
    def made(shape: Shape, device: str) -> tuple[torch.Tensor]:
        cuts = torch.randperm(shape.length - 1)[: count - 1].to(device) + 1
        return (torch.zeros(shape.length, dtype=torch.int64, device=device).index_fill_(0, cuts, 1).cumsum(0),)

    return made


def _full(shape: Shape, extra) -> float:
    return float(shape.length**2)


def _half(shape: Shape, extra) -> float:
    return shape.length * (shape.length + 1) / 2


def variants(scale: Scale) -> dict[str, Variant]:
    """Every variant by name; FlexAttention's words stand beside the plain ones."""
    window, prefix = scale.window, scale.prefix
    causal = Variant(
        lambda s: _keep(s, _difference(s) <= 0),
        _half,
        mask_mod=lambda: lambda b, h, i, j: i >= j,
        words={"is_causal": True},
        fa3={"causal": True},
    )
    return {
        "full": Variant(lambda s: s, _full, words={}, fa3={}),
        "causal": causal,
        "alibi": Variant(
            lambda s, slopes: s + slopes[:, None, None] * _difference(s),
            _full,
            _slopes,
            (0,),
            score_mod=lambda slopes: lambda s, b, h, i, j: s + slopes[h] * (j - i),
        ),
        "softcap": Variant(
            lambda s: CAP * torch.tanh(s / CAP),
            _full,
            score_mod=lambda: lambda s, b, h, i, j: CAP * torch.tanh(s / CAP),
            dense=False,
            fa3={"softcap": CAP},
        ),
        f"window{window}": Variant(
            lambda s: _keep(s, (_difference(s) <= 0) & (_difference(s) >= -window)),
            lambda shape, extra: float(sum(min(i, window) + 1 for i in range(shape.length))),
            mask_mod=lambda: lambda b, h, i, j: (i >= j) & (i - j <= window),
        ),
        f"prefix{prefix}": Variant(
            lambda s: _prefix(s, prefix),
            lambda shape, extra: float(sum(max(i + 1, prefix) for i in range(shape.length))),
            mask_mod=lambda: lambda b, h, i, j: (i >= j) | (j < prefix),
        ),
        f"document{scale.documents}": Variant(
            lambda s, of: _keep(s, of[:, None] == of[None, :]),
            lambda shape, extra: float((torch.bincount(extra[0]) ** 2).sum()),
            _documents(scale.documents),
            (None,),
            mask_mod=lambda of: lambda b, h, i, j: of[i] == of[j],
        ),
        "gqa8_causal": replace(causal, group=8),
        "t5_bias": Variant(
            lambda s, bias: s + bias[:, _difference(s) + s.shape[-1] - 1],
            _full,
            _relative,
            (0,),
            score_mod=lambda bias: lambda s, b, h, i, j: s + bias[h, j - i + (bias.shape[1] // 2)],
        ),
    }


def cases(suite: str, scale: Scale) -> list[Case]:
    """The rows of a suite, in the order in which they are measured."""
    return {"peers": _peers, "variants": _variants, "flashlight": _flashlight}[suite](scale)


def _peers(scale: Scale) -> list[Case]:
    known = variants(scale)
    shapes = [_shape(scale, n, d) for n in (scale.middle, *scale.lengths) for d in scale.widths]
    return [_case("peers", v, known[v], shape) for shape in dict.fromkeys(shapes) for v in ("full", "causal")]


def _variants(scale: Scale) -> list[Case]:
    widths, longest = scale.widths[:2], scale.lengths[-1]
    known = {name: v for name, v in variants(scale).items() if name not in ("full", "causal")}
    found = [_case("variants", n, v, _shape(scale, scale.middle, d)) for d in widths for n, v in known.items()]
    name = f"window{scale.window}"
    return found + [_case("variants", name, known[name], _shape(scale, longest, d)) for d in widths]


def _flashlight(scale: Scale) -> list[Case]:
    heads = [(scale.hidden // d, d) for d in scale.widths[:2]]
    lengths = sorted({scale.middle, scale.middle // 2, scale.lengths[-1]})
    shapes = [Shape(max(1, scale.tokens // n), h, n, d) for h, d in heads for n in lengths]
    two = [Case("flashlight", "differential", str(s), _differential(s)) for s in shapes]
    rows = [(b, d) for d in scale.widths[:2] for b in scale.batches]
    return two + [Case("flashlight", "evoformer", f"b{b}n{scale.rows}h4d{d}", _evoformer(b, scale, d)) for b, d in rows]


def _shape(scale: Scale, length: int, width: int) -> Shape:
    return Shape(max(1, scale.tokens // length), scale.hidden // width, length, width)


def _case(suite: str, name: str, variant: Variant, shape: Shape) -> Case:
    group = min(variant.group, shape.heads)
    shape = replace(shape, group=group)
    return Case(suite, name, str(shape), lambda device, dtype: problem(variant, shape, device, dtype))


def _differential(shape: Shape) -> Callable:
    return lambda device, dtype: differential(shape, device, dtype)


def _evoformer(batch: int, scale: Scale, width: int) -> Callable:
    return lambda device, dtype: evoformer(batch, scale.rows, 4, width, device, dtype)
