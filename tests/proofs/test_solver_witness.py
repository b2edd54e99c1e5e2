"""Rules that are false only near their own constants are refuted: by draws near them, and by models of z3."""

import pytest

from onepass import rule
from onepass.egraph import constant, nonzero
from onepass.egraph.terms.ops import const, eq, exp, lt, minimum, sum_over, where
from onepass.proofs.check import check
from onepass.proofs.solver_witness import counterexample_of_solver

REALS, ZERO = "scores are finite", const(0.0)


@rule(exact=REALS)
def unless_a_number(x):
    """where(x = 37.5, 0, x) = x"""
    return where(eq(x, const(37.5)), ZERO, x), x


@rule(exact=REALS)
def unless_just_above_a_number(x):
    """where(37.5 < x < 37.5 + 2e-14, 0, x) = x"""
    return where(lt(const(37.5), x) & lt(x, const(37.50000000000002)), ZERO, x), x


@rule(exact=REALS)
def unless_half_of_a_number(x):
    """where(2 · x = 123.25, 0, x) = x"""
    return where(eq(x * 2.0, const(123.25)), ZERO, x), x


@rule
def unless_an_index(n: "index"):
    """where(n = 123456, 0, n) = n"""
    return where(eq(n, const(123456)), const(0), n), n


@rule(when=lambda c: constant(c), exact=REALS)
def unless_a_literal(x, c: "constant"):
    """where(c = 41.25, 0, x) = x"""
    return where(eq(c, const(41.25)), ZERO, x), x


@rule(when=lambda g: nonzero(g), exact="sizes are positive")
def unless_a_divisor(a: "index", g: "index constant"):
    """where(g = 77, 0, a % g) = a % g"""
    return where(eq(g, const(77)), const(0), a % g), a % g


@rule(exact=REALS)
def unless_a_length(x: "j"):
    """where(n = 23, 0, n) = n for the length n"""
    count = sum_over("j", x - x + 1.0)
    return where(eq(count, const(23.0)), ZERO, count), count


@rule(exact=REALS)
def for_short_ranges(x: "j"):
    """min(n, 4) = n for the length n"""
    count = sum_over("j", x - x + 1.0)
    return minimum(count, const(4.0)), count


NEAR_ITS_CONSTANT = [value for value in list(globals().values()) if type(value).__name__ == "Rule"]


@pytest.mark.parametrize("law", NEAR_ITS_CONSTANT, ids=lambda law: law.name)
def test_a_rule_that_is_false_near_its_constant_is_refuted(law):
    found = check(law)
    assert found.status == "refuted" and found.counterexample is not None


@rule(exact=REALS)
def unless_a_cube(x):
    """where(x³ = 3375, 0, x) = x"""
    return where(eq(x * x * x, const(3375.0)), ZERO, x), x


@rule(exact=REALS)
def unless_on_a_line(x, y):
    """where(3 · x + 7 · y = 1001 and x = 4 · y, 0, x) = x"""
    return where(eq(x * 3.0 + y * 7.0, const(1001.0)) & eq(x, y * 4.0 - 19.0), ZERO, x), x


@rule(exact=REALS)
def unless_a_cube_within_a_sum(x: "j"):
    """Σ_j exp(where(x³ = 3375, 0, x)) = Σ_j exp(x)"""
    return sum_over("j", exp(where(eq(x * x * x, const(3375.0)), ZERO, x))), sum_over("j", exp(x))


@pytest.mark.sampled(1)
@pytest.mark.parametrize("law", [unless_a_cube, unless_on_a_line, unless_a_cube_within_a_sum], ids=lambda law: law.name)
def test_a_model_of_the_solver_is_a_counterexample(law):
    pytest.importorskip("z3")
    assert counterexample_of_solver(law) is not None
    assert check(law).status == "refuted"


@rule(exact=REALS)
def an_unknown_function(x):
    """exp(x) = exp(x · 1) + 0, in words that the solver cannot decide"""
    return exp(x), exp(x * 1.0) + (exp(x + 0.0) - exp(x))


def test_a_model_that_is_none_refutes_nothing():
    assert counterexample_of_solver(an_unknown_function) is None
