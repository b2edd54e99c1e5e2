"""Exact arithmetic of Laurent polynomials over the rationals, and of their quotients, with exponentials as atoms.

An atom is a variable, the exponential of a monomial, or an opaque value. exp(Σ c·m) is the product of exp(m)^c. So two
expressions in + - · / and exp are equal where both are defined, if and only if their cross products are the same
polynomial. Example: exp(x + y) and exp(x) · exp(y) are the same monomial.
"""

from __future__ import annotations

from collections.abc import Hashable
from fractions import Fraction
from typing import NamedTuple

Monomial = tuple[tuple[int, Fraction], ...]  # (number of an atom, exponent), by number
Polynomial = dict[Monomial, Fraction]
ONE: Polynomial = {(): Fraction(1)}
MAX_PRODUCTS = 20_000  # of monomials in one multiplication
MAX_BITS = 20_000  # of a coefficient's numerator and denominator together
MAX_POWER = 1_000


class Undecided(Exception):
    """The provers cannot decide the question; the message says why."""


_numbers: dict[tuple, int] = {}
_atoms: list[tuple] = []


def atom(*data: Hashable) -> int:
    """The number of an atom: ("var", name), ("exp", monomial), or other data. Equal data mean equal values."""
    if data not in _numbers:
        _numbers[data] = len(_atoms)
        _atoms.append(data)
    return _numbers[data]


def data_of(number: int) -> tuple:
    """The data of an atom."""
    return _atoms[number]


def is_positive(number: int) -> bool:
    """Whether the atom is positive for all values of its variables: an exponential is."""
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
    """p · q. Raises Undecided if the product would be too large."""
    if len(p) * len(q) > MAX_PRODUCTS or _bits(p) + _bits(q) > MAX_BITS:
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
    """c and q with p = c · q², or None. q is found term by term, from its largest monomial down."""
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
    """over / under. A denominator that is a monomial is divided out, so that it is ONE."""

    over: Polynomial
    under: Polynomial

    def __add__(self, other: Quotient) -> Quotient:  # type: ignore[override]  # a tuple's + would join
        if self.under == other.under:
            return quotient(add(self.over, other.over), self.under)
        over = add(multiply(self.over, other.under), multiply(other.over, self.under))
        return quotient(over, multiply(self.under, other.under))

    def __mul__(self, other: Quotient) -> Quotient:  # type: ignore[override]
        return quotient(multiply(self.over, other.over), multiply(self.under, other.under))

    def __truediv__(self, other: Quotient) -> Quotient:
        return quotient(multiply(self.over, other.under), multiply(self.under, other.over))

    def __neg__(self) -> Quotient:
        return Quotient({m: -c for m, c in self.over.items()}, self.under)

    def __sub__(self, other: Quotient) -> Quotient:
        return self + -other

    @property
    def key(self) -> tuple:
        """Numerator and denominator as hashable data."""
        return frozen(self.over), frozen(self.under)


def quotient(over: Polynomial, under: Polynomial) -> Quotient:
    """The quotient of two polynomials. The caller knows that `under` is not zero."""
    if len(under) == 1 and under != ONE:
        ((monomial, c),) = under.items()
        return Quotient({join(m, monomial, -1): d / c for m, d in over.items()}, ONE)
    return Quotient(over, under)


def number(value: float | Fraction) -> Quotient:
    """A rational constant. A float has its exact value."""
    return Quotient({(): Fraction(value)} if value else {}, ONE)


def of_atom(*data: Hashable) -> Quotient:
    """The value of the atom with these data."""
    return Quotient({((atom(*data), Fraction(1)),): Fraction(1)}, ONE)


def exponential(q: Quotient) -> Quotient:
    """exp(q): for a polynomial, a product of powers of exponentials of monomials."""
    if q.under != ONE:
        return of_atom("exp of", *q.key)
    powers = {atom("exp", m): c for m, c in q.over.items()}
    return Quotient({tuple(sorted(powers.items())): Fraction(1)}, ONE)


def logarithm(m: Monomial) -> Polynomial | None:
    """The exponent of a product of exponentials; None if the monomial has other factors."""
    if any(_atoms[number][0] != "exp" for number, _ in m):
        return None
    return {_atoms[number][1]: c for number, c in m}


def exponent_apart(q: Quotient) -> tuple[Quotient, Quotient]:
    """x and t with q = x · exp(t), where x has no exponential as a factor; t is 0 where q is no single product."""
    if q.under != ONE or len(q.over) != 1:
        return q, number(0)
    ((monomial, coefficient),) = q.over.items()
    exponent = {_atoms[n][1]: power for n, power in monomial if _atoms[n][0] == "exp"}
    rest = tuple((n, power) for n, power in monomial if _atoms[n][0] != "exp")
    return Quotient({rest: coefficient}, ONE), Quotient(exponent, ONE)


def equal(a: Quotient, b: Quotient) -> bool:
    """Whether a = b wherever both are defined. False if a substitution has made a denominator zero."""
    if not a.under or not b.under:
        return False
    return not add(multiply(a.over, b.under), multiply(b.over, a.under), -1)


def substituted(q: Quotient, values: dict[int, Quotient]) -> Quotient:
    """The quotient with atoms replaced, inside exponentials, too."""
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
    if abs(power) > MAX_POWER:
        raise Undecided(f"a power of {power}")
    result = number(1)
    for _ in range(abs(int(power))):
        result = result * q
    return result if power >= 0 else number(1) / result
