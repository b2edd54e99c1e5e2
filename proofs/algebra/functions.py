"""Normal forms of logarithms, sines and cosines, and substitution for atoms, inside of these and of exponentials, too.

The logarithm of a product is the sum of the logarithms of its factors, so of x² · y it is 2 · log |x| + log |y|. The
atom ("log", p) is for a polynomial p that is positive in the case at hand. Sines and cosines of sums are polynomials
in those of the addends. Example: log(8 · exp(x)) is 3 · log 2 + x.
"""

from __future__ import annotations

from collections.abc import Callable
from fractions import Fraction
from math import gcd, lcm

from .polynomial import (
    ONE,
    Monomial,
    Polynomial,
    Quotient,
    add,
    atom,
    data_of,
    exponential,
    frozen,
    is_constant,
    is_positive,
    join,
    number,
    of_atom,
    power,
    square,
)

MAX_PRIME = 1000  # the rest of a number without smaller prime factors is kept whole
MAX_MULTIPLE = 6  # of an angle that is expanded
MAX_DEGREE = 12  # of a product of the arguments of logarithms
Sign = Callable[[Polynomial], int | None]  # the sign of a polynomial, if it is known


def content(p: Polynomial) -> tuple[Monomial, Polynomial]:
    """The largest monomial that divides the polynomial, negative powers included, and the quotient."""
    first, *others = p
    common = dict(first)
    for m in others:
        powers = dict(m)
        common = {a: min(common.get(a, Fraction(0)), powers.get(a, Fraction(0))) for a in {*common, *powers}}
    shared = tuple(sorted((a, e) for a, e in common.items() if e))
    return shared, {join(m, shared, -1): c for m, c in p.items()}


def log_of_number(value: Fraction) -> Polynomial:
    """The logarithm of a positive rational, by prime factors: log 12 is 2 · log 2 + log 3."""
    total: Polynomial = {}
    for part, sign in ((value.numerator, 1), (value.denominator, -1)):
        prime = 2
        while prime <= MAX_PRIME and prime * prime <= part:
            while part % prime == 0:
                total = add(total, _log({(): Fraction(prime)}), sign)
                part //= prime
            prime += 1
        if part > 1:
            total = add(total, _log({(): Fraction(part)}), sign)
    return total


def _log(p: Polynomial) -> Polynomial:
    return {((atom("log", frozen(p)), Fraction(1)),): Fraction(1)}


def log_of(q: Quotient, sign: Sign) -> Quotient | None:
    """The logarithm of |q|, or None if `sign` does not know the sign of a factor. The caller knows that q is not 0."""
    over, under = _log_of_polynomial(q.over, sign), _log_of_polynomial(q.under, sign)
    return None if over is None or under is None else over - under


def _log_of_polynomial(p: Polynomial, sign: Sign) -> Quotient | None:
    """The logarithm of |p| as a sum over the factors of p."""
    common, rest = content(p)
    total = number(0)
    for place, exponent in common:
        found = _log_of_atom(place, sign)
        if found is None:
            return None
        total = total + number(exponent) * found
    leading = abs(rest[min(rest)])
    rest = {m: c / leading for m, c in rest.items()}
    total = total + Quotient(log_of_number(leading), ONE)
    if len(rest) == 1:
        return total
    if found_square := square(rest):
        root = _log_of_polynomial(found_square[1], sign)
        return None if root is None else total + number(2) * root + Quotient(log_of_number(abs(found_square[0])), ONE)
    own = sign(rest)
    return None if not own else total + Quotient(_log({m: own * c for m, c in rest.items()}), ONE)


def _log_of_atom(place: int, sign: Sign) -> Quotient | None:
    kind, *data = data_of(place)
    if kind == "exp":
        return Quotient({data[0]: Fraction(1)}, ONE)
    if kind == "exp of":
        return Quotient(*map(dict, data))
    own = sign({((place, Fraction(1)),): Fraction(1)})
    return None if not own else Quotient(_log({((place, Fraction(1)),): Fraction(own)}), ONE)


