"""Gives a plan other dims than the term has: a long dim as groups, or two value dims as one.

The result is the same tensor with one axis written as two. Example: query heads that share keys become rows of a tile.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from itertools import pairwise

from ...egraph.terms.index_simplify import floordiv, mod, simplify_index
from ...egraph.terms.ops import const, iota
from ...egraph.terms.term import Dim, Tensor, Term
from ...egraph.terms.traversal import all_dims, reduces, substitute, subterms
from ..analysis.dim_roles import loop_reductions
from ..plan.records import Store
from ..plan.thresholds import FEW


def joined(
    stores: Sequence[Store], asked: Sequence[Term], held_of: Callable[[Sequence[Store]], tuple[Dim, ...]], held: int
) -> tuple[list[Store], list[Term]]:
    """The stores, and what they are forms of, with such dims as one where a tile holds all their places."""
    stores, asked = list(stores), list(asked)
    for number, store in enumerate(stores):
        while pair := _pair([s.term for s in stores], store, {*held_of([store])}, held):
            names = {d.name for t in (*(s.term for s in stores), *asked) for d in all_dims(t)}
            one = Dim(fresh("_".join(d.name for d in pair), names), pair[0].size * pair[1].size)
            places = const(pair[1].size)
            change = {iota(pair[0]): floordiv(iota(one), places), iota(pair[1]): mod(iota(one), places)}
            stores[number] = store = _in_one(store, pair, one, change)
            asked[number] = substitute(asked[number], change)
    return stores, asked


def _pair(terms: Sequence[Term], store: Store, whole: set[Dim], held: int) -> tuple[Dim, Dim] | None:
    """Two neighbours of the store's axes that a tile holds whole, and nothing has one without the other."""
    for first, second in pairwise(store.order):
        if {first, second} <= whole and first.size * second.size <= held and _together(terms, store, (first, second)):
            return first, second
    return None


def _together(terms: Sequence[Term], store: Store, pair: tuple[Dim, Dim]) -> bool:
    """Whether each node of the store's term has both or none, and no other term has any."""
    nodes = [n for n in subterms(store.term) if n.op != "iota"]
    others = {d for t in terms if t is not store.term for d in t.dims}
    return others.isdisjoint(pair) and all((pair[0] in n.dims) == (pair[1] in n.dims) for n in nodes)


def _in_one(store: Store, pair: tuple[Dim, Dim], one: Dim, change: dict[Term, Term]) -> Store:
    axis, shape = store.order.index(pair[0]), store.output.shape
    order = (*store.order[:axis], one, *store.order[axis + 2 :])
    output = Tensor(store.output.name, store.output.dtype, (*shape[:axis], one.size, *shape[axis + 2 :]))
    return Store(substitute(store.term, change), output, order)


Stores = list[Store]


def grouped(
    stores: Stores, asked: Sequence[Term], shape_of: Callable[[Stores], tuple[Dim | None, tuple[Dim, ...]]], held: int
) -> tuple[Stores, list[Term]]:
    """The stores and what they are forms of, with a dim as two where that gives a tile more rows than a few, or holds
    the places of one that would be on the grid."""
    rows, kept = shape_of(stores)
    few = rows is None or (isinstance(rows.size, int) and rows.size < FEW)
    for dim, size in _candidates([s.term for s in stores], held):
        names = {d.name for t in (*(s.term for s in stores), *asked) for d in all_dims(t)}
        group = Dim(fresh(f"{dim.name}_group", names), dim.size // size)
        place = Dim(fresh(f"{dim.name}_place", names), size)
        change = {iota(dim): iota(group) * const(size) + iota(place)}
        new = [_in_groups(store, dim, (group, place), change) for store in stores]
        rows_then, kept_then = shape_of(new)
        more = few and rows_then == place and (rows is None or place.size > rows.size)
        if more or (place in kept_then and dim not in (rows, *kept)):
            return new, [simplify_index(substitute(t, change)) for t in asked]
    return stores, list(asked)


def fresh(name: str, names: set[str]) -> str:
    """The name, or with a number behind it, as no other has it."""
    return next(n for k in range(len(names) + 1) if (n := f"{name}{k or ''}") not in names)


def _candidates(terms: Sequence[Term], held: int) -> Iterator[tuple[Dim, int]]:
    """Free dims, each with how many of its neighbours have in common what is read for every step of a loop."""
    bound = {r.attrs[1] for t in terms for r in reduces(t)}
    for r in loop_reductions(terms, held):
        for node in (n for n in subterms(r.args[0]) if n.op == "load" and r.attrs[1] in n.dims):
            for part in {t for index in node.args for t in subterms(index) if t.op == "floordiv"}:
                at, size = part.args
                if at.op == "iota" and size.op == "const" and at.attrs[0] not in bound:
                    dim = at.attrs[0]
                    if isinstance(dim.size, int) and 1 < size.attrs[0] and dim.size % size.attrs[0] == 0:
                        yield dim, size.attrs[0]


def _in_groups(store: Store, dim: Dim, parts: tuple[Dim, Dim], change: dict[Term, Term]) -> Store:
    term = simplify_index(substitute(store.term, change))
    if dim not in store.order:
        return replace(store, term=term)
    axis, shape = store.order.index(dim), store.output.shape
    sizes = (*shape[:axis], *(d.size for d in parts), *shape[axis + 1 :])
    order = (*store.order[:axis], *parts, *store.order[axis + 1 :])
    return Store(term, Tensor(store.output.name, store.output.dtype, sizes), order)
