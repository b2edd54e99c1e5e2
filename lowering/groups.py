"""A dim of few rows beside one whose places share what a loop reads, as grouped heads share keys: groups as rows.

h stands for group · size + place, a bijection, so that what is read by h // size no longer knows the place, and a tile
has the places as its rows. Terms and the axes of results change, nothing else. Called by build.py.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace

from ..egraph.index import simplify_index
from ..egraph.ops import const, iota
from ..egraph.term import Dim, Tensor, Term, all_dims, reduces, substitute, subterms
from .cuts import FEW
from .dims import loop_reductions
from .plan import Store

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