def product_of_logs(p: Polynomial) -> Quotient | None:
    """exp(n · p) for an n > 0 that makes it free of logarithms, if p has logarithms of variables in linear terms only.

    So p has the sign of the result less 1. Example: log(x) / 2 - log(y) becomes x / y².
    """
    logs = {m: c for m, c in p.items() if any(data_of(a)[0] == "log" for a, _ in m)}
    if any(not _is_atom(m) for m in logs) or all(is_constant(m[0][0]) for m in logs):
        return None
    times = Fraction(lcm(*(c.denominator for c in logs.values())))
    if len(logs) == len(p):
        times /= gcd(*(int(times * c) for c in logs.values()))
    if sum(abs(times * c) for c in logs.values()) > MAX_DEGREE:
        return None
    return exponential(Quotient({m: times * c for m, c in p.items()}, ONE))


def _is_atom(m: Monomial) -> bool:
    return len(m) == 1 and m[0][1] == 1


def circular(q: Quotient) -> tuple[Quotient, Quotient]:
    """The cosine and the sine of q."""
    if q.under != ONE:
        return of_atom("cos", *q.key), of_atom("sin", *q.key)
    cosine, sine = number(1), number(0)
    for m, c in q.over.items():
        expands = abs(c.numerator) <= MAX_MULTIPLE
        times, unit = (c.numerator, Fraction(1, c.denominator)) if expands else (1 if c > 0 else -1, abs(c))
        key = frozen({m: unit}), frozen(ONE)
        for _ in range(abs(times)):
            a, b = of_atom("cos", *key), of_atom("sin", *key)
            b = b if times > 0 else -b
            cosine, sine = cosine * a - sine * b, sine * a + cosine * b
    return cosine, sine


def atoms_within(m: Monomial) -> list[int]:
    """Every atom of a monomial, those inside exponentials, logarithms and sines included, with repetitions."""
    found = []
    for place, _ in m:
        kind = data_of(place)
        found.append(place)
        if kind[0] == "exp":
            found += atoms_within(kind[1])
        elif kind[0] in ("log", "sin", "cos"):
            found += [a for inner, _ in kind[1] for a in atoms_within(inner)]
    return found


def substituted(q: Quotient, values: dict[int, Quotient]) -> Quotient:
    """The quotient with atoms replaced, inside exponentials, logarithms and sines, too."""
    return _polynomial(q.over, values) / _polynomial(q.under, values)


def _polynomial(p: Polynomial, values: dict[int, Quotient]) -> Quotient:
    if not any(a in values for m in p for a in atoms_within(m)):
        return Quotient(p, ONE)
    total = number(0)
    for monomial, c in p.items():
        total = total + number(c) * _monomial(monomial, values)
    return total


def _monomial(m: Monomial, values: dict[int, Quotient]) -> Quotient:
    kept, product = [], number(1)
    for place, exponent in m:
        kind = data_of(place)
        if place in values:
            product = product * power(values[place], exponent)
        elif kind[0] == "exp":
            product = product * exponential(number(exponent) * _monomial(kind[1], values))
        elif kind[0] in ("log", "sin", "cos") and (again := _rebuilt(kind, values)) is not None:
            product = product * power(again, exponent)
        else:
            kept.append((place, exponent))
    return product * Quotient({tuple(kept): Fraction(1)}, ONE)


def _rebuilt(kind: tuple, values: dict[int, Quotient]) -> Quotient | None:
    """A logarithm, sine or cosine of its argument after the substitution; None if it stays as it is."""
    inner = Quotient(*map(dict, kind[1:])) if len(kind) > 2 else Quotient(dict(kind[1]), ONE)
    again = substituted(inner, values)
    if again == inner or not again.over or not again.under:
        return None
    if kind[0] == "log":
        return log_of(again, _known_sign) or (None if again.under != ONE else Quotient(_log(again.over), ONE))
    return circular(again)[kind[0] == "sin"]


def _known_sign(p: Polynomial) -> int | None:
    """The sign of a polynomial with positive atoms and coefficients of one sign; None for others."""
    signs = {1 if c > 0 else -1 for c in p.values()}
    return signs.pop() if len(signs) == 1 and all(is_positive(a) for m in p for a, _ in m) else None
