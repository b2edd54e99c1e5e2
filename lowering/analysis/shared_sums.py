"""Where a sum over many dims is cut in two, so that its first half is made by a loop that another store has anyway.

A sum that lacks the rows of the products inside of it would do these products again, in a kernel of its own. Cut in
two, it is one more accumulator, a number for each row, beside a sum that has the rows, and a small sum of these
numbers. Example: of t[h] = Σ_b Σ_j Σ_i w[b, h, i, j] · x[b, h, i] · y[j] and o[b, h, j, d] = Σ_i w[b, h, i, j] ·
v[b, h, i, d], where w holds a product over i and j, the first half is Σ_i w · x · y for each b, h and j.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

from ...egraph.search.cost import volume
from ...egraph.terms.affine import affine, combine, length, to_term
from ...egraph.terms.ops import eq, iota, load, sum_over, where
from ...egraph.terms.term import Dim, Tensor, Term
from ..plan.records import Store
from ..plan.thresholds import MAX_ENTRIES_OF_A_TABLE
from .dim_roles import size_key
from .nested_sums import ZERO, Nest, is_sum, nest_of, products_of_pairs, sides_of
from .relative_index import is_relative, over_relative_index

MAX_HELD_PARTS = 128  # numbers that a tile holds for each row and column


@dataclass(frozen=True)
class Cut:
    """A sum of a store's term, `root`, cut in two: `part` is summed first, for each index of `dims`.

    `rest` are the dims over which the parts are summed then, the longest one first. apart: whether what is summed over
    that one is stored, too, as a tile cannot hold the others.
    """

    root: Term
    part: Term
    dims: tuple[Dim, ...]
    rest: tuple[Dim, ...]

    @property
    def apart(self) -> bool:
        others = self.rest[1:]
        return not all(isinstance(d.size, int) for d in others) or volume(others) > MAX_HELD_PARTS


def top_sums(term: Term) -> Iterator[Term]:
    """The sums in a term that no other sum is around, each once."""
    waiting, seen = [term], {term}
    while waiting:
        node = waiting.pop()
        if is_sum(node):
            yield node
            continue
        fresh = [a for a in dict.fromkeys(node.args) if a not in seen]
        seen.update(fresh)
        waiting += fresh


@dataclass(frozen=True)
class DistanceCut:
    """A sum of a store's term, `root`, by a function of column - row, cut in two: `half` adds `term` up by distance.

    made: what becomes of the root, from the tensor of the half.
    """

    root: Term
    half: Store
    made: Callable[[Tensor], Term]


def distance_cut_of(store: Store, name: str) -> DistanceCut | None:
    """How the next sum of a store over all pairs with f(column - row) = m is cut; None if there is none.

    Σ_i Σ_j where(f(j - i) = m, x, 0) = Σ_δ where(f(δ) = m, Σ_i Σ_j where(j - i = δ, x, 0), 0): each pair has one
    distance, so that this only adds in another order. name: of the tensor of the sums by distance.
    """
    for root in top_sums(store.term):
        nest = nest_of(root)
        products = products_of_pairs(nest.body)
        for guard in nest.guards if products else ():
            if found := _by_distance(guard, nest, products, store):
                return _distance_cut(root, nest, guard, found, name)
    return None


@dataclass(frozen=True)
class ByDistance:
    """A guard index = m as it stands in a nest: the index depends on columns - rows alone."""

    rows: Dim
    columns: Dim
    index: Term
    entry: Dim


def _by_distance(guard: Term, nest: Nest, products: set[Term], store: Store) -> ByDistance | None:
    """The guard as one that asks for an entry of an axis by distance; None if it is none.

    Nothing else in the nest may know the entry, and the products have rows and columns that the nest sums over.
    """
    if guard.op != "eq" or guard.args[0].dtype != "int64":
        return None
    known = frozenset().union(nest.body.dims, *(g.dims for g in nest.guards if g is not guard))
    for entry in (d for d in store.order if d in guard.dims - known):
        index = _asked_for(guard, entry)
        if index is None or len(index.dims) != 2 or not index.dims <= {*nest.dims}:
            continue
        pair = sorted(index.dims)
        if all(index.dims <= sides_of(product) for product in products) and is_relative(index, *pair):
            return ByDistance(*_rows_first(pair, index), index, entry)
    return None


def _asked_for(guard: Term, entry: Dim) -> Term | None:
    """The index of a guard index = entry, in whatever order its sides are; None if it is no such guard."""
    form = combine(affine(guard.args[0]), affine(guard.args[1]), -1)
    factor = form[0].get(iota(entry), 0)
    if abs(factor) != 1:
        return None
    return to_term(combine(({}, 0), combine(form, ({iota(entry): 1}, 0), -factor), -factor))


def _rows_first(pair: Sequence[Dim], index: Term) -> tuple[Dim, Dim]:
    """Rows and columns: an index of columns - rows grows with the columns."""
    one, other = pair
    return (other, one) if affine(index)[0].get(iota(one), 0) > 0 else (one, other)


def _distance_cut(root: Term, nest: Nest, guard: Term, found: ByDistance, name: str) -> DistanceCut:
    guards = tuple(g for g in nest.guards if g is not guard)
    around = [d for d in nest.dims if d not in (found.rows, found.columns)]
    distance, (index,) = over_relative_index([found.index], found.rows, found.columns, [nest.body, *guards])
    term = Nest((), guards, nest.body).sum(())
    points = sorted(term.dims - {found.rows, found.columns})
    place = iota(found.columns) - iota(found.rows) + length(found.rows) - 1
    dtype = term.dtype if term.dtype == "float64" else "float32"
    output = Tensor(name, dtype, tuple(d.size for d in (*points, distance)))
    half = Store(term, output, (*points, found.rows, found.columns), (*map(iota, points), place))

    def made(read: Term) -> Term:
        return sum_over(distance, where(eq(index, iota(found.entry)), Nest(tuple(around), (), read).sum(around), ZERO))

    return DistanceCut(root, half, lambda tensor: made(load(tensor, *map(iota, (*points, distance)))))


def cut_of(store: Store, others: Sequence[Store]) -> Cut | None:
    """How the next sum of a store is cut; None if there is none that a cut spares products of matrices."""
    for root in top_sums(store.term):
        nest = nest_of(root)
        products = products_of_pairs(nest.body)
        if products and (first := _first_dims(nest, products, store, others)):
            dims, order = first
            part = replace(nest, dims=tuple(d for d in nest.dims if d in dims))
            axes = sorted(part.sum(part.dims).dims, key=lambda d: (d not in order, order.index(d) if d in order else d))
            return Cut(root, part.sum(part.dims), tuple(axes), _by_size(d for d in nest.dims if d not in dims))
    return None


def _first_dims(
    nest: Nest, products: set[Term], store: Store, others: Sequence[Store]
) -> tuple[frozenset[Dim], tuple[Dim, ...]] | None:
    """The dims that are summed first, and an order of the others; None if the sum should stay whole.

    They are those of a loop of another store with the same products, whose axes are the other dims. Of several such
    loops it is the one of the most products, then of the most stores. Without any, they are one side of the products,
    if the nest sums over both sides: the other side has the rows then.
    """
    free = nest.sum(nest.dims[:0]).dims
    entries = free.difference(*(product.dims for product in products))
    if not all(isinstance(d.size, int) for d in entries) or volume(entries) > MAX_ENTRIES_OF_A_TABLE:
        return None
    found: dict[frozenset[Dim], list[tuple[float, tuple[Dim, ...]]]] = {}
    for dims, shared, order in _loops_with(products, (other for other in others if other is not store)):
        if dims < frozenset(nest.dims) and free - dims - entries <= {*order}:
            found.setdefault(dims, []).append((shared, order))
    if found:
        dims, loops = max(found.items(), key=lambda item: (max(item[1])[0], len(item[1]), sorted(item[0])))
        return dims, max(loops)[1]
    sides = frozenset.intersection(*map(sides_of, products))
    if len(sides) < 2 or not frozenset().union(*map(sides_of, products)) <= {*nest.dims}:
        return None
    return frozenset(_by_size(sides)[:1]), store.order


def _loops_with(
    products: set[Term], stores: Iterable[Store]
) -> Iterator[tuple[frozenset[Dim], float, tuple[Dim, ...]]]:
    """Of each sum in these stores that has some of the products: its dims, the work it shares, the axes."""
    for store in stores:
        for root in top_sums(store.term):
            nest = nest_of(root)
            common = products & products_of_pairs(nest.body)
            if common:
                yield frozenset(nest.dims), sum(volume(r.dims) for r in common), store.order


def _by_size(dims: Iterable[Dim]) -> tuple[Dim, ...]:
    """The dims, the longest first; symbolic ones before all others."""
    return tuple(sorted(sorted(dims), key=size_key, reverse=True))
