"""What is known of a launch when a kernel's text is written: sizes, strides, the device.

A text depends on the kernel and on these facts. Example: a dim whose size is a multiple of the tile needs no mask.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import Literal

INTERPRETER = "interpreter"  # in place of a device: Triton's interpreter
Runs = frozenset[tuple[str, int]]  # (tensor, axis): the axis lies in memory as one run with the next axis
Blocks = frozenset[tuple[str, int]]  # (dim, n)


def interpreter_wanted() -> bool:
    """Whether the user asked for Triton's interpreter, by the environment variable TRITON_INTERPRET."""
    return os.environ.get("TRITON_INTERPRET", "0").lower() in ("1", "true", "on", "yes")


# What the scales of a loop in pieces are. "exact": they are subtracted from scores that are computed anew. "largest":
# the largest score so far. "lagging": they may lag behind the largest score, since results are ratios of weights.
ScalesOfPieces = Literal["exact", "largest", "lagging"]


@dataclass(frozen=True)
class Facts:
    """What a kernel's text may assume of its launch.

    even: dims whose size is a multiple of their tile. wide: tensors that need 64-bit offsets. mapped: names of the
    block maps that loops follow. machine: a key of DEVICES, INTERPRETER, or empty if it is not known. runs: axes
    that lie in memory as one run with the next axis. piece: as Plan has it, in elements of each loop. scales: what
    those of a kernel in pieces have to be (ScalesOfPieces), also of kernels that run a part of it. factors_apart: as
    Plan has it. rows_last: the
    rows are the last axis of tiles, else the first one behind leading dims. blocks: pairs of a loop's dim d and a
    number n, where d // n is one number in each tile. short: dims of loops whose whole length is one tile. walk: as
    triton/walks.py has it.
    """

    even: frozenset[str] = frozenset()
    wide: frozenset[str] = frozenset()
    mapped: frozenset[str] = frozenset()
    machine: str = ""
    runs: Runs = frozenset()
    piece: int = 0
    scales: ScalesOfPieces = "largest"
    factors_apart: bool = False
    rows_last: bool = False
    blocks: Blocks = frozenset()
    short: frozenset[str] = frozenset()
    walk: tuple[str, int] | None = None

    @property
    def interpreted(self) -> bool:
        """The interpreter multiplies bfloat16 tiles as raw bits: they are widened there."""
        return self.machine == INTERPRETER
