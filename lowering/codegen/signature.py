"""The arguments of a generated kernel, and its text with them: what a launcher needs to call it.

The order of `arguments` is the order of the call. Example: `Argument("stride_q_1", tensor="q", axis=1)`.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Argument:
    """One run-time argument: a tensor's pointer, one of its strides (axis), or an integer size (number or symbol).

    part: "multiplier" or "shift" of a division by the size, in tiles of `step` (lowering/codegen/fast_division.py).
    """

    name: str
    tensor: str = ""
    axis: int | None = None
    size: int | str | None = None
    step: int = 1
    part: str = ""


@dataclass(frozen=True)
class Source:
    """The text of one kernel and how to call it. `tiles` are its constexpr parameters with "rows" or "loop"; doubtful:
    its loops may run once more, in another form."""

    text: str
    function: str
    arguments: tuple[Argument, ...]
    tiles: tuple[tuple[str, str], ...]
    doubtful: bool = False
