"""What is known of a launch when a kernel's text is written: sizes, strides, the machine.

A text depends on the kernel and on these facts. Example: a dim whose size is a multiple of the tile needs no mask.
"""

from __future__ import annotations

import os
from dataclasses import dataclass

INTERPRETER = "interpreter"  # stands for a machine


def interpreter_wanted() -> bool:
    """Whether the user asked for Triton's interpreter, by the environment variable TRITON_INTERPRET."""
    return os.environ.get("TRITON_INTERPRET", "0").lower() in ("1", "true", "on", "yes")


@dataclass(frozen=True)
class Facts:
    """Dims whose size is a multiple of their tile, tensors that need 64-bit offsets, ..."""

    even: frozenset[str] = frozenset()
    wide: frozenset[str] = frozenset()
    mapped: frozenset[str] = frozenset()  # the block maps that loops follow
    machine: str = ""  # a key of DEVICES, the interpreter, or nothing that is known
    runs: Runs = frozenset()  # axes that lie in memory as one run with the next

    @property
    def interpreted(self) -> bool:
        """The interpreter multiplies bfloat16 tiles as raw bits: they are widened there."""
        return self.machine == INTERPRETER


Runs = frozenset[tuple[str, int]]  # names of tensors and the first of two axes
