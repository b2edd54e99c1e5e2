"""Exact numbers: each is a residue modulo four primes, and a float64 beside them that says its order and its kind.

Nothing is rounded. Each prime divides the next one less 1, so that exp is a homomorphism from residues modulo one prime
to those modulo the next: e^(x + y) = e^x · e^y. The last residue counts: it is exact for three exponentials one in the
other; for fewer, fewer primes do, the last ones. The float64 only decides comparisons, and says what is infinite or
undefined. Invariant: of what is not finite, all residues are 0. Example: of_floats(0.75) has the residues of 3/4.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from fractions import Fraction
from functools import cache
from math import erf, isqrt, log
from typing import Any
from zlib import crc32

import numpy as np
import numpy.typing as npt

from ...egraph.residues import PRIMES, inverses, mixed, powers_of_four, primes
from ...egraph.residues import of_fraction as residues_of

LEVELS = len(PRIMES)
HALF_BITS = 15  # a product of matrices takes its left factor in two halves, so that float64 adds up exactly
EXACT_TERMS = 256  # products of 15 and 30 bits that float64 adds up exactly
LARGEST_FRACTION = 1 << 30  # numerator times denominator of a fraction that a literal is taken for
FEW_BITS = 24  # of a literal that stands for itself
LN2 = (27182818, 31415926, 123456789, 577215664)  # the residues of ln 2: any, as of a number without an equation
MASKED = -9000.0  # no score is below it but that of a mask
SINGLE_EXPONENTS = (-103.9, 88.7)  # where e^x is neither 0 nor ∞ in float32
LITERAL_ERROR = 2.0**-50  # the relative distance of a literal from the number that it is written for


@dataclass(frozen=True, eq=False)
class Numbers:
    """An array of exact numbers. parts: residues, with one axis more in front. shadow: float64.

    Residues are those of lowering/readback's RingNumbers. What is beside them is another thing there: the order is
    arbitrary, as tensors are, and a mask is infinitely far away. Here the order has to be that of floats: a text
    compares scores with the largest one so far, and without that one it is to overflow.
    """

    parts: np.ndarray
    shadow: np.ndarray

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of the array."""
        return self.shadow.shape

    @property
    def ndim(self) -> int:
        """The number of its axes."""
        return self.shadow.ndim

    def arranged(self, change: Callable[[np.ndarray], np.ndarray]) -> Numbers:
        """The same numbers in another arrangement: an index, a transpose, a broadcast."""
        return Numbers(np.stack([change(part) for part in self.parts]), change(self.shadow))


Value = Any  # Numbers, or an array of integers or bools


def made(parts: np.ndarray, shadow: np.ndarray) -> Numbers:
    """Numbers whose residues are reduced; 0 where they are not finite."""
    parts = parts % primes(parts.ndim - 1, len(parts))
    finite = np.isfinite(shadow)
    return Numbers(parts if finite.all() else np.where(finite, parts, 0), shadow)


# Making numbers


def of_integers(values: np.ndarray, levels: int = LEVELS) -> Numbers:
    """The numbers of an array of integers or bools."""
    values = np.asarray(values)
    whole = values.astype(np.int64)
    return Numbers(np.stack([whole % p for p in PRIMES[-levels:]]), values.astype(np.float64))


def of_floats(values: npt.ArrayLike, levels: int = LEVELS) -> Numbers:
    """The numbers of an array of floats, each exactly: a whole number times a power of two."""
    shadow = np.asarray(values, np.float64)
    fraction, exponent = np.frexp(np.where(np.isfinite(shadow), shadow, 0.0))
    whole = np.ldexp(fraction, 53).astype(np.int64)
    shift = exponent.astype(np.int64) - 53
    parts = [whole % p * _power_of_two(p, shift) for p in PRIMES[-levels:]]
    return made(np.stack(parts), shadow)


def numbers(value: Numbers | npt.ArrayLike) -> Numbers:
    """The value as numbers. A float of Python is what a literal says."""
    if isinstance(value, Numbers):
        return value
    if isinstance(value, float):
        return literal(value)
    value = np.asarray(value)
    return of_floats(value) if value.dtype.kind == "f" else of_integers(value)


def of_fraction(value: Fraction, times_ln2: int = 0) -> Numbers:
    """A fraction times a power of ln 2."""
    powers = np.array([pow(n, times_ln2, p) for n, p in zip(LN2, PRIMES)])
    return made(residues_of(value) * powers, np.array(float(value) * log(2) ** times_ln2))


