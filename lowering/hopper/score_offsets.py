"""What a gauge is over one tile: scores that differ everywhere, one number a column, one number a row.

A multiple of a sum of coordinates is split at the tile's start: its column part is the same for all tiles, its row part
leaves the tile's maximum and joins the row's shift. A score costs one multiply-add for all of it, and the numbers stay
as small as a tile is wide. Nothing is known of what the sums are for.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import isfinite

from ...egraph.terms.affine import Affine, affine, combine
from ...egraph.terms.ops import iota
from ...egraph.terms.term import Dim, Term
from ..analysis.product_terms import const_value, product, signed_factors
from ..plan.dtypes import is_integer


@dataclass(frozen=True)
class Slope:
    """constant · Π others · (step · loop coordinate + rest): the others know neither the rows nor the loop."""

    constant: float
    others: tuple[Term, ...]
    step: int
    rest: Affine


@dataclass(frozen=True)
class Gauge:
    """scores + Σ slopes + Σ constant · rows; `scores` are (constant, term) pairs, never none."""

    scores: tuple[tuple[float, Term], ...]
    slopes: tuple[Slope, ...]
    rows: tuple[tuple[float, Term], ...]

    @property
    def terms(self) -> list[Term]:
        """The scores without their constants."""
        return [term for _, term in self.scores]


def split(gauge: Term, rows: Dim, loop: Dim) -> Gauge | None:
    """The gauge's parts, None where it has no column or row part worth a place of its own."""
    if gauge.dtype != "float32":
        return None
    scores, slopes, lifted = [], [], []
    for constant, term in addends(gauge):
        slope = _slope(constant, term, rows, loop)
        if slope is not None:
            slopes.append(slope)
        elif loop not in term.dims:
            lifted.append((constant, term))
        else:
            scores.append((constant, term))
    return Gauge(tuple(scores), tuple(slopes), tuple(lifted)) if scores and (slopes or lifted) else None


def addends(node: Term, constant: float = 1.0) -> list[tuple[float, Term]]:
    """node · constant as a sum of constant · term."""
    if node.op in ("add", "sub"):
        right = constant if node.op == "add" else -constant
        return [*addends(node.args[0], constant), *addends(node.args[1], right)]
    if node.op in ("mul", "neg", "div"):
        parts = signed_factors(node)
        rest = [p for p in parts if p.op != "const"]
        for part in parts:
            constant *= float(const_value(part, 1.0))
        if len(rest) == 1 and rest[0] is not node and isfinite(constant):  # a quotient is no product of others
            return addends(rest[0], constant)
        return [(constant, product(rest))] if rest and isfinite(constant) else [(1.0, node)]
    return [(constant, node)]


def _slope(constant: float, term: Term, rows: Dim, loop: Dim) -> Slope | None:
    parts = signed_factors(term)
    inside = [p for p in parts if loop in p.dims]
    others = tuple(p for p in parts if loop not in p.dims)
    form = _counted(inside[0]) if len(inside) == 1 else None
    if form is None or any(rows in p.dims for p in others) or any(p.dtype == "float64" for p in parts):
        return None
    coefficients, base = dict(form[0]), form[1]
    step = coefficients.pop(iota(loop), 0)
    if not step or any(loop in atom.dims for atom in coefficients):
        return None
    return Slope(constant, others, step, (coefficients, base))


def _counted(node: Term) -> Affine | None:
    """A float that is a sum of multiples of integers."""
    if node.op == "cast" and node.dtype == "float32" and is_integer(node.args[0].dtype):
        return affine(node.args[0])
    if node.op in ("add", "sub"):
        left, right = map(_counted, node.args)
        return None if left is None or right is None else combine(left, right, 1 if node.op == "add" else -1)
    if node.op == "neg":
        inner = _counted(node.args[0])
        return None if inner is None else combine(({}, 0), inner, -1)
    value = const_value(node, None)
    return ({}, int(value)) if isinstance(value, int | float) and isfinite(value) and value == int(value) else None
