"""Stores as build.py takes them: one name for one dim, one state for what several need alike, divisors, short sums and
flattened dims where a tile has room for them.

Each term stays equal to what it was. Called by build.py.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from ..egraph.ops import const, make, reduce, scale, scaled
from ..egraph.term import Dim, Term, all_dims, reduces, rename_dims, substitute
from .cuts import unshadowed
from .dims import every_reduction
from .divisors import beside_their_dims
from .inner_dims import with_one_inner_dim
from .plan import Store
from .short_sums import written_out
from .unflattened import unflattened


def prepared(stores: Sequence[Store]) -> list[Store]:
    """The stores with one name for one dim and one state for what two of them need alike."""
    order = tuple(dict.fromkeys(d for store in stores for d in store.order))
    plain = [unshadowed(unflattened(store.term)) for store in stores]
    terms = [written_out(with_one_inner_dim(beside_their_dims(term))) for term in plain]
    terms = _reuse_scales(with_fresh_bound_dims(terms, order))
    return [replace(store, term=term) for store, term in zip(stores, terms, strict=True)]


def with_fresh_bound_dims(terms: Sequence[Term], order: tuple[Dim, ...]) -> list[Term]:
    """A dim that is both an output axis and bound by a reduction is renamed where it is bound."""
    used = {d.name for d in (*order, *(d for term in terms for d in all_dims(term)))}
    for dim in order:
        if any(r.attrs[1] == dim for r in every_reduction(terms)):
            name = next(n for k in range(len(used) + 1) if (n := f"{dim.name}_{k}") not in used)
            used.add(name)
            terms = [_rename_bound(term, dim, Dim(name, dim.size)) for term in terms]
    return terms


def _rename_bound(term: Term, dim: Dim, fresh: Dim) -> Term:
    mapping = {r: rename_dims(r, {dim: fresh}) for r in reduces(term) if r.attrs[1] == dim}
    return replace_from_above(term, mapping)


def replace_from_above(term: Term, mapping: dict[Term, Term]) -> Term:
    """Like substitute, but what lies under a replaced term is not looked at."""
    done: dict[Term, Term] = {}

    def visit(node: Term) -> Term:
        if node not in done:
            args = tuple(map(visit, node.args)) if node not in mapping else ()
            done[node] = (
                mapping[node] if node in mapping else node if args == node.args else make(node.op, args, node.attrs)
            )
        return done[node]

    return visit(term)


def _reuse_scales(terms: list[Term]) -> list[Term]:
    """max_j G, and every scale with the gauge G, as the scale of one state with G: that of the fewest dims.

    So that no dim of the values alone (a column of the result) seems to be one that the state depends on: where each
    state has such a dim, the scale is that of a count. And of those the one that waits for the fewest others.
    """
    found = every_reduction(terms)
    rescaled = sorted(filter(is_rescaled, found), key=lambda r: (-len(r.dims), -len(reduces(r))))
    states = {(r.attrs[1], r.args[0].args[0]): scale(_without_values(r)) for r in rescaled}
    mapping = {r: states.get((r.attrs[1], r.args[0])) for r in found if r.attrs[0] == "max"}
    mapping |= {scale(r): states[r.attrs[1], r.args[0].args[0]] for r in rescaled}
    mapping = {term: same for term, same in mapping.items() if same is not None and same is not term}
    return [substitute(term, mapping) for term in terms]


def _without_values(r: Term) -> Term:
    """The state, or a count with its gauge where it has dims that the gauge lacks."""
    gauge = r.args[0].args[0]
    return r if r.dims <= gauge.dims else reduce("rescaled", r.attrs[1], scaled(gauge, const(1.0)))


def is_rescaled(r: Term) -> bool:
    return r.attrs[0] == "rescaled" and r.args[0].op == "scaled"
