"""Programs before and after the search agree exactly over finite fields; a wrong one does not."""

from math import inf

import pytest

from onepass.egraph.derivation.normalize import normalise
from onepass.egraph.search.search import search
from onepass.egraph.terms.ops import (
    const,
    eq,
    exp,
    iota,
    le,
    load,
    log,
    lt,
    mantissa,
    max_over,
    rescaled_sum,
    scale,
    sum_over,
    where,
)
from onepass.egraph.terms.term import Dim, Tensor
from onepass.proofs.provers.finite_field import GENERATOR, NotApplicable, P, Q, agree
from onepass.rules import NORMAL, PHASES

I, J, D, E = Dim("i", 3), Dim("j", 5), Dim("d", 2), Dim("e", 2)


def program(causal=False, width=8.0):
    q, k, v = (Tensor(name, "float32", (n, 2)) for name, n in (("q", 3), ("k", 5), ("v", 5)))
    at = lambda tensor, row, column: load(tensor, iota(row), iota(column))
    score = sum_over(D, at(q, I, D) * at(k, J, D))
    if causal:
        score = where(le(iota(J), iota(I)), score, const(-inf))
    score = score / const(width)
    weight = exp(score - max_over(J, score))
    return normalise(sum_over(J, weight / sum_over(J, weight) * at(v, J, E)), NORMAL)


def without(*names):
    return {phase: tuple(r for r in rules if r.name not in names) for phase, rules in PHASES.items()}


def test_the_fields_have_an_exponential():
    assert (P - 1) % Q == 0 and GENERATOR != 1 and pow(GENERATOR, Q, P) == 1


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("missing", ["nothing", "rescale_sum", "divisor_out_of_sum"])
def test_what_is_extracted_agrees(causal, missing):
    before = program(causal)
    after = search(before, without(missing)).term
    assert after is not before
    assert agree(before, after)


def test_other_programs_do_not_agree():
    one_pass = search(program(), PHASES).term
    assert not agree(program(causal=True), one_pass)
    assert not agree(program(width=4.0), one_pass)


def test_the_state_in_blocks_is_the_sum_and_a_forgotten_gauge_is_seen():
    s, w = (load(Tensor(name, "float32", (5,)), iota(J)) for name in "sw")
    state = mantissa(rescaled_sum(J, s, w))
    assert agree(sum_over(J, exp(s - max_over(J, s)) * w), state)
    assert not agree(sum_over(J, exp(s) * w), state)


def test_what_has_no_meaning_is_said():
    s = load(Tensor("s", "float32", (5,)), iota(J))
    with pytest.raises(NotApplicable, match="log"):
        agree(sum_over(J, log(s)), sum_over(J, s))
    with pytest.raises(NotApplicable, match="exponent here"):
        agree(sum_over(J, exp(s) * s), sum_over(J, s * exp(s)))


def test_a_state_of_absent_elements_has_no_mantissa():
    """It had the weight of some element, so a row without keys agreed with anything that gave that weight."""
    s, w = (load(Tensor(name, "float32", (5,)), iota(J)) for name in "sw")
    gone = where(lt(iota(J), const(0)), s, const(-inf))
    state = rescaled_sum(J, gone, w)
    one = load(Tensor("w", "float32", (5,)), const(4))
    assert not agree(mantissa(state), one)  # the left side is defined nowhere: nothing was compared
    assert not agree(one, mantissa(state))
    assert not agree(sum_over(J, w) * 0.0, sum_over(J, exp(gone - max_over(J, gone)) * w))
    guarded = where(eq(scale(state), const(-inf)), const(0.0), mantissa(state))
    assert agree(guarded, sum_over(J, exp(gone) * w))


def test_a_row_that_keeps_one_key_has_its_weight():
    s, w = (load(Tensor(name, "float32", (5,)), iota(J)) for name in "sw")
    one = where(eq(iota(J), const(2)), s, const(-inf))
    assert agree(mantissa(rescaled_sum(J, one, w)), load(Tensor("w", "float32", (5,)), const(2)))
