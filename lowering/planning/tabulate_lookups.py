"""Two passes of the stage `cuts` that store values in a table: by an index that is looked up, or by a relative index.

A kernel computes each value of the table once, and a loop reads the values that it needs. Example: with the table of
Σ_d q[i, d] · t[p, d], a product of matrices over i and p, a loop reads Σ_d q[i, d] · t[f(i, j), d] at p = f(i, j).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from math import prod

from ...egraph.terms.affine import bounds
from ...egraph.terms.ops import iota, load
from ...egraph.terms.term import Dim, Term
from ...egraph.terms.traversal import all_dims, factors, reduces, substitute, subterms
from ..analysis.dim_roles import loop_reductions, sum_factors
from ..analysis.relative_index import Table, between, fresh, relative_scores

MAX_GROWTH = 4  # how many times as many reductions a table may take: they are products of matrices then, others are not
MAX_TABLE_SIZE = 1024  # positions along a dim of known size, where other sizes are not known

Lookup = tuple[Term, int | str]  # an index by the loop's dim and another one, and the size of the axis


def lookup_table_of(term: Term, held_limit: int) -> Table | None:
    """The table of the next reduction that reads at positions by its loop's dim and another one."""
    found = loop_reductions([term], held_limit)
    tables = (lookup_table(r.args[0], r.attrs[1], _batch_of(found, r.attrs[1])) for r in found)
    return next(filter(None, tables), None)


def lookup_table(body: Term, loop: Dim, batch: frozenset[Dim] = frozenset()) -> Table | None:
    """The table of the next reduction in a loop's body that reads at positions by the loop's dim and another one.

    batch: dims that everything has that the loop streams. Positions by these alone, such as the pages of each sequence,
    are no lookup: for each of them the loop streams other rows, and multiplies them as it would others.
    """
    found = (_table_of(r, loop, batch) for r in reduces(body) if loop in r.dims)
    return next(filter(None, found), None)


def _batch_of(reductions: Iterable[Term], loop: Dim) -> frozenset[Dim]:
    """The dims that all factors of products have that move with the loop's dim."""
    sums = {inner for r in reductions if r.attrs[1] == loop for inner in (r, *reduces(r.args[0]))}
    streamed = [factor.dims for r in sums for factor in sum_factors(r) if loop in factor.dims]
    return frozenset.intersection(*streamed) if streamed else frozenset()


def _table_of(r: Term, loop: Dim, batch: frozenset[Dim]) -> Table | None:
    lookups = _lookups(r, loop, batch)
    if not all(index.dims <= r.dims for index, _ in lookups):  # one moves with what the reduction, or one inside, binds
        return None
    change, positions = _positions_for(lookups, {d.name for d in all_dims(r)})
    values = _at_positions(r, change)
    gone = {d for index, _ in lookups for d in index.dims} - values.dims
    if not gone or not _pays(values.dims, r.dims):
        return None
    if _is_relative_product(r, loop) and not _is_short([dim.size for dim, _ in positions], loop):
        return None
    return Table(r, values, tuple(positions))


def _lookups(r: Term, loop: Dim, batch: frozenset[Dim]) -> list[Lookup]:
    """Indices by the loop's dim and at least one other dim that is no batch, each once."""
    loads = (n for n in subterms(r.args[0]) if n.op == "load")
    indices = ((index, n.attrs[0].shape[axis]) for n in loads for axis, index in enumerate(n.args))
    moves = lambda index: loop in index.dims and bool(index.dims - batch - {loop})
    return list(dict.fromkeys((index, size) for index, size in indices if moves(index)))


def _positions_for(lookups: Iterable[Lookup], names: set[str]) -> tuple[dict[Term, Term], list[tuple[Dim, Term]]]:
    """A dim of positions for each lookup: the index along it that replaces the lookup, and the lookup's place on it."""
    change: dict[Term, Term] = {}
    positions: list[tuple[Dim, Term]] = []
    for index, size in lookups:
        first, count, place = _range(index, size)
        dim = Dim(fresh("place", names), count)
        names.add(dim.name)
        positions.append((dim, place))
        change[index] = iota(dim) + first if first else iota(dim)
    return change, positions


def _at_positions(r: Term, change: Mapping[Term, Term]) -> Term:
    """The reduction with other indices."""
    loads = [n for n in subterms(r.args[0]) if n.op == "load"]
    moved = {n: load(n.attrs[0], *(change.get(a, a) for a in n.args)) for n in loads}
    return substitute(r, {n: new for n, new in moved.items() if n is not new})


def _is_relative_product(r: Term, loop: Dim) -> bool:
    """Whether a tile of rows and columns computes it as a product of matrices over the relative index."""
    others = r.dims - {loop} if r.attrs[0] == "sum" else ()
    return any(relative_scores(factors(r.args[0]), d, loop, r.attrs[1]) for d in others)


def _is_short(sizes: Sequence[int | str | None], loop: Dim) -> bool:
    """Whether the table takes less memory than the scores."""
    known = [n for n in sizes if isinstance(n, int)]
    return len(known) == len(sizes) and (not isinstance(loop.size, int) or prod(known) < loop.size)


def _range(index: Term, size: int | str) -> tuple[int, int | str, Term]:
    """(the first position that the index can be, how many there are, the index counted from the first)."""
    if not isinstance(size, int):
        return 0, size, index
    low, high = bounds(index)
    first = min(max(low or 0, 0), size - 1)
    count = min(size, size if high is None else max(high, first) + 1) - first
    return first, count, between(index - first if first else index, count)


def _pays(after: Iterable[Dim], before: Iterable[Dim]) -> bool:
    """Whether the table takes at most MAX_GROWTH times as many reductions as before."""
    gained, lost = {*after} - {*before}, {*before} - {*after}
    own, others = ([d.size for d in dims if isinstance(d.size, int)] for dims in (gained, lost))
    if len(own) + len(others) == len(gained) + len(lost):
        return 0 < prod(own) <= MAX_GROWTH * prod(others)
    return all(n <= MAX_TABLE_SIZE for n in own)