@cache
def literal(value: float, known: tuple[float, ...] = ()) -> Numbers:
    """The number that a literal is written for: a fraction or the root of one, or that times ln 2 or over ln 2.

    known: literals of terms, of which it may be a multiple, as a product of two literals is. Else it is the float
    itself. A known literal has one meaning, whatever else is known: terms say it without the others.
    """
    if not np.isfinite(value) or Fraction(value).denominator <= 1 << FEW_BITS:
        return of_floats(value)
    if known and abs(value) in map(abs, known):
        return literal(value)
    for power in (0, -1, 1):
        rest = value / log(2) ** power
        if (found := _near(rest)) is not None:
            return Numbers(of_fraction(found, power).parts, np.array(value))
        if (found := _near(rest * abs(rest))) is not None:  # the root of a fraction
            root = multiply(_root(found), of_fraction(Fraction(1), power))
            return Numbers(root.parts, np.array(value))
        for other in known:
            if other and (found := _near(rest / other)) is not None:
                return Numbers(multiply(literal(other), of_fraction(found, power)).parts, np.array(value))
    return of_floats(value)


def _near(value: float) -> Fraction | None:
    """The simplest fraction that a float is the nearest one to, or nearly so; None if that is no simple one.

    Every float is near some fraction. One whose numerator and denominator have few digits together is no accident.
    """
    exact = rest = Fraction(value)
    before, found = (0, 1), (1, 0)
    while True:  # the convergents of a continued fraction
        whole = rest.numerator // rest.denominator
        before, found = found, (whole * found[0] + before[0], whole * found[1] + before[1])
        if abs(found[0]) * found[1] > LARGEST_FRACTION or not exact:
            return None
        if found[0] and abs(Fraction(*found) / exact - 1) <= LITERAL_ERROR:
            return Fraction(*found)
        rest = 1 / (rest - whole)


def _root(square: Fraction) -> Numbers:
    """√a/b as √ab / b, where a factor that is a square is drawn out of the root. The sign is that of `square`."""
    inside, outside = abs(square.numerator) * square.denominator, Fraction(1, square.denominator)
    for n in range(2, isqrt(inside) + 1):
        while inside % (n * n) == 0:
            inside, outside = inside // (n * n), outside * n
    outside = outside if square > 0 else -outside
    return multiply(of_fraction(outside), unknown_function("sqrt", of_integers(np.array(inside))))


@cache
def _powers_of_two(p: int) -> np.ndarray:
    """2^n for -1200 <= n < 1200, modulo a prime."""
    return np.array([pow(2, n, p) for n in range(-1200, 1200)], np.int64)


def _power_of_two(p: int, exponents: np.ndarray) -> np.ndarray:
    return _powers_of_two(p)[exponents + 1200]


# Arithmetic


def aligned(a: Numbers, b: Numbers) -> tuple[Numbers, Numbers]:
    """Two arrays with as many axes, missing ones in front, and modulo as many primes."""
    width, levels = max(a.ndim, b.ndim), min(len(a.parts), len(b.parts))
    return _with(a, width, levels), _with(b, width, levels)


def _with(x: Numbers, width: int, levels: int) -> Numbers:
    if x.ndim == width:
        return x if len(x.parts) == levels else Numbers(x.parts[-levels:], x.shadow)
    shape = (1,) * (width - x.ndim) + x.shape
    return Numbers(x.parts[-levels:].reshape(levels, *shape), x.shadow.reshape(shape))


def add(a: Numbers, b: Numbers) -> Numbers:
    """a + b."""
    a, b = aligned(a, b)
    with np.errstate(all="ignore"):
        return made(a.parts + b.parts, a.shadow + b.shadow)


def subtract(a: Numbers, b: Numbers) -> Numbers:
    """a - b."""
    a, b = aligned(a, b)
    with np.errstate(all="ignore"):
        return made(a.parts - b.parts, a.shadow - b.shadow)


def multiply(a: Numbers, b: Numbers) -> Numbers:
    """a · b."""
    a, b = aligned(a, b)
    with np.errstate(all="ignore"):
        return made(a.parts * b.parts, a.shadow * b.shadow)


def negate(a: Numbers) -> Numbers:
    """-a."""
    return made(-a.parts, -a.shadow)


def divide(a: Numbers, b: Numbers) -> Numbers:
    """a / b. What is divided by an infinity is 0."""
    a, b = aligned(a, b)
    with np.errstate(all="ignore"):
        return made(a.parts * inverses(b.parts), a.shadow / b.shadow)


def exp(a: Numbers) -> Numbers:
    """e^a; 0 where a is -∞, or as far below as the large negative score of a mask is.

    The shadow is infinite or 0 where a float32 is, so that a kernel without its shift shows.
    """
    low, high = SINGLE_EXPONENTS
    with np.errstate(all="ignore"):
        shadow = np.where(a.shadow > high, np.inf, np.where(a.shadow < low, 0.0, np.exp(a.shadow)))
    parts = [_any_function("exp", PRIMES[-len(a.parts)], a.parts[0]), *powers_of_four(a.parts)]
    return made(np.where(a.shadow < MASKED, 0, np.stack(parts)), shadow)


def exp2(a: Numbers) -> Numbers:
    """2^a."""
    return exp(multiply(a, of_fraction(Fraction(1), 1)))


