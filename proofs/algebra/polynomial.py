"""Exact arithmetic of Laurent polynomials and their quotients, over rationals, with exponentials eliminated.

An atom is a variable, the exponential of a monomial, or an opaque value. exp(Σ c·m) is the product of exp(m)^c, so two
expressions in + - · / and exp are equal where defined iff cross-multiplied numerators are the same.
"""

from __future__ import annotations

from fractions import Fraction
from typing import NamedTuple

Monomial = tuple[tuple[int, Fraction], ...]  # (number of an atom, exponent), by number
Polynomial = dict[Monomial, Fraction]
ONE: Polynomial = {(): Fraction(1)}
MOST_PRODUCTS = 20_000  # of monomials in one multiplication
MOST_BITS = 20_000  # of a coefficient's numerator or denominator
MOST_POWER = 1_000


class Undecided(Exception):
    """The question is outside what this procedure decides; the message says why."""


_numbers: dict[tuple, int] = {}
_atoms: list[tuple] = []


def atom(*data) -> int:
    """The number of an atom: ("var", name), ("exp", monomial), or (anything else): equal data, equal value."""
    if data not in _numbers:
        _numbers[data] = len(_atoms)
        _atoms.append(data)
    return _numbers[data]


def data_of(number: int) -> tuple:
    return _atoms[number]


def is_positive(number: int) -> bool:
    """Exponentials of reals are positive."""
    return _atoms[number][0] in ("exp", "exp of")


def add(p: Polynomial, q: Polynomial, factor: Fraction | int = 1) -> Polynomial:
    """p + factor · q."""
    total = dict(p)
    for monomial, c in q.items():
        total[monomial] = total.get(monomial, Fraction(0)) + factor * c
    return {m: c for m, c in total.items() if c}


def join(m: Monomial, n: Monomial, factor: Fraction | int = 1) -> Monomial:
    """m · n^factor."""
    if not m and factor == 1:
        return n
    powers = dict(m)
    for number, power in n:
        powers[number] = powers.get(number, Fraction(0)) + factor * power
    return tuple(sorted((a, e) for a, e in powers.items() if e))


def multiply(p: Polynomial, q: Polynomial) -> Polynomial:
    """p · q. Raises Undecided where that would be too large to go on with."""
    if len(p) * len(q) > MOST_PRODUCTS or _bits(p) + _bits(q) > MOST_BITS:
        raise Undecided("a product of polynomials that is too large")
    product: Polynomial = {}
    for m, c in p.items():
        for n, d in q.items():
            both = join(m, n)
            product[both] = product.get(both, Fraction(0)) + c * d
    return {m: c for m, c in product.items() if c}


def _bits(p: Polynomial) -> int:
    return max((c.numerator.bit_length() + c.denominator.bit_length() for c in p.values()), default=0)


def square(p: Polynomial) -> tuple[Fraction, Polynomial] | None:
    """c and q where p is c · q²: q term by term, from its largest monomial down, until nothing is left of p."""
    places = sorted({place for m in p for place, _ in m})

    def largest(r: Polynomial) -> Monomial:
        return max(r, key=lambda m: [dict(m).get(place, 0) for place in places])

    first = largest(p)
    leading = join((), first, Fraction(1, 2))
    if any(power.denominator > 1 and not is_positive(place) for place, power in leading):
        return None
    monic = {m: c / p[first] for m, c in p.items()}
    q: Polynomial = {leading: Fraction(1)}
    while (rest := add(monic, multiply(q, q), -1)) and len(q) < len(p):
        following = largest(rest)
        q[join(following, leading, -1)] = rest[following] / 2
    return None if rest else (p[first], q)


def frozen(p: Polynomial) -> tuple:
    """The polynomial as a key."""
    return tuple(sorted(p.items()))


class Quotient(NamedTuple):
    """numerator / denominator; the denominator is ONE wherever it can be divided out as a monomial."""

    over: Polynomial
    under: Polynomial

    def __add__(self, other: Quotient) -> Quotient:
        if self.under == other.under:
            return quotient(add(self.over, other.over), self.under)
        over = add(multiply(self.over, other.under), multiply(other.over, self.under))
        return quotient(over, multiply(self.under, other.under))

    def __mul__(self, other: Quotient) -> Quotient:
        return quotient(multiply(self.over, other.over), multiply(self.under, other.under))

    def __truediv__(self, other: Quotient) -> Quotient:
        return quotient(multiply(self.over, other.under), multiply(self.under, other.over))

    def __neg__(self) -> Quotient:
        return Quotient({m: -c for m, c in self.over.items()}, self.under)

    def __sub__(self, other: Quotient) -> Quotient:
        return self + -other

    @property
    def key(self) -> tuple:
        return frozen(self.over), frozen(self.under)


def quotient(over: Polynomial, under: Polynomial) -> Quotient:
    """The quotient of two polynomials; the lower one is known not to be zero."""
    if len(under) == 1 and under != ONE:
        ((monomial, c),) = under.items()
        return Quotient({join(m, monomial, -1): d / c for m, d in over.items()}, ONE)
    return Quotient(over, under)


def number(value) -> Quotient:
    """A rational constant; a float is taken exactly."""
    return Quotient({(): Fraction(value)} if value else {}, ONE)


def of_atom(*data) -> Quotient:
    return Quotient({((atom(*data), Fraction(1)),): Fraction(1)}, ONE)


def exponential(q: Quotient) -> Quotient:
    """exp(q), a product of powers of exponentials of monomials."""
    if q.under != ONE:
        return of_atom("exp of", *q.key)
    powers = {atom("exp", m): c for m, c in q.over.items()}
    return Quotient({tuple(sorted(powers.items())): Fraction(1)}, ONE)


def logarithm(m: Monomial) -> Polynomial | None:
    """The exponent that a product of exponentials is the exponential of; None if it is no such product."""
    if any(_atoms[number][0] != "exp" for number, _ in m):
        return None
    return {_atoms[number][1]: c for number, c in m}


def equal(a: Quotient, b: Quotient) -> bool:
    """Equal wherever both are defined; a denominator that vanished in a substitution decides nothing."""
    if not a.under or not b.under:
        return False
    return not add(multiply(a.over, b.under), multiply(b.over, a.under), -1)


def substituted(q: Quotient, values: dict[int, Quotient]) -> Quotient:
    """Atoms replaced by quotients, inside exponentials, too."""
    return _polynomial(q.over, values) / _polynomial(q.under, values)


def _polynomial(p: Polynomial, values: dict[int, Quotient]) -> Quotient:
    total = number(0)
    for monomial, c in p.items():
        total = total + number(c) * _monomial(monomial, values)
    return total


def _monomial(m: Monomial, values: dict[int, Quotient]) -> Quotient:
    kept, product = [], number(1)
    for place, power in m:
        kind = _atoms[place]
        if place in values:
            product = product * _power(values[place], power)
        elif kind[0] == "exp":
            product = product * exponential(number(power) * _monomial(kind[1], values))
        else:
            kept.append((place, power))
    return product * Quotient({tuple(kept): Fraction(1)}, ONE)


def _power(q: Quotient, power: Fraction) -> Quotient:
    if power.denominator != 1:
        return of_atom("power", q.key, power)
    if abs(power) > MOST_POWER:
        raise Undecided(f"a power of {power}")
    result = number(1)
    for _ in range(abs(int(power))):
        result = result * q
    return result if power >= 0 else number(1) / result
