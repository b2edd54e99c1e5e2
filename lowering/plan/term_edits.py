"""Edits of terms that planning and masks share: fresh names for bound dims, replacement.

No edit changes a value. Example: `renaming(x[i], x[j])` is {i: j}.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

from ...egraph.rewrite.match import applied
from ...egraph.terms.ops import iota, make, reduce
from ...egraph.terms.term import Dim, Term
from ...egraph.terms.traversal import all_dims, at_place, every_reduction, rebuild, reduces, rename_dims
from ...rules.demotion import reduction_in_blocks, states_by_their_numbers


def fresh_name(base: str, used: Collection[str]) -> str:
    """The first of base_0, base_1, ... that is not used."""
    return next(name for k in range(len(used) + 1) if (name := f"{base}_{k}") not in used)


def unused_name(name: str, names: Collection[str]) -> str:
    """The name, with a number behind it if it is among the names."""
    return next(n for k in range(len(names) + 1) if (n := f"{name}{k or ''}") not in names)


def unshadowed(root: Term) -> Term:
    """The same term where no reduction over a dim is bound inside of one that the dim is free in: it may be stored.

    Two of one dim get one name where they can: reductions of one dim share a loop.
    """
    names = {d.name for d in all_dims(root)}

    def change(node: Term, args: tuple[Term, ...]) -> Term:
        made = node if args == node.args else make(node.op, args, node.attrs)
        if node.op != "reduce" or not any(_hides(r, node.attrs[1]) for r in reduces(made.args[0])):
            return made
        monoid, dim = node.attrs
        used = names | {d.name for d in all_dims(made.args[0])}
        fresh = Dim(fresh_name(dim.name, used), dim.size)
        return reduce(monoid, fresh, at_place(made.args[0], dim, iota(fresh)))

    return rebuild(root, change)


def _hides(r: Term, dim: Dim) -> bool:
    return dim in r.dims and any(inner.attrs[1] == dim for inner in reduces(r.args[0]))


def in_blocks(whole: Term, count: int, names: Collection[str], roles: tuple[str, str]) -> Term | None:
    """A reduction as one over so many blocks of its dim, each of them reduced, by the law; None where they do not fill
    it. Of states the outer one folds their numbers, which can be stored. roles: of the dims, in their names.
    """
    dim = whole.attrs[1]
    if not isinstance(dim.size, int) or dim.size % count:
        return None
    sizes = zip(roles, (count, dim.size // count), strict=True)
    blocks, inside = (Dim(unused_name(f"{dim.name}_{role}", names), size) for role, size in sizes)
    made = applied(reduction_in_blocks, whole, {"dim b": blocks, "dim i": inside})
    return made if whole.attrs[0] != "rescaled" else applied(states_by_their_numbers, made)


def with_fresh_bound_dims(terms: Sequence[Term], order: tuple[Dim, ...]) -> list[Term]:
    """A dim that is both an output axis and bound by a reduction is renamed where it is bound."""
    used = {d.name for d in (*order, *(d for term in terms for d in all_dims(term)))}
    for dim in order:
        if any(r.attrs[1] == dim for r in every_reduction(terms)):
            name = fresh_name(dim.name, used)
            used.add(name)
            terms = [_rename_bound(term, dim, Dim(name, dim.size)) for term in terms]
    return list(terms)


def _rename_bound(term: Term, dim: Dim, fresh: Dim) -> Term:
    mapping = {r: rename_dims(r, {dim: fresh}) for r in reduces(term) if r.attrs[1] == dim}
    return replace_from_above(term, mapping)


def renaming(one: Term, other: Term) -> dict[Dim, Dim] | None:
    """Other names for the dims of a term that make it the other one; None if no names do."""
    names: dict[Dim, Dim] = {}
    waiting, seen = [(one, other)], {(one, other)}
    while waiting:
        a, b = waiting.pop()
        if a.op != b.op or len(a.args) != len(b.args) or len(a.attrs) != len(b.attrs):
            return None
        for x, y in zip(a.attrs, b.attrs, strict=True):
            if isinstance(x, Dim) and isinstance(y, Dim) and x.size == y.size:
                if names.setdefault(x, y) != y:
                    return None
            elif x != y or type(x) is not type(y):
                return None
        fresh = [pair for pair in zip(a.args, b.args, strict=True) if pair not in seen]
        seen.update(fresh)
        waiting += fresh
    return names if len({*names.values()}) == len(names) else None


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
