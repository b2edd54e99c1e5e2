"""How weights exp(x - max x) are written in base 2: one multiply-add where scores are moderate, else by differences.

x · c - shift rounds the shift, by up to a quarter at 2^22, which all weights of a row share; at 1e12 by more than a
float32 can hold, and the least number, which hides places, overflows: rows of nothing but fills were NaN.
(x - shift) · c costs one operation more a score and is exact for equal ones. Shared by the Triton and Gluon writers.
"""

from __future__ import annotations

from dataclasses import dataclass

from ..egraph.term import Term, subterms
from .magnitude import magnitude
from .plan import Kernel
from .triton_ops import literal
from .triton_product import scale_split

LOG2_E = 1.4426950408889634
MODERATE = 2.0**22  # scores up to this size have shifts that are rounded by at most a quarter


@dataclass(frozen=True)
class Weighing:
    """The gauge is raw · natural, in base 2 raw · factor; scales are kept in base 2, or, apart, as they are.

    within: what makes natural numbers base 2, 1 where a writer has raw scores in base 2.
    """

    gauge: Term
    raw: Term
    natural: float
    apart: bool
    within: float = LOG2_E

    @property
    def factor(self) -> str:
        return literal(self.natural * self.within)

    def scale(self, top: str) -> str:
        """The scale of the largest raw score."""
        return top if self.apart else f"{top} * {self.factor}"

    def exponent(self, score: str, shift: str) -> str:
        """In base 2, of a raw score from a shift in the unit of scales."""
        return f"({score} - {shift}) * {self.factor}" if self.apart else f"{score} * {self.factor} - {shift}"

    def decay(self, before: str, shift: str) -> str:
        """In base 2, of a scale from a later one."""
        return f"({before} - {shift}) * {self.factor}" if self.apart else f"{before} - {shift}"

    def unit(self, doublings: float) -> float:
        """So many doublings of a weight in the unit of scales."""
        return doublings / LOG2_E if self.apart else doublings

    def natural_scale(self, scale: str) -> str:
        """The largest gauge itself."""
        return scale if self.apart else f"{scale} * {literal(1 / LOG2_E)}"


def weighing(gauge: Term, apart: bool = False) -> Weighing:
    """Moderate scores keep a constant factor out of their maximum; apart: the scale must be exact in any case."""
    if apart or magnitude(gauge) > MODERATE:
        return Weighing(gauge, gauge, 1.0, True)
    return Weighing(gauge, *scale_split(gauge), False)


def read_again(kernel: Kernel) -> frozenset[Term]:
    """Gauges whose largest a loop subtracts from scores that it computes again: it must be theirs to the bit."""
    states = [a for loop in kernel.loops for a in loop.accumulators]
    bodies = [b for a in states for b in (*([a.gauge] if a.gauge is not None else []), *a.values)]
    read = {gauge_of(n.args[0]) for body in bodies for n in subterms(body) if n.op == "scale"}
    for a in states:
        gauges = {gauge_of(r) for r in a.reductions} if a.gauge is not None else set()
        read |= gauges if gauges & read else set()
    return frozenset(read)


def gauge_of(state: Term) -> Term:
    """The scores of a rescaled reduction, as it stands in the term."""
    return state.args[0].args[0]
