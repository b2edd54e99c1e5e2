"""Can linear inequalities hold together? Fourier and Motzkin's elimination over exact rationals.

Every monomial counts as a variable of its own, so "no" is certain and "yes" may be wrong: good for leaving out cases
that cannot occur, never for a proof by itself.
"""

from __future__ import annotations

from fractions import Fraction

from .polynomial import Monomial, Polynomial, is_positive

MOST = 400  # inequalities; beyond, the answer is a careful yes
Inequality = tuple[dict[Monomial, Fraction], bool]  # Σ c·m > 0 if strict, else ≥ 0; the empty monomial is 1


def feasible(signs: list[tuple[Polynomial, int]]) -> bool:
    """False only if no reals give every polynomial its sign (1, 0 or -1)."""
    rows: list[Inequality] = []
    for p, sign in signs:
        if sign >= 0:
            rows.append((dict(p), sign > 0))
        if sign <= 0:
            rows.append(({m: -c for m, c in p.items()}, sign < 0))
    names = {m for row, _ in rows for m in row if m}
    rows += [({m: Fraction(1)}, True) for m in names if all(is_positive(a) for a, _ in m)]
    for name in names:
        rows = _without(name, rows)
        if any(_impossible(row) for row in rows):
            return False
        if len(rows) > MOST:
            return True
    return not any(_impossible(row) for row in rows)


def _impossible(row: Inequality) -> bool:
    terms, strict = row
    if any(m for m in terms):
        return False
    constant = terms.get((), Fraction(0))
    return constant < 0 or (strict and constant == 0)


def _without(name: Monomial, rows: list[Inequality]) -> list[Inequality]:
    """The inequalities that follow for the other variables."""
    kept = [row for row in rows if name not in row[0]]
    above = [row for row in rows if row[0].get(name, 0) > 0]
    below = [row for row in rows if row[0].get(name, 0) < 0]
    return kept + [_combined(name, a, b) for a in above for b in below]


def _combined(name: Monomial, a: Inequality, b: Inequality) -> Inequality:
    up, down = a[0][name], -b[0][name]
    terms = {m: down * a[0].get(m, 0) + up * b[0].get(m, 0) for m in {*a[0], *b[0]} - {name}}
    return {m: c for m, c in terms.items() if c}, a[1] or b[1]
