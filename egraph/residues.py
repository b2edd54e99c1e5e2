"""Residues modulo four primes, of which each is twice the one before and 1: powers of 4 turn sums into products.

An array of residues has one axis more in front, for the primes: the last ones of PRIMES, as many as it has rows. The
numbers that plans are read back with and those that texts of kernels are run with are such residues, and differ in what
is beside them: an order, and what is infinite or undefined. Invariant: a residue is at least 0 and less than its prime.
Example: of one level to the next, the power of x + y is that of x times that of y.
"""

from __future__ import annotations

from fractions import Fraction
from functools import cache

import numpy as np

PRIMES = (75464429, 150928859, 301857719, 603715439)  # products of two fit in 64 bits, and of 256 by 15 bits in float64
TABLE_BITS = 15  # of an exponent: its powers are products of two that are looked up


@cache
def primes(rank: int, levels: int = len(PRIMES)) -> np.ndarray:
    """The last primes, as many as there are levels, beside an array of this rank."""
    return np.array(PRIMES[-levels:], np.int64).reshape(-1, *[1] * rank)


def of_fraction(value: Fraction) -> np.ndarray:
    """The residues of a fraction, one by each prime."""
    return np.array([value.numerator * pow(value.denominator, -1, p) % p for p in PRIMES], np.int64)


def inverses(residues: np.ndarray) -> np.ndarray:
    """1 over each residue, by Fermat's theorem; 0 for 0."""
    return np.stack([_power(row, p - 2, p) for row, p in zip(residues, PRIMES[-len(residues) :], strict=True)])


def _power(base: np.ndarray, exponent: int, p: int) -> np.ndarray:
    found = np.ones_like(base)
    while exponent:
        if exponent & 1:
            found = found * base % p
        base, exponent = base * base % p, exponent >> 1
    return found


def powers_of_four(residues: np.ndarray) -> list[np.ndarray]:
    """4 to each residue, modulo the next prime: one row fewer. The order of 4 is the prime before."""
    found = []
    for exponents, p in zip(residues, PRIMES[len(PRIMES) - len(residues) + 1 :]):
        low, high = _tables(p)
        found.append(low[exponents & ((1 << TABLE_BITS) - 1)] * high[exponents >> TABLE_BITS] % p)
    return found


@cache
def _tables(p: int) -> tuple[np.ndarray, np.ndarray]:
    """4^k for k below 2^15, and for its multiples."""
    found = []
    for step in (4, pow(4, 1 << TABLE_BITS, p)):
        table = np.ones(1, np.int64)
        while len(table) < 1 << TABLE_BITS:
            table = np.concatenate([table, table * pow(step, len(table), p) % p])
        found.append(table)
    return found[0], found[1]


def mixed(bits: np.ndarray) -> np.ndarray:
    """64 bits that depend on all of the given ones: what an arbitrary function is made of."""
    bits = (bits ^ (bits >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    bits = (bits ^ (bits >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return bits ^ (bits >> np.uint64(31))
