"""RingNumbers in which equal programs are exactly equal: residues by four primes, and multiples of something far away.

A number is far · Ω + r: r is a residue by each of four primes, Ω is beyond all of them, and far is a float, which may
be -∞ or NaN. Every function is an arbitrary one, as is the order, but exp takes sums to products: exp(t, u, v, w) is
(1, 4^t, 4^u, 4^v). Invariant: programs that are equal by the laws of fields, of exp and of orders give equal numbers,
and others different ones but for a chance of about 10^-8. Example: exp(x) · exp(y) is exp(x + y). A literal mask such
as -1e9 is far. The numbers of proofs/kernels/numbers.py have the same residues, but the order of floats.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from fractions import Fraction
from functools import lru_cache
from math import copysign, inf, isfinite, nan

import numpy as np

from ...egraph.residues import PRIMES, inverses, mixed, of_fraction, powers_of_four, primes

P = PRIMES[0]
FAR_BELOW, FAR_ABOVE = -(2.0**15), 2.0**24  # literals beyond them are far: fills of masks, no coordinates
ABSORBING = 2.0**100  # in float32, nothing that is added to a number as far as this changes it
ZERO = np.uint64(0)


@dataclass(frozen=True)
class RingNumbers:
    """An array of numbers. residues: int64 [4, ...]; far: float64 [...], or None where no number is far.

    real: the value of a literal, which decides where it is in the order.
    """

    residues: np.ndarray
    far: np.ndarray | None = None
    real: float | None = None

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of the array of numbers."""
        return self.residues.shape[1:]


def of_parts(residues: np.ndarray, far: np.ndarray | None) -> RingNumbers:
    """The numbers; next to what is infinite, undefined or absorbing nothing else counts."""
    if far is None:
        return RingNumbers(residues)
    if not far.any():  # NaN counts as true
        return RingNumbers(residues)
    lost = ~(np.abs(far) < ABSORBING)
    residues, lost = np.broadcast_arrays(residues, lost[None])
    return RingNumbers(np.where(lost, 0, residues), far)


def literal(value: float) -> RingNumbers:
    """A literal as a number without axes."""
    return _literal(float(value), copysign(1.0, value) < 0)


@lru_cache(4096)
def _literal(value: float, _negative: bool) -> RingNumbers:
    if not isfinite(value) or value <= FAR_BELOW or value >= FAR_ABOVE:
        return RingNumbers(np.zeros(len(PRIMES), np.int64), np.array(value))
    return rational(Fraction(value))


def rational(exact: Fraction) -> RingNumbers:
    """A rational number without axes."""
    return RingNumbers(of_fraction(exact), None, float(exact))


def of_integers(values: np.ndarray) -> RingNumbers:
    """Whole numbers and truth values as numbers."""
    values = np.asarray(values).astype(np.int64)
    return RingNumbers(values[None] % primes(values.ndim))


# Hashes: arbitrary functions


def of_bits(bits: np.ndarray) -> RingNumbers:
    """RingNumbers that are as good as random, by 64 bits each."""
    steps = np.arange(1, 1 + len(PRIMES), dtype=np.uint64).reshape(-1, *[1] * bits.ndim) * np.uint64(0x9E3779B97F4A7C15)
    residues = (mixed(bits[None] + steps) >> ONE).astype(np.int64)
    return RingNumbers(residues % primes(bits.ndim))


ONE = np.uint64(1)
_WEIGHTS = [np.uint64(w) for w in (0x9E3779B97F4A7C15, 0xC2B2AE3D27D4EB4F, 0x165667B19E3779F9, 0x27D4EB2F165667C5)]


def bits_of(x: RingNumbers) -> np.ndarray:
    """64 bits for each number, which order numbers arbitrarily."""
    parts = x.residues.view(np.uint64)
    return mixed(sum(part * weight for part, weight in zip(parts, _WEIGHTS, strict=True)))


def arbitrary(seed: int, *operands: RingNumbers) -> RingNumbers:
    """The values of an arbitrary function; of an undefined operand it is undefined."""
    total, far = np.asarray(np.uint64(seed)), None
    for x in operands:
        bits = bits_of(x)
        if x.far is not None:
            bits = bits ^ mixed((x.far + 0.0).view(np.uint64))
            far = x.far if far is None else far + x.far
        total = mixed(total + bits)
    found = of_bits(total)
    return found if far is None else of_parts(found.residues, np.where(np.isnan(far), nan, np.zeros(found.shape)))


# Arithmetic


def _far(x: RingNumbers) -> np.ndarray | float:
    return 0.0 if x.far is None else x.far


