"""Folds of what is read at places of rows and columns together: done once for each place, and the results read there.

What Σ_d q[i, d] · table[f(i, j), d] gives is, at f(i, j), that of Σ_d q[i, d] · table[p, d], a product of matrices over
i and p. Pure functions over terms: what to store first, and where it is read.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from math import prod

from ...egraph.terms.affine import bounds
from ...egraph.terms.ops import iota, load
from ...egraph.terms.term import Dim, Term
from ...egraph.terms.traversal import all_dims, factors, reduces, substitute, subterms
from ..analysis.relative_index import Difference, between, folded, fresh

MORE = 4  # times as many folds as before, which are no products of matrices then
MOST = 1024  # places of a dim of known size, where others are not known


def of_places(body: Term, loop: Dim) -> Difference | None:
    """The next fold in a loop's body that reads at places of its dim and another one."""
    found = (_moved(r, loop) for r in reduces(body) if loop in r.dims)
    return next(filter(None, found), None)


def _moved(r: Term, loop: Dim) -> Difference | None:
    loads = [n for n in subterms(r.args[0]) if n.op == "load"]
    indices = ((index, n.attrs[0].shape[axis]) for n in loads for axis, index in enumerate(n.args))
    picks = dict.fromkeys((index, size) for index, size in indices if loop in index.dims and len(index.dims) > 1)
    if any(r.attrs[1] in index.dims for index, _ in picks):
        return None
    names = {d.name for d in all_dims(r)}
    change: dict[Term, Term] = {}
    places: list[tuple[Dim, Term]] = []
    for index, size in picks:
        first, count, place = _range(index, size)
        dim = Dim(fresh("place", names), count)
        names.add(dim.name)
        places.append((dim, place))
        change[index] = iota(dim) + first if first else iota(dim)
    moved = {n: load(n.attrs[0], *(change.get(a, a) for a in n.args)) for n in loads}
    values = substitute(r, {n: new for n, new in moved.items() if n is not new})
    gone = {d for index, _ in picks for d in index.dims} - values.dims
    if not gone or not _pays(values.dims, r.dims) or (_by_difference(r, loop) and not _short(places, loop)):
        return None
    return Difference(r, values, tuple(places))


def _by_difference(r: Term, loop: Dim) -> bool:
    """Whether a tile of rows and columns has it as a product of matrices over differences."""
    others = r.dims - {loop} if r.attrs[0] == "sum" else ()
    return any(folded(factors(r.args[0]), d, loop, r.attrs[1]) for d in others)


def _short(places: Sequence[tuple[Dim, Term]], loop: Dim) -> bool:
    """Whether the values take no more memory than half of the scores."""
    sizes = [dim.size for dim, _ in places]
    known = all(isinstance(n, int) for n in sizes)
    return known and (not isinstance(loop.size, int) or 2 * prod(sizes) <= loop.size)


def _range(index: Term, size: int | str) -> tuple[int, int | str, Term]:
    """(the first of the places that the index can be, how many there are, the index among them)."""
    if not isinstance(size, int):
        return 0, size, index
    low, high = bounds(index)
    first = min(max(low or 0, 0), size - 1)
    count = min(size, size if high is None else max(high, first) + 1) - first
    return first, count, between(index - first if first else index, count)


def _pays(after: Iterable[Dim], before: Iterable[Dim]) -> bool:
    """Whether folds are not many more than they were."""
    own, others = [d.size for d in {*after} - {*before}], [d.size for d in {*before} - {*after}]
    if all(isinstance(n, int) for n in (*own, *others)):
        return 0 < prod(own) <= MORE * prod(others)
    return all(n <= MOST for n in own if isinstance(n, int))
