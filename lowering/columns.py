"""Dims that only values have, side by side in a result, as one: together they are the columns of one matrix.

A point of values is a few coordinates, and a product of matrices takes no tile of three dims. The one dim counts all
their places, and each of them is its quotient or rest. Called by build.py.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import pairwise

from ..egraph.index import floordiv, mod
from ..egraph.ops import const, iota
from ..egraph.term import Dim, Tensor, Term, all_dims, substitute, subterms
from .groups import fresh
from .plan import Store


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