def add(a: RingNumbers, b: RingNumbers, sign: int = 1) -> RingNumbers:
    """The sum, or with sign -1 the difference."""
    total = a.residues + b.residues if sign > 0 else a.residues - b.residues
    total = total % primes(total.ndim - 1)
    if a.far is None and b.far is None:
        return RingNumbers(total)
    return of_parts(total, np.asarray(_far(a) + sign * _far(b)))


def negative(a: RingNumbers) -> RingNumbers:
    """The number with the other sign."""
    return of_parts(-a.residues % primes(len(a.shape)), None if a.far is None else -a.far)


def multiply(a: RingNumbers, b: RingNumbers) -> RingNumbers:
    """The product. A near factor of a far number that is no small rational number counts as an arbitrary one."""
    product = a.residues * b.residues
    product = product % primes(product.ndim - 1)
    if a.far is None and b.far is None:
        return RingNumbers(product)
    return of_parts(product, _far_product(a, b))


def multiplied(a: RingNumbers, factor: Fraction) -> RingNumbers:
    """The product with a rational number."""
    return multiply(a, _with_axes(rational(factor), a.residues[0]))


def _far_product(a: RingNumbers, b: RingNumbers) -> np.ndarray:
    """How far products are."""
    one, other = _magnitude(a), _magnitude(b)
    both_near = (np.asarray(_far(a)) == 0) & (np.asarray(_far(b)) == 0)
    return np.where(both_near, 0.0, one * other)


MOST_KNOWN = 4096  # of numbers k/n with n among DENOMINATORS that are recognised
DENOMINATORS = (1, 2, 4, 8, 16, 32, 64, 128)


def _magnitude(x: RingNumbers) -> np.ndarray:
    """Far numbers as floats; of near ones small rational numbers as they are, and others as arbitrary positive ones."""
    found = 0.5 + (bits_of(x) >> np.uint64(12)) * 2.0**-52
    unknown = np.ones(x.shape, bool)
    for d in DENOMINATORS:
        scaled = x.residues * d % primes(len(x.shape))
        for sign in (1, -1):
            value = scaled[0] if sign > 0 else P - scaled[0]
            same = (value <= MOST_KNOWN) & (sign * value % primes(value.ndim) == scaled).all(axis=0)
            found, unknown = np.where(same & unknown, sign * value / d, found), unknown & ~same
    return found if x.far is None else np.where(x.far == 0, found, x.far)


def divide(a: RingNumbers, b: RingNumbers) -> RingNumbers:
    """The quotient; by 0, and of two far numbers, it is undefined. By a far number it is 0."""
    quotient = a.residues * inverses(b.residues)
    quotient = quotient % primes(quotient.ndim - 1)
    singular = (b.residues == 0).any(axis=0)
    if a.far is None and b.far is None:
        return of_parts(quotient, np.where(singular, nan, 0.0)) if singular.any() else RingNumbers(quotient)
    above, below = np.asarray(_far(a)), np.asarray(_far(b))
    by_near = np.where(singular, nan, np.where(above != 0, _magnitude(a) / _magnitude(b), 0.0))
    by_far = np.where((above != 0) | np.isnan(below), nan, 0.0)
    residues = np.where(np.broadcast_to(below != 0, quotient.shape[1:])[None], 0, quotient)
    return of_parts(residues, np.where(below != 0, by_far, by_near))


def power(a: RingNumbers, exponent: int) -> RingNumbers:
    """A whole power."""
    result = _with_axes(literal(1.0), a.residues[0])
    for _ in range(exponent):
        result = multiply(result, a)
    return result


def exponential(x: RingNumbers) -> RingNumbers:
    """exp: of what is far below it is 0, of what is far above it is infinite."""
    found = np.stack([np.ones_like(x.residues[0]), *powers_of_four(x.residues)])
    if x.far is None:
        return RingNumbers(found)
    far = np.where(x.far > 0, inf, np.where(np.isnan(x.far), nan, 0.0))
    return of_parts(np.where(x.far[None] < 0, 0, found), far)


# Orders and choices


def _positive(x: RingNumbers) -> np.ndarray:
    """Which numbers count as positive: half of all, 0 and what exp gives."""
    return 2 * x.residues[0] < P


def _place(x: RingNumbers) -> np.ndarray | float:
    """Where numbers are in the order: literals and 0 at their values, others somewhere between -2 and 2."""
    if x.real is not None:
        return x.real
    positive, near = _positive(x), RingNumbers(x.residues)
    distance = (bits_of(choose(positive, near, negative(near))) >> np.uint64(12)) * 2.0**-51
    return np.where((x.residues == 0).all(axis=0), 0.0, np.where(positive, distance, -distance))


