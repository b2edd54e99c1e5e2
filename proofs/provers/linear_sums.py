"""Sums in linear normal form: Σ_j of a sum of products becomes a sum of coefficients times Σ_j of what depends on j.

The form is syntactic and proves nothing; reduction_prover.py decides the hypotheses of the theorems that it stands on,
Monoid.pointwise for the sum of products and Homomorphism.promote for each coefficient. Example: Σ_j (x - m)² is
Σ_j x² - 2 · m · Σ_j x + m² · Σ_j 1.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import product as pairs
from typing import NamedTuple

from ...egraph.terms.ops import const, exp, make, where
from ...egraph.terms.term import Term
from .term_views import addends, product

MAX_PRODUCTS = 16  # of an expanded body
MAX_POWER = 4  # that is written as a product
Depends = Callable[[Term], bool]


class Part(NamedTuple):
    """One addend of a body: a coefficient, which does not depend on the dim, and the rest."""

    coefficient: Term
    moving: Term

    @property
    def whole(self) -> Term:
        """The addend itself."""
        return self.coefficient * self.moving


def parts(body: Term, depends: Depends) -> list[Part] | None:
    """The body as a sum of parts, with one part for each rest; None if it has this form already, or is too large."""
    products = _expanded(body, depends)
    if products is None or body is const(1.0) or (products == [[body]] and depends(body)):
        return None
    grouped: dict[tuple[Term, ...], list[Term]] = {}
    for factors in products:
        moving = tuple(sorted((f for f in factors if depends(f)), key=str))
        still = [f for f in factors if not depends(f)]
        grouped.setdefault(moving, []).append(product("mul", still or [const(1.0)]))
    return [Part(product("add", found), product("mul", [*moving] or [const(1.0)])) for moving, found in grouped.items()]


def _expanded(x: Term, depends: Depends) -> list[list[Term]] | None:
    """Lists of factors: x is the sum of their products. None if there are too many."""
    if not depends(x):
        return [[x]]
    match x.op:
        case "add" | "sub" | "neg":
            signs = {"add": (1, 1), "sub": (1, -1), "neg": (-1,)}[x.op]
            sides = [_expanded(a, depends) for a in x.args]
            minus = {1: [], -1: [const(-1.0)]}
            found = None if None in sides else [[*minus[n], *f] for n, side in zip(signs, sides) for f in side or ()]
        case "mul":
            found = _multiplied(*(_expanded(a, depends) for a in x.args))
        case "div":
            found = _multiplied(_expanded(x.args[0], depends), [[1.0 / x.args[1]]])
        case "pow" if x.args[1].op == "const" and x.args[1].attrs[0] in range(2, MAX_POWER + 1):
            found = [[]]
            for _ in range(int(x.args[1].attrs[0])):
                found = _multiplied(found, _expanded(x.args[0], depends))
        case "exp":
            groups = ([a for a in addends(x.args[0]) if depends(a) == moving] for moving in (True, False))
            found = [[exp(product("add", group)) for group in groups if group]]
        case "where" if x.args[2] is const(0.0):
            inner = _expanded(x.args[1], depends)
            found = None if inner is None else [_chosen(x.args[0], factors, depends) for factors in inner]
        case _:
            found = [[x]]
    return None if found is None or len(found) > MAX_PRODUCTS else found


def _multiplied(one: list[list[Term]] | None, other: list[list[Term]] | None) -> list[list[Term]] | None:
    if one is None or other is None or len(one) * len(other) > MAX_PRODUCTS:
        return None
    return [[*f, *g] for f, g in pairs(one, other)]


def _chosen(condition: Term, factors: list[Term], depends: Depends) -> list[Term]:
    """A product that is chosen by a condition, 0 elsewhere: what does not depend on the dim is a factor."""
    moving = [f for f in factors if depends(f)]
    chosen = where(condition, product("mul", moving or [const(1.0)]), const(0.0))
    return [chosen, *(f for f in factors if not depends(f))]


def as_operation(body: Term, operation: str) -> Term:
    """The body with the operation at its root, if it has a known spelling: |x| is max(x, -x)."""
    if body.op == "abs" and operation == "maximum":
        return make("maximum", (body.args[0], -body.args[0]))
    return body
