"""Simplifies index terms under the conditions that choose them: where(j ≤ i, x, y) needs x only where j ≤ i.

If a condition bounds i - j from below by `least`, i is written as j + least + g with a new dim g, and quotients and
remainders are simplified in j and g. Then g becomes i - j - least again. A branch changes only if it has fewer
quotients and remainders afterwards. An executor also loads where the condition is false, so each changed index is
limited to its axis.
"""

from __future__ import annotations

from collections.abc import Iterator

from .affine import affine, bounds
from .index_simplify import negate, simplify_index
from .ops import const, iota, make, maximum, minimum
from .term import Dim, Term
from .traversal import operands, rebuild, substitute, subterms

Differences = dict[tuple[Dim, Dim], tuple[int, int]]  # (i, j): the least and the largest i - j


def simplify_under_conditions(root: Term) -> Term:
    """The same term, with each branch of a `where` simplified under its condition."""

    def change(node: Term, args: tuple[Term, ...]) -> Term:
        if node.op == "where":
            condition, yes, no = args
            args = condition, _under(condition, yes), _under(negate(condition), no)
        return node if args == node.args else make(node.op, args, node.attrs)

    return rebuild(root, change)


def _under(condition: Term, branch: Term) -> Term:
    """The branch, simplified for the places where the condition holds."""
    if not _divisions(branch):
        return branch
    bound = {n.attrs[1] for n in subterms(branch) if n.op == "reduce"}
    for (i, j), (least, largest) in _differences(condition).items():
        if largest < least or not {i, j} <= branch.dims or {i, j} & bound:
            continue
        gap = Dim(f"{i} - {j}", largest - least + 1)
        difference = iota(i) - iota(j) - const(least)
        one = {iota(i): iota(j) + iota(gap) + const(least)}, {iota(gap): difference}
        other = {iota(j): iota(i) - iota(gap) - const(least)}, {iota(gap): difference}
        forms = [simplify_index(substitute(simplify_index(substitute(branch, to)), back)) for to, back in (one, other)]
        limited = [_limited_to_axes(form, branch) for form in forms]
        branch = min([branch, *(form for form in limited if form is not None)], key=_divisions)
    return branch


def _limited_to_axes(branch: Term, before: Term) -> Term | None:
    """The branch with the indices of its new loads limited to their axes; None if the bounds of an index are unknown.

    A load is new if the branch before the simplification does not have it.
    """
    loads = {n for n in subterms(branch) if n.op == "load"} - set(subterms(before))
    places = {n: [_limited(x, size) for x, size in zip(n.args, n.attrs[0].shape, strict=True)] for n in loads}
    if any(x is None for found in places.values() for x in found):
        return None
    return substitute(branch, {n: make("load", tuple(found), n.attrs) for n, found in places.items()})


def _limited(place: Term, size: int | str) -> Term | None:
    """The index, limited to 0 <= place < size everywhere, not only under the condition. None if it is unbounded."""
    low, high = bounds(place)
    if isinstance(size, str):
        return place if place.op == "iota" and place.attrs[0].size == size else None
    if low is None or high is None:
        return None
    place = minimum(place, const(size - 1)) if high >= size else place
    return maximum(place, const(0)) if low < 0 else place


def _divisions(term: Term) -> int:
    return sum(n.op in ("floordiv", "mod") for n in subterms(term))


def _differences(condition: Term) -> Differences:
    """Bounds of i - j, from condition and sizes, for each pair of dims of known size that the condition compares."""
    found: Differences = {}
    for part in _conjuncts(condition):
        coefficients, constant = affine(part.args[1] - part.args[0])  # it is not negative
        dims = {c: atom.attrs[0] for atom, c in coefficients.items() if atom.op == "iota"}
        if len(coefficients) != 2 or dims.keys() != {1, -1} or any(not isinstance(d.size, int) for d in dims.values()):
            continue
        i, j = dims[1], dims[-1]
        least, largest = found.get((i, j)) or _opposite(found.get((j, i))) or (1 - j.size, i.size - 1)
        pair, ends = ((i, j), (max(least, -constant), largest))
        if (j, i) in found:
            pair, ends = (j, i), _opposite(ends)
        found[pair] = ends
    return found


def _opposite(ends: tuple[int, int] | None) -> tuple[int, int] | None:
    return ends and (-ends[1], -ends[0])


def _conjuncts(condition: Term) -> Iterator[Term]:
    """The integer comparisons x ≤ y whose conjunction the condition implies."""
    for part in operands(condition, "and"):
        if part.op == "le" and all(a.dtype == "int64" for a in part.args):
            yield part
