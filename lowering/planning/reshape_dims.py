"""The passes of the stage `shape` that write one axis of a result as two, or two as one.

Invariant: the result's tensor in memory stays the same; only the dims of terms and orders change. Example: query heads
that share keys become rows of a tile.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import replace
from itertools import pairwise
from math import prod

from ...egraph.terms.index_simplify import floordiv, mod, simplify_index
from ...egraph.terms.ops import const, iota
from ...egraph.terms.term import Dim, Tensor, Term
from ...egraph.terms.traversal import all_dims, reduces, substitute, subterms
from ..analysis.dim_roles import loop_reductions, product_sides, static_size
from ..analysis.relative_index import Table
from ..plan.device import H200
from ..plan.records import Store
from ..plan.term_edits import unused_name
from ..plan.thresholds import MIN_ROWS_OF_A_PRODUCT
from .kernel_shape import DimFacts, kernel_shape
from .planning_state import KernelShape, Planning

Change = dict[Term, Term]  # from the index along a dim to an index along the new dims


# Groups as rows


def group_rows(planning: Planning) -> Planning:
    """A pass: a dim h becomes two dims, group and member, with h = group · size + member.

    An example is grouped-query attention: `size` query heads read the key head h // size. By group and member the keys
    no longer depend on the member, so that a tile may have the members as its rows. The pass does it where a tile gets
    more rows than a few, or where a tile then holds the members whole instead of having h on the grid. A few rows that
    a tile has already become one dim with the members. Example: 4 queries of a sequence, and 8 heads that share keys,
    are 32 rows, so that one program reads the keys and not 8. So do heads that all read the same keys, and few queries.
    """
    shape = kernel_shape(planning.stores, planning)
    names = _dim_names(planning.stores, planning.references)
    for dim, size in _groupings(planning.terms, planning.held_limit):
        group = Dim(unused_name(f"{dim.name}_group", names), static_size(dim) // size)
        member = Dim(unused_name(f"{dim.name}_place", names), size)
        change = {iota(dim): iota(group) * const(size) + iota(member)}
        stores = tuple(_in_groups(store, dim, (group, member), change) for store in planning.stores)
        references = tuple(simplify_index(substitute(term, change)) for term in planning.references)
        grouped = replace(planning, stores=stores, references=references)
        if _pays(dim, member, shape, kernel_shape(stores, planning)):
            return grouped
        rows = shape.rows
        if rows is not None and isinstance(rows.size, int) and 1 < rows.size < MIN_ROWS_OF_A_PRODUCT:
            if (merged := _with_rows_as_one((member, rows), grouped)) is not None:
                return merged
    pairs = pairwise(planning.stores[0].order) if shape.rows is not None else ()
    found = (_with_rows_as_one(pair, planning) for pair in pairs if _share_columns(pair, shape, planning))
    return next((merged for merged in found if merged is not None), planning)


def _share_columns(pair: tuple[Dim, Dim], shape: KernelShape, planning: Planning) -> bool:
    """Whether two axes are a tile's rows and a dim of the grid, for which programs read the same columns again.

    Example: 4 queries of 16 heads, all of which have one latent as key and value. Only up to as many rows as one
    instruction of Hopper multiplies, and where no mask reads a tensor by one of the two, as it would be no limit then.
    """
    if any(n.op == "load" and n.dims & {*pair} for mask in _conditions(planning) for n in subterms(mask)):
        return False
    facts = DimFacts(planning.stores, planning.held_limit)
    if shape.rows not in pair or not all(isinstance(d.size, int) and d.size > 1 for d in pair):
        return False
    fit = prod(map(static_size, pair)) <= H200.product_rows and {*pair} <= {shape.rows, *shape.grid}
    return fit and all(d in facts.carried and d not in facts.batch for d in pair)


def _conditions(planning: Planning) -> set[Term]:
    return {node.args[0] for term in planning.terms for node in subterms(term) if node.op == "where"}


def _with_rows_as_one(pair: tuple[Dim, Dim], planning: Planning) -> Planning | None:
    """Two neighbouring axes of each result as one dim; None if a tile would not have it as its rows."""
    if any(s.places or pair not in pairwise(s.order) for s in planning.stores):
        return None
    merged, change = _as_one(pair, _dim_names(planning.stores, planning.references))
    stores = tuple(_merged(store, pair, merged, change) for store in planning.stores)
    stores = tuple(replace(store, term=simplify_index(store.term)) for store in stores)
    if kernel_shape(stores, planning).rows != merged:
        return None
    references = tuple(simplify_index(substitute(term, change)) for term in planning.references)
    return replace(planning, stores=stores, references=references)


def _pays(dim: Dim, member: Dim, before: KernelShape, after: KernelShape) -> bool:
    """Whether the members are more rows than the few before, or are held while the dim was on the grid."""
    rows = before.rows
    if after.rows == member:
        if rows is None or (isinstance(rows.size, int) and rows.size < min(MIN_ROWS_OF_A_PRODUCT, static_size(member))):
            return True
    return member in after.held and dim not in (rows, *before.held)


def _groupings(terms: Sequence[Term], held_limit: int) -> Iterator[tuple[Dim, int]]:
    """Free dims h with a size n, where some loop reads a tensor by h // n in each of its steps."""
    bound = {r.attrs[1] for t in terms for r in reduces(t)}
    for quotient in _quotients_in_loops(terms, held_limit):
        index, size = quotient.args
        if index.op != "iota" or size.op != "const" or index.attrs[0] in bound:
            continue
        dim = index.attrs[0]
        if isinstance(dim.size, int) and 1 < size.attrs[0] and dim.size % size.attrs[0] == 0:
            yield dim, size.attrs[0]


