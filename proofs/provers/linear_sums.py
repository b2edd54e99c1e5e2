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


Products = list[list[Term]]  # lists of factors; a term is the sum of their products


def _expanded(x: Term, depends: Depends) -> Products | None:
    """The products whose sum is x. None if there are too many."""
    expand = _EXPANSIONS.get(x.op) if depends(x) else None
    found = [[x]] if expand is None else expand(x, depends)
    return None if found is None or len(found) > MAX_PRODUCTS else found


def _expanded_sum(x: Term, depends: Depends) -> Products | None:
    """Of a sum, a difference or a negated term."""
    found: Products = []
    for n, argument in enumerate(x.args):
        side = _expanded(argument, depends)
        if side is None:
            return None
        minus = [const(-1.0)] if x.op == "neg" or (x.op == "sub" and n == 1) else []
        found += [[*minus, *factors] for factors in side]
    return found


def _expanded_product(x: Term, depends: Depends) -> Products | None:
    return _multiplied(*(_expanded(a, depends) for a in x.args))


def _expanded_quotient(x: Term, depends: Depends) -> Products | None:
    return _multiplied(_expanded(x.args[0], depends), [[1.0 / x.args[1]]])


def _expanded_power(x: Term, depends: Depends) -> Products | None:
    base, exponent = x.args
    if exponent.op != "const" or exponent.attrs[0] not in range(2, MAX_POWER + 1):
        return [[x]]
    found: Products | None = [[]]
    for _ in range(int(exponent.attrs[0])):
        found = _multiplied(found, _expanded(base, depends))
    return found


def _expanded_exponential(x: Term, depends: Depends) -> Products:
    groups = ([a for a in addends(x.args[0]) if depends(a) == moving] for moving in (True, False))
    return [[exp(product("add", group)) for group in groups if group]]


def _expanded_choice(x: Term, depends: Depends) -> Products | None:
    """Of a choice with 0 elsewhere: what does not depend on the dim is a factor of it."""
    condition, chosen, nothing = x.args
    inner = _expanded(chosen, depends)
    if nothing is not const(0.0) or inner is None:
        return [[x]]
    return [_chosen(condition, factors, depends) for factors in inner]


def _multiplied(one: Products | None, other: Products | None) -> Products | None:
    if one is None or other is None or len(one) * len(other) > MAX_PRODUCTS:
        return None
    return [[*f, *g] for f, g in pairs(one, other)]


def _chosen(condition: Term, factors: list[Term], depends: Depends) -> list[Term]:
    moving = [f for f in factors if depends(f)]
    chosen = where(condition, product("mul", moving or [const(1.0)]), const(0.0))
    return [chosen, *(f for f in factors if not depends(f))]


_EXPANSIONS = {
    **dict.fromkeys(("add", "sub", "neg"), _expanded_sum),
    "mul": _expanded_product,
    "div": _expanded_quotient,
    "pow": _expanded_power,
    "exp": _expanded_exponential,
    "where": _expanded_choice,
}


def as_operation(body: Term, operation: str) -> Term:
    """The body with the operation at its root, if it has a known spelling: |x| is max(x, -x)."""
    if body.op == "abs" and operation == "maximum":
        return make("maximum", (body.args[0], -body.args[0]))
    return body
