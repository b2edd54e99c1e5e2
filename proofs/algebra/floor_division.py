"""The floor of a quotient, simplified by three laws; these decide floor division and remainder of indices.

floor(n + x) = n + floor(x) for integers n; floor((n + floor(x)) / m) = floor((n + x) / m) for positive integers m; and
floor(x) = 0 for 0 ≤ x < 1. A floor that no law simplifies becomes an opaque integer atom.
"""

from __future__ import annotations

from fractions import Fraction
from math import floor as floor_of_number
from typing import Protocol

from .polynomial import ONE, Monomial, Polynomial, Quotient, add, atom, data_of, join, multiply, number, quotient

INTEGERS = ("integer", "floor")


class Signs(Protocol):
    """Knows the signs of some quotients."""

    def implied(self, q: Quotient) -> int | None:
        """The sign of q (1, 0 or -1), if it is known."""


def floor(q: Quotient, signs: Signs) -> Quotient:
    """The largest integer not above q."""
    if q.under != ONE:
        return _atom(q)
    whole, rest = _split(_without_inner(q.over, signs))
    fraction = Quotient(rest, ONE)
    if rest and not (signs.implied(fraction) in (0, 1) and signs.implied(number(1) - fraction) == 1):
        whole = add(whole, _atom(fraction).over)
    return Quotient(whole, ONE)


def _atom(q: Quotient) -> Quotient:
    return Quotient({((atom("floor", *q.key), Fraction(1)),): Fraction(1)}, ONE)


def _split(p: Polynomial) -> tuple[Polynomial, Polynomial]:
    """The part that is an integer for all variables, and the rest, whose constant is in [0, 1)."""
    whole = {m: c for m, c in p.items() if m and _is_integer(m) and c.denominator == 1}
    rest = {m: c for m, c in p.items() if m not in whole}
    constant = Fraction(floor_of_number(rest.get((), 0)))
    if constant:
        whole[()] = constant
        rest = add(rest, {(): constant}, -1)
    return whole, rest


def _is_integer(m: Monomial) -> bool:
    return all(data_of(a)[0] in INTEGERS and e > 0 and e.denominator == 1 for a, e in m)


def _without_inner(p: Polynomial, signs: Signs) -> Polynomial:
    """(n + floor(x)) / m with floor(x) replaced by x, if p has this form for a positive integer m."""
    for monomial, c in p.items():
        for place, power in monomial:
            if data_of(place)[0] != "floor" or power != 1:
                continue
            share = {join(monomial, ((place, Fraction(1)),), -1): c}  # 1 / m
            divisor = quotient(ONE, share).over
            ((one, d),) = divisor.items()
            rest = multiply(add(p, {monomial: c}, -1), divisor)
            positive = d > 0 and d.denominator == 1 and _is_integer(one) and signs.implied(Quotient(divisor, ONE)) == 1
            if positive and all(_is_integer(m) and e.denominator == 1 for m, e in rest.items()):
                over, under = data_of(place)[1:]
                inner = multiply(dict(over), share)
                return add(add(p, {monomial: c}, -1), inner) if dict(under) == ONE else p
    return p
