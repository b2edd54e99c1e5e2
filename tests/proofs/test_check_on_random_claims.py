"""What the provers prove of random claims holds at random points, by an evaluator written apart; and it can fail.

`python -m tests.proofs.fuzz --count 100000` is the long run.
"""

from random import Random

import pytest
from mpmath import mp, mpf

from onepass import rule
from onepass.egraph.terms.ops import const, exp, mantissa, max_over, rescaled_sum, scale, sqrt, sum_over, var
from onepass.egraph.terms.term import Dim
from onepass.proofs.check import Attempt
from onepass.proofs.provers.reduction_prover import NOT_EMPTY
from tests.proofs.fuzz.exact_values import INF, Values, close, power
from tests.proofs.fuzz.run import false_at, fuzz
from tests.proofs.true_laws import TRUE_LAWS

CLAIMS = 2000
J = Dim("j")


@pytest.mark.slow
def test_what_is_proved_of_random_claims_is_true():
    found = fuzz(CLAIMS, 0, seconds=0.04)
    assert not found.false, str(found)
    assert found.proved > CLAIMS / 10 and found.points > 2 * found.proved, str(found)


@rule
def root_of_square(x):
    """√(x · x) = x. Wrong: x = -1"""
    return sqrt(x * x), x


@rule
def sum_of_exponentials_is_positive(s: "j"):
    """max_j s = max_j s + 0 · Σ_j exp(s). Wrong: no elements, if one takes 0 / 0 for 0"""
    return sum_over("j", exp(s)) / sum_over("j", exp(s)), const(1.0)


@rule
def maximum_of_nothing(s: "j"):
    """max_j (s - s) = 0. Wrong: over no elements it is -∞"""
    return max_over("j", s - s), const(0.0)


@pytest.mark.parametrize("law", [root_of_square, maximum_of_nothing], ids=lambda law: law.name)
def test_a_false_proof_is_seen(law):
    assert false_at(law, Attempt(True), Random(0))[1]


def test_an_assumption_of_a_proof_is_no_false_proof():
    assert not false_at(maximum_of_nothing, Attempt(True, assumptions=(NOT_EMPTY,)), Random(0))[1]
    assert not false_at(sum_of_exponentials_is_positive, Attempt(True), Random(0))[1]


def test_true_laws_hold_at_random_points():
    for n, law in enumerate(TRUE_LAWS):
        met, wrong = false_at(law, Attempt(True, assumptions=(NOT_EMPTY,)), Random(n))
        assert met and not wrong, f"{law}\n{wrong}"


def value(term, size, **variables):
    named = {name: lambda at, x=x: x[at[J]] if isinstance(x, list) else x for name, x in variables.items()}
    return Values(named, {J: size}, False).value(term, {})


def test_a_state_without_elements_is_absent():
    state = rescaled_sum(J, var("s"), var("w"))
    for size, scores in ((0, []), (2, [-INF, -INF])):
        assert value(scale(state), size, s=scores, w=[mpf(1), mpf(2)]) == -INF
        assert value(mantissa(state), size, s=scores, w=[mpf(1), mpf(2)]) is None
    found = value(mantissa(state), 2, s=[mpf(1), mpf(3)], w=[mpf(2), mpf(5)])
    assert close(found, 2 * mp.exp(-2) + 5)


def test_powers_are_those_of_c():
    assert power(None, mpf(0)) == power(mpf(1), None) == 1
    assert power(mpf(0), mpf(-1)) is None and power(mpf(-2), mpf("0.5")) is None
    assert close(power(mpf(-2), mpf(3)), mpf(-8)) and power(-INF, mpf(3)) == -INF and power(-INF, mpf(-1)) == 0
