"""Simplifies index terms under the conditions that choose them: where(j ≤ i, x, y) asks of x only what j ≤ i leaves.

Of two dims whose difference a condition bounds, one is the other and a third: i = j + least + g, where 0 <= g < size is
a dim like any other; quotients and rests are simplified in these, and g is i - j - least again. Where the condition is
false, a place is any of its axis: executors read there too. Only what then has fewer quotients and rests is changed.
"""

from __future__ import annotations

from collections.abc import Iterator

from .affine import affine, bounds
from .index_simplify import negate, simplify_index
from .ops import const, iota, make, maximum, minimum
from .term import Dim, Term
from .traversal import rebuild, substitute, subterms

Ends = dict[tuple[Dim, Dim], tuple[int, int]]  # of (i, j): the least and the largest i - j


def simplify_under_conditions(root: Term) -> Term:
    """The same term, its branches simplified under their conditions."""

    def change(node: Term, args: tuple[Term, ...]) -> Term:
        if node.op == "where":
            condition, yes, no = args
            args = condition, _under(condition, yes), _under(negate(condition), no)
        return node if args == node.args else make(node.op, args, node.attrs)

    return rebuild(root, change)


def _under(condition: Term, branch: Term) -> Term:
    """The branch where the condition holds."""
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
        turned = [simplify_index(substitute(simplify_index(substitute(branch, to)), back)) for to, back in (one, other)]
        found = [_inside(x, branch) for x in turned]
        branch = min([branch, *(x for x in found if x is not None)], key=_divisions)
    return branch


def _inside(branch: Term, before: Term) -> Term | None:
    """The branch with the places that it reads, and did not read before, limited to their axes; None if these are not
    known."""
    loads = {n for n in subterms(branch) if n.op == "load"} - set(subterms(before))
    places = {n: [_limited(x, size) for x, size in zip(n.args, n.attrs[0].shape, strict=True)] for n in loads}
    if any(x is None for found in places.values() for x in found):
        return None
    return substitute(branch, {n: make("load", tuple(found), n.attrs) for n, found in places.items()})


def _limited(place: Term, size: int | str) -> Term | None:
    """0 <= place < size everywhere, not only under the condition."""
    low, high = bounds(place)
    if isinstance(size, str):
        return place if place.op == "iota" and place.attrs[0].size == size else None
    if low is None or high is None:
        return None
    place = minimum(place, const(size - 1)) if high >= size else place
    return maximum(place, const(0)) if low < 0 else place


def _divisions(term: Term) -> int:
    return sum(n.op in ("floordiv", "mod") for n in subterms(term))


def _differences(condition: Term) -> Ends:
    """What a condition says of differences of two dims of known size, beside what their sizes say."""
    found: Ends = {}
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
    """The comparisons x ≤ y of integers that hold where the condition does."""
    if condition.op == "and":
        for part in condition.args:
            yield from _conjuncts(part)
    elif condition.op == "le" and all(a.dtype == "int64" for a in condition.args):
        yield condition
