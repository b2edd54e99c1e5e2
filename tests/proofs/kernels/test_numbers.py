"""Exact numbers: laws hold by residues, literals are what they are written for, and infinities follow float64."""

import math

import numpy as np
import pytest

from onepass.proofs.kernels import numbers as exact

RANDOM = np.random.default_rng(0)
X, Y = (exact.of_floats(RANDOM.standard_normal(200)) for _ in range(2))


def same(a, b, levels=1):
    """Whether two arrays are equal modulo the last primes."""
    a, b = exact.aligned(a, b)
    return bool((a.parts[-levels:] == b.parts[-levels:]).all())


def test_products_of_matrices_add_up_exactly():
    assert exact.EXACT_TERMS * max(exact.PRIMES) * (1 << exact.HALF_BITS) < 2**53


def test_exponentials_turn_sums_into_products_up_to_three_in_one_another():
    once = exact.exp(exact.add(X, Y)), exact.multiply(exact.exp(X), exact.exp(Y))
    assert same(*once, levels=exact.LEVELS - 1)
    twice, thrice = [exact.exp(x) for x in once], [exact.exp(exact.exp(x)) for x in once]
    assert same(*twice, levels=exact.LEVELS - 2) and same(*thrice)
    assert not same(exact.exp(exact.add(X, X)), once[1])


def test_arithmetic_is_that_of_fractions():
    both = exact.add(X, Y)
    assert same(exact.subtract(both, Y), X, exact.LEVELS)
    assert same(exact.divide(exact.multiply(X, Y), Y), X, exact.LEVELS)
    assert same(exact.of_floats(0.75), exact.divide(exact.of_integers(3), exact.of_integers(4)), exact.LEVELS)
    assert same(exact.negate(exact.of_floats(-2.5)), exact.of_floats(2.5))


@pytest.mark.parametrize("value", [0.1, 1 / 3, 0.25, -7.5, 300.0, 0.01, 8**-0.5, -(128**-0.5), 80**-0.5])
def test_literals_are_fractions_also_over_and_times_the_logarithm_of_2(value):
    over = exact.multiply(exact.literal(value * math.log2(math.e)), exact.literal(math.log(2)))
    assert same(over, exact.literal(value)) and not same(exact.literal(value), exact.literal(value + 1))
    assert same(exact.exp2(exact.literal(value * math.log2(math.e))), exact.exp(exact.literal(value)))


def test_products_of_matrices_are_sums_of_products():
    a, b = (exact.of_floats(RANDOM.standard_normal(shape)) for shape in ((3, 5, 600), (3, 600, 7)))
    product = exact.matrix_product(a, b)
    one = lambda x, axis: x.arranged(lambda part: np.expand_dims(part, axis))
    assert same(product, exact.total(exact.multiply(one(a, 3), one(b, 1)), 2), exact.LEVELS)


def test_what_is_not_finite_follows_floats():
    low = exact.of_floats(-np.inf)
    assert exact.exp(low).shadow == 0 and not exact.exp(low).parts.any()
    assert same(exact.largest(X, low), X) and np.isnan(exact.subtract(low, low).shadow)
    assert exact.divide(exact.literal(1.0), exact.literal(0.0)).shadow == np.inf
    assert exact.exp(exact.literal(1000.0)).shadow == np.inf  # as in float32
    undefined = exact.of_floats(np.nan)
    assert np.isnan(exact.largest(X, undefined).shadow).all() and same(exact.largest(X, undefined, False), X)
    assert np.isnan(exact.highest(exact.of_floats([1.0, np.nan]), 0).shadow)


def test_order_is_that_of_floats_and_equality_that_of_residues():
    third = exact.divide(exact.literal(1.0), exact.literal(3.0))
    assert exact.equal(exact.multiply(third, exact.literal(3.0)), exact.literal(1.0))
    sums = exact.add(exact.literal(0.1), exact.literal(0.2))
    assert exact.equal(sums, exact.literal(0.3)) and not exact.less(exact.literal(0.3), sums)
    assert (exact.less(X, Y) == (X.shadow < Y.shadow)).all()
    picked = exact.highest(X, 0)
    assert picked.shadow == X.shadow.max() and same(picked, exact.of_floats(X.shadow.max()))


def test_functions_without_equations_differ_and_keep_their_known_values():
    assert not same(exact.unknown_function("sin", X), exact.unknown_function("erf", X))
    assert same(exact.unknown_function("log", exact.literal(1.0)), exact.literal(0.0))
    assert len(np.unique(exact.unknown_function("sin", X).parts[-1])) == 200


def test_fewer_primes_give_the_same_last_residues():
    few = exact.of_floats(X.shadow, levels=2)
    assert len(few.parts) == 2 and same(exact.exp(few), exact.exp(X)) and same(exact.add(few, Y), exact.add(X, Y), 2)


def test_a_literal_may_be_a_multiple_of_another_one():
    other = 0.123456789123
    found = exact.literal(other * 0.5 * math.log2(math.e), (other,))
    assert same(exact.multiply(found, exact.literal(2 * math.log(2))), exact.literal(other))
    assert not same(exact.literal(0.51, (other,)), found)


@pytest.mark.parametrize("value", [math.log(100), 0.123456789123, 1 / 4800, 1e-12, 1 / 3])
def test_a_known_literal_has_the_same_meaning_whatever_else_is_known(value):
    """ln 100 is no multiple of 1e-12, though it is near one: every float is. 1/4800 is 1/1200 of 1/4, and itself."""
    for known in ((1e-12, value), (0.25, value), (value, 0.1)):
        assert same(exact.literal(value, known), exact.literal(value), exact.LEVELS)
        assert same(exact.literal(-value, known), exact.negate(exact.literal(value)), exact.LEVELS)


def test_floats_are_no_fractions_by_accident():
    floats = np.exp(RANDOM.uniform(-20, 20, 500))
    assert all(same(exact.literal(x), exact.of_floats(x)) for x in floats)
    few = [n / d for n, d in RANDOM.integers(1, 2**15, (50, 2))]
    found = [exact.multiply(exact.literal(x), exact.literal(y)) for x, y in zip(few, 1 / np.array(few))]
    assert all(same(x, exact.literal(1.0), exact.LEVELS) for x in found)