def magnitude(x: RingNumbers) -> RingNumbers:
    """The absolute value, by the order."""
    below = np.less(_place(x), 0.0)
    return choose(below if x.far is None else np.where(x.far == 0, below, x.far < 0), negative(x), x)


def less(a: RingNumbers, b: RingNumbers) -> np.ndarray:
    """Whether the first number is the smaller one: the nearer to -∞, or of two near ones by an arbitrary order."""
    smaller = np.less(_place(a), _place(b))
    if a.far is None and b.far is None:
        return smaller
    one, other = _far(a), _far(b)
    return np.where(np.equal(one, other), smaller, np.less(one, other))


def equal(a: RingNumbers, b: RingNumbers) -> np.ndarray:
    """Whether they are one number. An undefined one equals none."""
    a, b = _with_axes(a, b.residues[0]), _with_axes(b, a.residues[0])
    same = (a.residues == b.residues).all(axis=0)
    return same if a.far is None and b.far is None else same & np.equal(_far(a), _far(b))


def choose(condition: np.ndarray, yes: RingNumbers, no: RingNumbers) -> RingNumbers:
    """One of two numbers at each place."""
    condition, yes, no = np.asarray(condition), _with_axes(yes, condition), _with_axes(no, condition)
    residues = np.where(condition[None], yes.residues, no.residues)
    if yes.far is None and no.far is None:
        return RingNumbers(residues)
    return of_parts(residues, np.where(condition, _far(yes), _far(no)))


def _with_axes(x: RingNumbers, like: np.ndarray) -> RingNumbers:
    """A literal, which has no axes, with as many as an array has."""
    return x if x.residues.ndim > 1 else RingNumbers(x.residues.reshape(-1, *[1] * np.ndim(like)), x.far, x.real)


def largest(a: RingNumbers, b: RingNumbers) -> RingNumbers:
    """The larger one; undefined if one of them is."""
    found = choose(np.asarray(less(a, b)), b, a)
    if a.far is None and b.far is None:
        return found
    return of_parts(found.residues, np.where(_undefined(a, b), nan, _far(found)))


def _undefined(a: RingNumbers, b: RingNumbers) -> np.ndarray:
    return np.isnan(_far(a)) | np.isnan(_far(b))


def smallest(a: RingNumbers, b: RingNumbers) -> RingNumbers:
    """The smaller one; undefined if one of them is."""
    found = choose(np.asarray(less(a, b)), a, b)
    if a.far is None and b.far is None:
        return found
    return of_parts(found.residues, np.where(_undefined(a, b), nan, _far(found)))


# Folds along an axis, which is counted without that of the residues


def total(x: RingNumbers, axis: int) -> RingNumbers:
    """The sum along an axis, which stays with length 1."""
    residues = x.residues.sum(axis=axis + 1, keepdims=True) % primes(len(x.shape))
    if x.far is None:
        return RingNumbers(residues)
    with np.errstate(invalid="ignore"):
        return of_parts(residues, x.far.sum(axis=axis, keepdims=True))


def extreme(x: RingNumbers, axis: int, sign: int = 1) -> RingNumbers:
    """The largest along an axis, or with sign -1 the smallest; undefined if one of them is."""
    place = sign * np.asarray(_place(x))
    if x.far is not None:
        far = sign * np.where(np.isnan(x.far), inf, x.far)
        place = np.where(far == far.max(axis=axis, keepdims=True), place, -inf)
    best = np.expand_dims(place.argmax(axis=axis), axis)
    residues = np.take_along_axis(x.residues, best[None], axis + 1)
    if x.far is None:
        return RingNumbers(residues)
    undefined = np.isnan(x.far).any(axis=axis, keepdims=True)
    return of_parts(residues, np.where(undefined, nan, np.take_along_axis(x.far, best, axis)))


def folded(operation: Callable[[RingNumbers, RingNumbers], RingNumbers], x: RingNumbers, axis: int) -> RingNumbers:
    """Any other fold along an axis."""
    at = lambda k: RingNumbers(x.residues.take([k], axis + 1), None if x.far is None else x.far.take([k], axis))
    result = at(0)
    for k in range(1, x.shape[axis]):
        result = operation(result, at(k))
    return result


def rescaled_total(scale: RingNumbers, mantissa: RingNumbers, axis: int) -> tuple[RingNumbers, RingNumbers]:
    """The sum of states along an axis, as the largest scale and what is left. The scale -∞ says that one is absent."""
    top = extreme(scale, axis)
    weighted = multiply(mantissa, exponential(add(scale, top, -1)))
    if scale.far is not None:
        absent = np.broadcast_to(np.isneginf(scale.far), weighted.shape)
        weighted = choose(absent, literal(0.0), weighted)
    return top, total(weighted, axis)
