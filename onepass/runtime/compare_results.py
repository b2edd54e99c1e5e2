"""Compares a kernel's first results with the tiled executor's, up to rounding.

The tiled executor computes in float32, and a kernel multiplies half-precision numbers. The constants below bound what
that may change. Example: a kernel that leaves out one of 300 keys exceeds them.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass

import torch

from ..egraph.terms.traversal import subterms
from ..lowering.plan.records import Plan

# A kernel rounds weights and other computed operands of a product to the half that the other side has, each by at most
# u = 2^-8 (bfloat16) or 2^-11 (float16), and the result once more: it moves by at most 3u · Σ w |v| / Σ w. These
# are independent or common to a row, so over a result they are well below 3u of its size; a key of 300 that is left out
# is 1 / √300 of it even where all weights are alike. Hence 8u for the root of the mean square, and 16u of the largest
# element for the largest difference, for the cancellation in one. In float32, u stands for the order of sums and exp2.
MEAN_FACTOR, LARGEST_FACTOR = 8, 16
ROUNDING = {torch.float64: 1e-10, torch.float32: 2.0**-15, torch.float16: 2.0**-11, torch.bfloat16: 2.0**-8}
STEPS_BELOW_NORMAL = 0.5  # numbers below the smallest normal one are that far apart: in float16 6e-8
MIN_SIZE = 1e-5  # smaller results count as this
# Of what moved inputs change, the part that may be a kernel's rounding. In half precision an input's unit is as large
# as that of all that is rounded between, and there are more inputs: moving them changes more than a kernel's rounding.
PART_OF_MOVED = {torch.float16: 1 / 16, torch.bfloat16: 1 / 16}


@dataclass(frozen=True)
class RoundingFacts:
    """What else is known of the rounding of a result.

    computed: the dtypes in which values between are computed. moved: what is expected where every input is moved by
    what rounding may move it. Example: the gradient of a number added to all scores of a row is 0, and all that is
    left of it is noise, which moves as much as it is large.
    """

    computed: Collection[torch.dtype] = ()
    moved: torch.Tensor | None = None


def mismatch(
    result: torch.Tensor,
    expected: torch.Tensor,
    inputs: Sequence[torch.Tensor] = (),
    rounding: RoundingFacts = RoundingFacts(),
) -> str | None:
    """Why two results are not the same up to rounding in the narrowest dtype of all; None if they are."""
    if result.shape != expected.shape or result.dtype != expected.dtype:
        return f"{result.dtype} {tuple(result.shape)} instead of {expected.dtype} {tuple(expected.shape)}"
    if not expected.is_floating_point():
        return None if torch.equal(result, expected) else "different values"
    if not _same_special_values(result, expected):
        return "NaN or infinity at different places"
    return _differs(result, expected, inputs, rounding)


def computed_dtypes(plan: Plan) -> frozenset[torch.dtype]:
    """The floating dtypes to which a plan casts values between."""
    terms = {node for kernel in plan.kernels for store in kernel.stores for node in subterms(store.term)}
    return frozenset(getattr(torch, node.dtype) for node in terms if node.op == "cast") & frozenset(ROUNDING)


def moved(tensors: Sequence[torch.Tensor]) -> list[torch.Tensor]:
    """The tensors with every floating element moved to a number beside it. Draws no number of the user's."""
    return [_moved(x, number) if x.dtype in ROUNDING else x for number, x in enumerate(tensors)]


def _moved(tensor: torch.Tensor, seed: int) -> torch.Tensor:
    signs = torch.Generator(tensor.device).manual_seed(seed)
    up = torch.rand(tensor.shape, generator=signs, device=tensor.device) < 0.5
    unit = torch.finfo(tensor.dtype).eps
    found = torch.where(up, tensor * (1 + unit), tensor * (1 - unit))
    return torch.where(found.isfinite(), found, tensor)  # a mask's least number stays one


def _same_special_values(result: torch.Tensor, expected: torch.Tensor) -> bool:
    """Whether NaN and each infinity are at the same elements in both."""
    kind = lambda x: torch.stack([x.isnan(), x == torch.inf, x == -torch.inf])
    return torch.equal(kind(result), kind(expected))


def _differs(
    result: torch.Tensor,
    expected: torch.Tensor,
    inputs: Sequence[torch.Tensor],
    rounding: RoundingFacts = RoundingFacts(),
) -> str | None:
    """By how much the results differ where both are finite; None if that is rounding."""
    kinds = {*(t.dtype for t in (expected, *inputs)), *rounding.computed}
    unit = max(_rounding(dtype) for dtype in kinds if dtype in ROUNDING)
    both = result.isfinite() & expected.isfinite()
    wanted, error = expected[both].double(), (result[both].double() - expected[both].double()).abs()
    if not error.numel():
        return None
    smallest = torch.finfo(expected.dtype).smallest_normal * torch.finfo(expected.dtype).eps
    noise = torch.zeros_like(wanted) if rounding.moved is None else rounding.moved[both].double() - wanted
    noise = noise[noise.isfinite()] * min(PART_OF_MOVED.get(dtype, 1.0) for dtype in kinds)
    sizes: tuple[tuple[int, Callable], ...] = (
        (MEAN_FACTOR, lambda x: x.square().mean().sqrt()), (LARGEST_FACTOR, lambda x: x.abs().max())
    )  # fmt: skip
    for factor, size in sizes:
        still = size(noise).item() if noise.numel() else 0.0
        relative = unit * max(size(wanted).item(), MIN_SIZE)
        found, allowed = size(error).item(), factor * max(relative, still, STEPS_BELOW_NORMAL * smallest)
        if found > allowed:
            return f"{'on average' if factor == MEAN_FACTOR else 'somewhere'} by {found:.3g}, more than {allowed:.3g}"
    return None


def _rounding(dtype: torch.dtype) -> float:
    fast = dtype == torch.float32 and torch.get_float32_matmul_precision() != "highest"  # TensorFloat-32 or halves
    return ROUNDING[torch.float16 if fast else dtype]


def undecided(result: torch.Tensor, expected: torch.Tensor, inputs: Sequence[torch.Tensor]) -> bool:
    """Whether the two only have NaN and infinities at other places, and an input holds some.

    At masked places NaN and infinities count as absent; which tiles are read decides which rows they reach. A -∞ alone
    is a mask.
    """
    alike = result.shape == expected.shape and result.dtype == expected.dtype and expected.is_floating_point()
    unusual = any(bool((t.isnan() | (t == torch.inf)).any()) for t in inputs if t.is_floating_point())
    return alike and unusual and _differs(result, expected, inputs) is None
