"""Division by a size that only a launch knows, as a product: item numbers come apart into coordinates without dividing.

For 0 <= n < 2^30 and 1 <= d < 2^31, n // d is n · multiplier >> shift (Granlund and Montgomery, PLDI 1994). The
launcher makes both from the size; lowering/gluon/work_items.py writes the product, `quotient` in
lowering/gluon/device_functions.py computes it.
"""

from __future__ import annotations

from dataclasses import dataclass

from ...egraph.terms.term import Dim
from .signature import Argument

BITS = 30  # of the largest number that is divided


def division(divisor: int) -> dict[str, int]:
    """The multiplier, below 2^31, and the shift of a divisor; for none, as a dim without elements has, those of 1."""
    divisor = max(1, divisor)
    shift = BITS + (divisor - 1).bit_length()
    return {"multiplier": -(-(1 << shift) // divisor), "shift": shift}


@dataclass(frozen=True)
class Divisor:
    """How many tiles of `step` elements a dim has, with the names of what a launch passes for it."""

    dim: Dim
    step: int
    multiplier: str
    shift: str

    @property
    def arguments(self) -> tuple[Argument, Argument]:
        part = lambda name, part: Argument(name, size=self.dim.size, step=self.step, part=part)
        return part(self.multiplier, "multiplier"), part(self.shift, "shift")

    def quotient(self, number: str) -> str:
        return f"quotient({number}, {self.multiplier}, {self.shift})"
