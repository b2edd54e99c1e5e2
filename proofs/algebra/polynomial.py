"""Exact arithmetic of Laurent polynomials over the rationals, and of their quotients, with exponentials as atoms.

An atom is a variable, the exponential of a monomial, or another value. exp(Σ c·m) is the product of exp(m)^c. A power
of an atom may be a polynomial: exp(log p) is p, and sin² x is 1 - cos² x. Two expressions are equal where both are
defined, if their cross products are the same polynomial. Example: exp(x + y) and exp(x) · exp(y) are the same monomial.
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
_powers: dict[int, tuple[int, Polynomial]] = {}  # atom: a degree n and the polynomial that is its n-th power


def atom(*data: Hashable) -> int:
    """The number of an atom: ("var", name), ("exp", monomial), or other data. Equal data mean equal values."""
    if data not in _numbers:
        _numbers[data] = number = len(_atoms)
        _atoms.append(data)
        if known := _known_power(data):
            _powers[number] = known
    return _numbers[data]


def _known_power(data: tuple) -> tuple[int, Polynomial] | None:
    """The lowest power of the atom that is a polynomial without it, if one is known."""
    if data[0] == "exp" and len(data[1]) == 1 and data[1][0][1] == 1:
        inner = _atoms[data[1][0][0]]
        return (1, dict(inner[1])) if inner[0] == "log" else None  # exp(log p) = p
    if data[0] == "sin":
        return 2, {(): Fraction(1), ((atom("cos", *data[1:]), Fraction(2)),): Fraction(-1)}
    return None


def data_of(number: int) -> tuple:
    """The data of an atom."""
    return _atoms[number]


def is_positive(number: int) -> bool:
    """Whether the atom is positive for all values of its variables: an exponential is, and the logarithm of 2."""
    kind = _atoms[number]
    return kind[0] in ("exp", "exp of") or (kind[0] == "log" and _constant(kind[1]) > 1)


def is_constant(number: int) -> bool:
    """Whether the atom is a constant: the logarithm of a number."""
    return _atoms[number][0] == "log" and _constant(_atoms[number][1]) > 0


def _constant(key: tuple) -> Fraction:
    """The number that a key of a polynomial stands for; 0 if it stands for none."""
    return key[0][1] if len(key) == 1 and key[0][0] == () else Fraction(0)


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
    if _is_reducible(over) or _is_reducible(under):
        return _reduced(over) / _reduced(under)
    if len(under) == 1 and under != ONE:
        ((monomial, c),) = under.items()
        return Quotient({join(m, monomial, -1): d / c for m, d in over.items()}, ONE)
    return Quotient(over, under)


def _is_reducible(p: Polynomial) -> bool:
    return any(a in _powers and not 0 <= e < _powers[a][0] for m in p for a, e in m)


def _reduced(p: Polynomial) -> Quotient:
    """The polynomial with every power of an atom that is known to be a polynomial replaced."""
    total, rest = Quotient({}, ONE), {}
    for m, c in p.items():
        if not _is_reducible({m: c}):
            rest[m] = c
            continue
        kept, product = [], Quotient({(): c}, ONE)
        for a, e in m:
            degree, whole = _powers.get(a, (1, None))
            times = e // degree if whole is not None else 0
            if times:
                product = product * power(Quotient(whole or {}, ONE), Fraction(times))
            if e - times * degree:
                kept.append((a, e - times * degree))
        total = total + product * Quotient({tuple(kept): Fraction(1)}, ONE)
    return total + Quotient(rest, ONE)


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
    return quotient({tuple(sorted(powers.items())): Fraction(1)}, ONE)


def logarithm(m: Monomial) -> Polynomial | None:
    """The exponent of a product of exponentials; None if the monomial has other factors."""
    if any(_atoms[number][0] != "exp" for number, _ in m):
        return None
    return {_atoms[number][1]: c for number, c in m}


def equal(a: Quotient, b: Quotient) -> bool:
    """Whether a = b wherever both are defined. False if a substitution has made a denominator zero."""
    if not a.under or not b.under:
        return False
    return not (a - b).over


def power(q: Quotient, power: Fraction) -> Quotient:
    """q to a rational power: a product, or an opaque atom if the power is no integer. Raises Undecided if too large."""
    if power.denominator != 1:
        return of_atom("power", q.key, power)
    if abs(power) > MAX_POWER:
        raise Undecided(f"a power of {power}")
    result = number(1)
    for _ in range(abs(int(power))):
        result = result * q
    return result if power >= 0 else number(1) / result
