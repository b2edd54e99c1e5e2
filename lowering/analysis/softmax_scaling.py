"""How softmax weights exp(x − max x) are computed in base 2, with c = log2(e): by x · c − shift, or by (x − shift) · c.

The first form is one multiply-add. It rounds the shift: by up to a quarter for scores of 2^22, which all weights of a
row share. At 1e12 a float32 does not hold the error, and dtypes' least numbers, which mask scores, overflow to NaN. The
second form costs one operation more for each score, and is exact for equal scores. Example: q · k takes the first form.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence, Set
from dataclasses import dataclass
from math import frexp, inf

from ...egraph.terms.ops import const, make
from ...egraph.terms.term import Term
from ...egraph.terms.traversal import subterms
from ..plan.launch_facts import ScalesOfPieces
from ..plan.records import Accumulator, Kernel
from .product_terms import scale_split
from .value_bounds import magnitude, proved

LOG2_E = 1.4426950408889634
MAX_HALVINGS = 115.0  # of 1, that leave a normal number in float32 and in bfloat16, with some to spare
MAX_MODERATE_SCORE = 2.0**22  # the shifts of scores up to this size are rounded by at most a quarter
LARGE_LITERAL = 64.0  # float32 rounds the shift of such a score in base 2 by up to 4e-6


@dataclass(frozen=True)
class ExponentScaling:
    """The scores (gauge) are raw · natural, and in base 2 raw · factor.

    apart: the shift is subtracted before the multiplication, and scales are kept as they are, not in base 2.
    within: what makes natural numbers base 2; 1 where a writer has raw scores in base 2. in_pieces: scales are kept as
    they are in either form, since they are stored: a multiply-add then takes the shift times log2(e). far: in pieces,
    shifts may be so large that their rows need the exact form.
    """

    gauge: Term
    raw: Term
    natural: float
    apart: bool
    within: float = LOG2_E
    in_pieces: bool = False
    far: bool = False


def exponent_scaling(gauge: Term, apart: bool = False) -> ExponentScaling:
    """How the weights of these scores are computed. apart: the scale must be exact in any case.

    A constant factor of moderate scores is left out of their maximum.
    """
    if apart or magnitude(gauge) > MAX_MODERATE_SCORE:
        return ExponentScaling(gauge, gauge, 1.0, True)
    return ExponentScaling(gauge, *scale_split(gauge), False)


def scaling_in_pieces(gauge: Term, apart: bool, hidden: bool, any_factor: bool = False) -> ExponentScaling:
    """How the weights of scores in pieces are computed. hidden: a mask may give a row no score but a large number.

    A prefill and a decoding step are two programs: one may have a mask, or coordinates, where the other has a number.
    So a row's bits depend on its scores alone. A constant factor is left out of the maximum where no bit shows it.
    any_factor: masks and coordinates only hide scores, so that both programs have the same factor, whatever it is.
    """
    if apart:
        return ExponentScaling(gauge, gauge, 1.0, True, in_pieces=True)
    raw, natural, size = _split_below_masks(gauge)
    far = hidden or size > MAX_MODERATE_SCORE
    if far or (frexp(natural)[0] != 0.5 and not any_factor):  # 0.5: a power of two
        raw, natural = gauge, 1.0
    return ExponentScaling(gauge, raw, natural, False, in_pieces=True, far=far)


def _split_below_masks(gauge: Term) -> tuple[Term, float, float]:
    """As `scale_split`, and how large a number may be, also of scores that are -inf where a mask hides them."""
    hidden = const(-inf)
    if gauge.op != "where" or hidden not in gauge.args[1:]:
        return *scale_split(gauge), magnitude(gauge)
    condition, yes, no = gauge.args
    raw, natural, size = _split_below_masks(no if yes is hidden else yes)
    parts = (hidden, raw) if yes is hidden else (raw, hidden)
    return make("where", (condition, *parts)), natural, size


def holds_large_literal(score: Term) -> bool:
    """Whether a large number is in a score, as masks have it."""
    return any(n.op == "const" and LARGE_LITERAL < abs(n.attrs[0]) < inf for n in subterms(score))


def fixed_scale(kernel: Kernel, record: Accumulator) -> float | None:
    """A constant scale in base 2 for a whole loop, so that the loop needs no maximum; None if there is none.

    No score exceeds it, and every weight is a normal number. There is none if scores are not proved to lie within such
    bounds, if weights are rounded to a type of less range, or if results are more than ratios of weights.
    """
    floating = {t.dtype for t in kernel.inputs if "float" in t.dtype}
    low, high = proved(record.gauge)
    if floating != {"bfloat16"} or (high - low) * LOG2_E > MAX_HALVINGS or record.gauge in read_again(kernel):
        return None
    if any(loop.finite_mask for loop in kernel.loops):  # what is dropped is below every bound
        return None
    return high * LOG2_E if all(any_scale(s.term, record.reductions) for s in kernel.stores) else None


def read_again(kernel: Kernel) -> frozenset[Term]:
    """Scores that are computed again, here or by a later kernel, to subtract their largest one from them.

    The largest one must be exact to the bit: at 2e4 the next float32 is 0.2 % more weight. That does not hold for a
    log-sum-exp, which is no more exact itself.
    """
    states = [a for loop in kernel.loops for a in loop.accumulators]
    bodies = [body for a in states for body in (a.gauge, *a.values) if body is not None]
    bodies += [s.term for s in kernel.stores if not any(n.op == "log" for n in subterms(s.term))]
    read = {gauge_of(n.args[0]) for body in bodies for n in subterms(body) if n.op == "scale"}
    return frozenset(read.union(*_scores_together([a for a in states if a.gauge is not None], read)))


def scales_of_pieces(kernel: Kernel) -> ScalesOfPieces:
    """What the scales of a kernel in pieces have to be."""
    if read_again(kernel):
        return "exact"
    rescaled = [r for loop in kernel.loops for a in loop.accumulators if a.gauge is not None for r in a.reductions]
    return "lagging" if all(any_scale(store.term, rescaled) for store in kernel.stores) else "largest"


def _scores_together(states: Sequence[Accumulator], read: Set[Term]) -> Iterator[set[Term]]:
    """All scores of each state that has some of those that are read: one scale serves a state."""
    read = set(read)
    for state in states:
        scores = {gauge_of(r) for r in state.reductions}
        if scores & read:
            read |= scores
            yield scores


def gauge_of(state: Term) -> Term:
    """The scores of a softmax state."""
    return state.args[0].args[0]


def any_scale(term: Term, states: Collection[Term]) -> bool:
    """Whether the term does not depend on the scale of the states' mantissas, as ratios of weights do not."""
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
