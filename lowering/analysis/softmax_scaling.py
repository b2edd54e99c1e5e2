"""How weights exp(x - max x) are written in base 2: one multiply-add where scores are moderate, else by differences.

x · c - shift rounds the shift, by up to a quarter at 2^22, which all weights of a row share; at 1e12 by more than a
float32 can hold, and the least number, which hides places, overflows: rows of nothing but fills were NaN. (x - shift) ·
c costs one operation more a score and is exact for equal ones.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

from ...egraph.terms.term import Term
from ...egraph.terms.traversal import subterms
from ..plan.records import Accumulator, Kernel
from .product_terms import scale_split
from .value_bounds import magnitude, proved

LOG2_E = 1.4426950408889634
LEAST = 115.0  # halvings of 1 that leave a normal number in float32 and in bfloat16, with some to spare
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


def weighing(gauge: Term, apart: bool = False) -> Weighing:
    """Moderate scores keep a constant factor out of their maximum; apart: the scale must be exact in any case."""
    if apart or magnitude(gauge) > MODERATE:
        return Weighing(gauge, gauge, 1.0, True)
    return Weighing(gauge, *scale_split(gauge), False)


def fixed_scale(kernel: Kernel, record: Accumulator) -> float | None:
    """A scale in base 2 for a whole loop, that no score exceeds while every weight is a normal number: no maximum is
    needed. None if scores are not proved to be within such bounds, if weights are rounded to a type of less range, or
    if more is asked for than ratios.
    """
    floating = {t.dtype for t in kernel.inputs if "float" in t.dtype}
    low, high = proved(record.gauge)
    if floating != {"bfloat16"} or (high - low) * LOG2_E > LEAST or record.gauge in read_again(kernel):
        return None
    if any(loop.faint for loop in kernel.loops):  # what is dropped is below every bound
        return None
    return high * LOG2_E if all(any_scale(s.term, record.reductions) for s in kernel.stores) else None


def read_again(kernel: Kernel) -> frozenset[Term]:
    """Gauges whose largest is subtracted, here or by a later kernel, from scores that are computed again.

    It must be theirs to the bit: at 2e4 the next float32 is 0.2 % more weight. A log-sum-exp is no more exact.
    """
    states = [a for loop in kernel.loops for a in loop.accumulators]
    bodies = [b for a in states for b in (*([a.gauge] if a.gauge is not None else []), *a.values)]
    bodies += [s.term for s in kernel.stores if not any(n.op == "log" for n in subterms(s.term))]
    read = {gauge_of(n.args[0]) for body in bodies for n in subterms(body) if n.op == "scale"}
    for a in states:
        gauges = {gauge_of(r) for r in a.reductions} if a.gauge is not None else set()
        read |= gauges if gauges & read else set()
    return frozenset(read)


def gauge_of(state: Term) -> Term:
    """The scores of a rescaled reduction, as it stands in the term."""
    return state.args[0].args[0]


def any_scale(term: Term, states: Collection[Term]) -> bool:
    """Whether the term is the same for every scale that mantissas of the states may be kept relative to: ratios are."""
    if any(n.op == "scale" and n.args[0] in states for n in subterms(term)):
        return False
    try:
        return _degree(term, states, {}) == 0
    except _Mixed:
        return False


class _Mixed(Exception):
    """A term that is no power of the scale."""


def _degree(term: Term, states: Collection[Term], done: dict[Term, int]) -> int:
    """n for a term that grows by c^n as the mantissas grow by c."""
    if term not in done:
        below = [] if term.op == "mantissa" else [_degree(a, states, done) for a in term.args]
        match term.op:
            case "mantissa":
                done[term] = int(term.args[0] in states)
            case "mul":
                done[term] = below[0] + below[1]
            case "div":
                done[term] = below[0] - below[1]
            case "neg" | "cast" | "reduce" if below[0] == 0 or term.op != "reduce" or term.attrs[0] == "sum":
                done[term] = below[0]
            case "add" | "sub" | "where" | "maximum" | "minimum" if len(set(below[-2:])) == 1 and not any(below[:-2]):
                done[term] = below[-1]
            case _ if not any(below):
                done[term] = 0
            case _:
                raise _Mixed(term.op)
    return done[term]