# Functions of which no equation is known


def _any_function(name: str, p: int, part: np.ndarray) -> np.ndarray:
    """A function that differs for each name: a fixed random number, not 0, for each residue modulo p."""
    bits = mixed(np.array(part, np.uint64, ndmin=1) + np.uint64(crc32(f"{name} {p}".encode()) << 31))
    return ((bits % np.uint64(p - 1)).astype(np.int64) + 1).reshape(np.shape(part))


KNOWN_VALUES = {"log": {1: 0}, "sqrt": {0: 0, 1: 1}, "erf": {0: 0}, "sin": {0: 0}, "cos": {0: 1}}
_ERF = np.vectorize(erf, otypes=[float])
FLOAT_FUNCTIONS: dict[str, Callable] = {"log": np.log, "sqrt": np.sqrt, "erf": _ERF, "sin": np.sin, "cos": np.cos}


def unknown_function(name: str, a: Numbers) -> Numbers:
    """log, sqrt, erf, sin or cos, as functions that are the same on both sides and have the values of KNOWN_VALUES."""
    with np.errstate(all="ignore"):
        shadow = FLOAT_FUNCTIONS[name](a.shadow)
    parts = np.stack([_any_function(name, p, part) for p, part in zip(PRIMES[-len(a.parts) :], a.parts)])
    for argument, result in KNOWN_VALUES[name].items():
        parts = np.where(a.parts == argument, result, parts)
    return made(parts, shadow)


def floor(a: Numbers) -> Numbers:
    """The largest whole number up to a."""
    return of_floats(np.floor(a.shadow))


# Order


def equal(a: Numbers, b: Numbers) -> np.ndarray:
    """a = b, by residues where both are finite."""
    a, b = aligned(a, b)
    finite = np.isfinite(a.shadow) & np.isfinite(b.shadow)
    return np.where(finite, a.parts[-1] == b.parts[-1], a.shadow == b.shadow)


def less(a: Numbers, b: Numbers) -> np.ndarray:
    """a < b."""
    a, b = aligned(a, b)
    return (a.shadow < b.shadow) & ~equal(a, b)


def choose(condition: np.ndarray, a: Numbers, b: Numbers) -> Numbers:
    """a where the condition holds, else b. All have as many axes, or the condition is broadcast as numpy does it."""
    a, b = aligned(a, b)
    parts = np.where(condition, a.parts, b.parts) if condition.ndim <= a.ndim else None
    if parts is None:
        parts = np.stack([np.where(condition, x, y) for x, y in zip(a.parts, b.parts)])
    return Numbers(parts, np.where(condition, a.shadow, b.shadow))


def largest(a: Numbers, b: Numbers, propagates: bool = True) -> Numbers:
    """The larger one. propagates: an undefined one is the result; else the other one."""
    a, b = aligned(a, b)
    first = (a.shadow >= b.shadow) | (np.isnan(a.shadow) if propagates else np.isnan(b.shadow))
    return choose(first, a, b)


def smallest(a: Numbers, b: Numbers, propagates: bool = True) -> Numbers:
    """The smaller one, as `largest` is the larger one."""
    return negate(largest(negate(a), negate(b), propagates))


# Folds


def total(a: Numbers, axis: int) -> Numbers:
    """The sum along an axis."""
    with np.errstate(all="ignore"):
        return made(a.parts.sum(axis if axis < 0 else axis + 1), a.shadow.sum(axis))


def highest(a: Numbers, axis: int, propagates: bool = True) -> Numbers:
    """The maximum along an axis."""
    shadow = a.shadow if propagates else np.where(np.isnan(a.shadow), -np.inf, a.shadow)
    place = np.expand_dims(np.argmax(shadow, axis), axis)  # of numpy: the first undefined one
    picked = lambda part: np.squeeze(np.take_along_axis(part, place, axis), axis)
    return a.arranged(picked)


def matrix_product(a: Numbers, b: Numbers) -> Numbers:
    """The product over the last axis of a and the last but one of b; the axes before are broadcast."""
    a, b = aligned(a, b)
    parts = [_product_modulo(x, y, p) for x, y, p in zip(a.parts, b.parts, PRIMES[-len(a.parts) :])]
    with np.errstate(all="ignore"):
        return made(np.stack(parts), a.shadow @ b.shadow)


def _product_modulo(a: np.ndarray, b: np.ndarray, p: int) -> np.ndarray:
    found: Any = 0
    for first in range(0, max(a.shape[-1], 1), EXACT_TERMS):
        some = slice(first, first + EXACT_TERMS)
        left, right = a[..., some], b[..., some, :].astype(np.float64)
        high = ((left >> HALF_BITS).astype(np.float64) @ right).astype(np.int64) % p
        low = ((left & ((1 << HALF_BITS) - 1)).astype(np.float64) @ right).astype(np.int64) % p
        found = (found + (high << HALF_BITS) + low) % p
    return found
