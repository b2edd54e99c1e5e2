"""Residues are those of fractions; powers of one level are by the next prime, and turn sums into products."""

from fractions import Fraction
from itertools import pairwise
from math import isqrt

import numpy as np
import pytest

from onepass.egraph.residues import PRIMES, inverses, mixed, of_fraction, powers_of_four, primes

RANDOM = np.random.default_rng(0)
X, Y = (RANDOM.integers(0, np.array(PRIMES)[:, None], (4, 200)) for _ in range(2))


def test_each_prime_is_twice_the_one_before_and_one():
    assert all(p % n for p in PRIMES for n in range(2, isqrt(p) + 1))
    for one, other in pairwise(PRIMES):
        assert other == 2 * one + 1 and pow(4, one, other) == 1
    assert max(PRIMES) ** 2 < 2**63, "products of residues fit in 64 bits"


@pytest.mark.parametrize("levels", [1, 2, 4])
def test_powers_turn_sums_into_products(levels):
    x, y = X[-levels:], Y[-levels:]
    both = (x + y) % primes(1, levels)
    found = [one * other % p for one, other, p in zip(powers_of_four(x), powers_of_four(y), PRIMES[5 - levels :])]
    assert len(found) == levels - 1
    assert all((one == other).all() for one, other in zip(powers_of_four(both), found, strict=True))
    assert [[*row[:9]] for row in powers_of_four(x)] == [
        [pow(4, int(n), p) for n in row[:9]] for row, p in zip(x, PRIMES[5 - levels :])
    ]


def test_inverses_are_those_of_the_field():
    for levels in (1, 4):
        assert (inverses(X[-levels:]) * X[-levels:] % primes(1, levels) == 1).all()
    assert not inverses(np.zeros((4, 3), np.int64)).any()


@pytest.mark.parametrize("value", [Fraction(-7, 4800), Fraction(0), Fraction(2.0**-60)])
def test_fractions_are_quotients(value):
    assert all((int(n) * value.denominator - value.numerator) % p == 0 for n, p in zip(of_fraction(value), PRIMES))


def test_mixed_bits_differ():
    found = mixed(np.arange(10_000, dtype=np.uint64))
    assert len(np.unique(found)) == 10_000 and abs((found >> np.uint64(63)).mean() - 0.5) < 0.05
