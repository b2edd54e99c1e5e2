"""The element of a row at a position that is data, as a sum over the row that keeps one element.

Nothing is then read at an address that is data, and what a loop computes for the row gives the element, too. Pointwise
operations are done behind the sum. Example: of 2 · Σ_d x[i, d] · w[j, d] at j = y[i] it is
2 · Σ_j where(j = y[i], Σ_d x[i, d] · w[j, d], 0). At a position beyond the row the sum is 0.
The other way round, `pair` is what a loop takes the maximum of, to find the position of a row's largest element.
"""

from __future__ import annotations

from .affine import bounds
from .ops import const, eq, iota, make, reduce
from .term import Dim, Term

LEAVES = ("reduce", "load", "scale", "mantissa", "uniform")  # what is no pointwise operation of its operands


def at_position(values: Term, dim: Dim, position: Term) -> Term:
    """What the values are at a position of the dim."""
    kept, done = eq(iota(dim), position), {}

    def picked(node: Term) -> Term:
        if node not in done:
            done[node] = _picked(node)
        return done[node]

    def _picked(node: Term) -> Term:
        if dim not in node.dims:
            return node
        if node.op == "iota":
            return position
        if node.op not in LEAVES:
            return make(node.op, tuple(map(picked, node.args)), node.attrs)
        monoid, absent = ("any", const(False)) if node.dtype == "bool" else ("sum", _zero(node.dtype))
        return reduce(monoid, dim, make("where", (kept, node, absent)))

    return picked(values)


def _zero(dtype: str) -> Term:
    return const(0) if "int" in dtype else const(0.0)


PLACES = 1 << 32  # more than an axis has elements, so that a pair holds any position beside its element


def pair(number: Term, place: Term) -> Term:
    """A number and a place as one whole number: in the order of numbers, and of equal ones the first is the largest."""
    return make("order", (number,)) * const(PLACES) - place


def pair_of(body: Term) -> tuple[Term, Term] | None:
    """x and p of order(x) · 2^32 - p, if p is known to be no negative number; None of any other term."""
    if body.op != "sub" or body.args[0].op != "mul":
        return None
    (place_of_number, factor), place = body.args[0].args, body.args[1]
    least, _ = bounds(place)
    if place_of_number.op != "order" or factor is not const(PLACES) or least is None or least < 0:
        return None
    return place_of_number.args[0], place
