"""Decides whether linear inequalities can hold together, by Fourier-Motzkin elimination over exact rationals.

Every monomial counts as a variable of its own. So "no" is certain and "yes" may be wrong: it can exclude cases, but
proves nothing by itself. Example: x > 0 and -x > 0 cannot hold together; x > 0 and -x² > 0 are taken to be feasible.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from fractions import Fraction

from .polynomial import Monomial, Polynomial, is_positive

MAX_INEQUALITIES = 400  # beyond that, the answer is "yes"
Inequality = tuple[dict[Monomial, Fraction], bool]  # Σ c·m > 0 if strict, else ≥ 0; the empty monomial is 1


def feasible(signs: list[tuple[Polynomial, int]], also: Iterable[Inequality] = ()) -> bool:
    """False only if no reals give every polynomial its sign (1, 0 or -1). also: further inequalities that hold."""
    rows = [*(row for p, sign in signs for row in _inequalities(p, sign)), *also]
    names = {m for row, _ in rows for m in row if m}
    rows += [({m: Fraction(1)}, True) for m in names if all(is_positive(a) for a, _ in m)]
    for name in names:
        rows = _without(name, rows)
        if any(_impossible(row) for row in rows):
            return False
        if len(rows) > MAX_INEQUALITIES:
            return True
    return not any(_impossible(row) for row in rows)


def _inequalities(p: Polynomial, sign: int) -> Iterator[Inequality]:
    """The sign of a polynomial as inequalities: one for 1 or -1, two for 0."""
    if sign >= 0:
        yield dict(p), sign > 0
    if sign <= 0:
        yield {m: -c for m, c in p.items()}, sign < 0


def _impossible(row: Inequality) -> bool:
    terms, strict = row
    if any(m for m in terms):
        return False
    constant = terms.get((), Fraction(0))
    return constant < 0 or (strict and constant == 0)


def _without(name: Monomial, rows: list[Inequality]) -> list[Inequality]:
    """The inequalities that follow for the variables other than `name`."""
    kept = [row for row in rows if name not in row[0]]
    above = [row for row in rows if row[0].get(name, 0) > 0]
    below = [row for row in rows if row[0].get(name, 0) < 0]
    return kept + [_combined(name, a, b) for a in above for b in below]


def _combined(name: Monomial, a: Inequality, b: Inequality) -> Inequality:
    up, down = a[0][name], -b[0][name]
    terms = {m: down * a[0].get(m, 0) + up * b[0].get(m, 0) for m in {*a[0], *b[0]} - {name}}
    return {m: c for m, c in terms.items() if c}, a[1] or b[1]
