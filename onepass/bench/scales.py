"""How large the problems of the suites are, in three scales; the figures for the H200 use GPU.

A scale changes sizes only, never what is computed. Example: SCALES["cpu"] runs in minutes on a laptop.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import isqrt


@dataclass(frozen=True)
class Scale:
    """Tokens a batch, hidden width (heads times head dim), lengths, head dims, masks' sizes, and Evoformer's.

    latent: the width of a latent row (MLA); rows, batches: Evoformer's rows and batches.
    """

    tokens: int
    hidden: int
    lengths: tuple[int, ...]
    middle: int
    widths: tuple[int, ...]
    window: int
    prefix: int
    documents: int
    latent: int
    rows: int
    batches: tuple[int, ...]

    @property
    def side(self) -> int:
        """Of the square of points that the middle length is for attention in two dims."""
        return isqrt(self.middle)

    @property
    def block(self) -> int:
        """Positions in a block of BigBird, and leading positions that see and are seen by all."""
        return self.side


GPU = Scale(16384, 2048, (1024, 4096, 16384), 4096, (64, 128, 256), 256, 1024, 12, 512, 256, (1, 8, 32))
CPU = Scale(2048, 512, (512, 2048), 1024, (64,), 64, 256, 12, 128, 32, (1,))
TINY = Scale(128, 64, (64,), 64, (16,), 16, 32, 3, 16, 16, (1,))
SCALES = {"gpu": GPU, "cpu": CPU, "tiny": TINY}