def _quotients_in_loops(terms: Sequence[Term], held_limit: int) -> Iterator[Term]:
    """The floor divisions in indices of the tensors that each step of a loop reads."""
    for r in loop_reductions(terms, held_limit):
        for node in (n for n in subterms(r.args[0]) if n.op == "load" and r.attrs[1] in n.dims):
            yield from dict.fromkeys(t for index in node.args for t in subterms(index) if t.op == "floordiv")


def _in_groups(store: Store, dim: Dim, parts: tuple[Dim, Dim], change: Change) -> Store:
    term = simplify_index(substitute(store.term, change))
    if dim not in store.order or store.places:
        return replace(store, term=term)
    axis, shape = store.order.index(dim), store.output.shape
    sizes = (*shape[:axis], *(d.size for d in parts), *shape[axis + 1 :])
    order = (*store.order[:axis], *parts, *store.order[axis + 1 :])
    return Store(term, Tensor(store.output.name, store.output.dtype, sizes), order)


# Value dims as one


def merge_value_dims(planning: Planning) -> Planning:
    """A pass: two neighbouring dims of a result that only values have become one dim, the columns of one matrix.

    An example is a result of points, out[i, e, c] = Σ_j p[i, j] · v[j, e, c] with coordinates c: a product of matrices
    takes no tile of three dims, but with the columns (e, c) it is one. The merged dim counts the pairs: e is its
    quotient by the size of c, and c is the remainder. The pass does it where a tile holds all pairs.
    """
    stores, references = list(planning.stores), list(planning.references)
    for number, store in enumerate(stores):
        while pair := mergeable_pair(stores, store, _held_dims(store, planning), planning.held_limit):
            merged, change = _as_one(pair, _dim_names(stores, references))
            stores[number] = store = _merged(store, pair, merged, change)
            references[number] = substitute(references[number], change)
    return replace(planning, stores=tuple(stores), references=tuple(references))


def _as_one(dims: Sequence[Dim], names: Collection[str]) -> tuple[Dim, Change]:
    """The dim that counts the places of some dims, those of the last one first, and the index along each by it."""
    merged = Dim(unused_name("_".join(d.name for d in dims), names), prod(map(static_size, dims)))
    inside, change = static_size(merged), {}
    for number, dim in enumerate(dims):
        inside //= static_size(dim)
        index = floordiv(iota(merged), const(inside))
        change[iota(dim)] = mod(index, const(static_size(dim))) if number else index
    return merged, change


def _held_dims(store: Store, planning: Planning) -> set[Dim]:
    return {*kernel_shape((store,), planning).held}


def mergeable_pair(stores: Sequence[Store], store: Store, held: set[Dim], held_limit: int) -> tuple[Dim, Dim] | None:
    """Two neighbours of the store's axes that a tile holds whole, where each subterm has both or none."""
    for first, second in pairwise(() if store.places else store.order):
        if {first, second} <= held and static_size(first) * static_size(second) <= held_limit:
            if _occur_together((first, second), store, stores):
                return first, second
    return None


def _occur_together(pair: tuple[Dim, Dim], store: Store, stores: Sequence[Store]) -> bool:
    """Whether each subterm of the store has both dims or none, and no other store has any."""
    nodes = [n for n in subterms(store.term) if n.op != "iota"]
    others = {d for other in stores if other.term is not store.term for d in other.term.dims}
    return others.isdisjoint(pair) and all((pair[0] in n.dims) == (pair[1] in n.dims) for n in nodes)


def _merged(store: Store, pair: tuple[Dim, Dim], merged: Dim, change: Change) -> Store:
    axis, shape = store.order.index(pair[0]), store.output.shape
    order = (*store.order[:axis], merged, *store.order[axis + 2 :])
    output = Tensor(store.output.name, store.output.dtype, (*shape[:axis], merged.size, *shape[axis + 2 :]))
    return Store(substitute(store.term, change), output, order)


# Rows of a stored part as one


def with_rows_as_one(part: Term, products: Iterable[Term], order: Sequence[Dim]) -> Table | None:
    """The part by one dim instead of all that one side of its products has and the other lacks: rows of the matrices.

    None if that is no more than one dim. order: the axes of who reads the part; rows are among them. Example:
    Σ_d q[b, h, i, d] · r[i, j, d] is for each i a product of matrices with the pairs (b, h) as rows. A tile of pairs
    reads r once, and not for each b again.
    """
    found = {side for r in products for side in _sides_alone(r)}
    several = [side for side in found if len(side) > 1]
    if len(several) != 1 or not all(d in order and isinstance(d.size, int) for d in several[0]):
        return None
    dims = [d for d in order if d in several[0]]
    merged, change = _as_one(dims, {d.name for d in (*order, *all_dims(part))})
    index = const(0)
    for dim in dims:
        index = index * const(static_size(dim)) + iota(dim)
    return Table(part, simplify_index(substitute(part, change)), ((merged, simplify_index(index)),))


def _sides_alone(r: Term) -> Iterator[frozenset[Dim]]:
    """The dims of each side of a product that the other side lacks, without those of one place."""
    left, right = product_sides(r)
    for side in (left - right, right - left):
        yield frozenset(d for d in side if d != r.attrs[1] and d.size != 1)


def _dim_names(stores: Sequence[Store], references: Sequence[Term]) -> set[str]:
    return {d.name for term in (*(store.term for store in stores), *references) for d in all_dims(term)}
