"""Inequalities that hold for the atoms of polynomials whatever their arguments are, for the linear reasoning on signs.

A floor is at most its argument and more than it less 1; a cosine and a sine are between -1 and 1. They exclude cases
and prove nothing by themselves. Example: of the atom floor(x) they are x - floor(x) ≥ 0 and floor(x) + 1 - x > 0.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from fractions import Fraction

from .linear_inequalities import Inequality
from .polynomial import ONE, Polynomial, add, data_of


def bounds_of(polynomials: Iterable[Polynomial]) -> list[Inequality]:
    """The inequalities of all atoms that occur as such in the polynomials, not inside of other functions."""
    waiting = list({place for p in polynomials for m in p for place, _ in m})
    seen: set[int] = set()
    found: list[Inequality] = []
    while waiting:
        place = waiting.pop()
        if place in seen or data_of(place)[0] not in ("floor", "sin", "cos"):
            continue
        seen.add(place)
        for row in _bounds(place):
            found.append(row)
            waiting += [a for m in row[0] for a, _ in m]
    return found


def _bounds(place: int) -> Iterator[Inequality]:
    kind, over, under = data_of(place)
    own: Polynomial = {((place, Fraction(1)),): Fraction(1)}
    if kind in ("sin", "cos"):
        yield add(ONE, own), False
        yield add(ONE, own, -1), False
    elif dict(under) == ONE:
        yield add(dict(over), own, -1), False
        yield add(add(own, ONE), dict(over), -1), True
