"""Names of dims: reductions over equal ranges share one dim where that makes loads or reductions equal; so do results.

Renaming a dim never changes a value; a merge that is missed only misses a fusion. Example: Σ_j x[j] and Σ_k x[k] are
one reduction when k becomes j.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import replace

from ..egraph.terms.index_simplify import simplify_index
from ..egraph.terms.sizes import product
from ..egraph.terms.term import Dim, Term
from ..egraph.terms.traversal import all_dims, rename_dims, subterms
from ..lowering.plan.records import Store

_OUTPUT_NAMES = ("e", "i", "h", "b")  # from the last axis forward
_BOUND_NAMES = ("j", "d", "c", "a", "f", "g", "l", "m", "n", "o", "p", "r", "s", "t", "u", "w", "x", "y", "z")


def named_alike(results: Sequence[Store]) -> list[Store]:
    """The results with one dim for one coordinate, under names for readers."""
    results = _with_shared_axes(results)
    terms = merge_binders([r.term for r in results])
    names = _names(terms, [r.order for r in results])
    return [
        replace(r, term=simplify_index(rename_dims(t, names)), order=tuple(names[d] for d in r.order))
        for r, t in zip(results, terms, strict=True)
    ]


def _with_shared_axes(results: Sequence[Store]) -> list[Store]:
    """Axes of later results take the dims of the first's where both read tensors at them alike."""
    first, *others = results
    return [first, *(_aligned(r, first) for r in others)]


def _aligned(result: Store, first: Store) -> Store:
    """Each axis takes the dim of the first result's with which it indexes tensors most often."""
    mapping: dict[Dim, Dim] = {}
    for (own, shared), _ in _shared_positions(result.term, first.term).most_common():
        of_results = own in result.order and shared in first.order
        if of_results and own not in mapping and shared not in mapping.values() and _same_size(own, shared):
            mapping[own] = shared
    return replace(result, term=rename_dims(result.term, mapping), order=tuple(mapping.get(d, d) for d in result.order))


def _shared_positions(term: Term, other: Term) -> Counter[tuple[Dim, Dim]]:
    """For pairs of dims, in how many pairs of loads of a tensor they index the same axis."""
    votes: Counter[tuple[Dim, Dim]] = Counter()
    others = [t for t in subterms(other) if t.op == "load"]
    for mine in (t for t in subterms(term) if t.op == "load"):
        for theirs in (t for t in others if t.attrs == mine.attrs):
            for a, b in zip(mine.args, theirs.args, strict=True):
                votes.update(set(_coordinates(a, b)))
    return votes


def _same_size(a: Dim, b: Dim) -> bool:
    return product((a.size,)) == product((b.size,))


def _coordinates(a: Term, b: Term) -> Iterator[tuple[Dim, Dim]]:
    """Pairs of dims at the same positions of two index terms."""
    if a.op == b.op == "iota":
        yield a.attrs[0], b.attrs[0]
    elif a.op == b.op and len(a.args) == len(b.args):
        for x, y in zip(a.args, b.args, strict=True):
            yield from _coordinates(x, y)


def merge_binders(terms: list[Term]) -> list[Term]:
    """Renames bound dims to others of equal size, wherever loads or reductions become shared by it, to a fixpoint."""
    while (better := next(_merges(terms), None)) is not None:
        terms = better
    return terms


def _merges(terms: list[Term]) -> Iterator[list[Term]]:
    binders = _outermost_first(terms)
    weight = _weight(terms)
    for position, kept in enumerate(binders):
        for renamed in binders[position + 1 :]:
            if _same_size(kept, renamed) and not _captures(terms, renamed, kept):
                candidate = [simplify_index(rename_dims(term, {renamed: kept})) for term in terms]
                if _weight(candidate) < weight:
                    yield candidate


def _nodes(terms: list[Term]) -> list[Term]:
    """Every distinct subterm of all terms, arguments first."""
    return list(dict.fromkeys(node for term in terms for node in subterms(term)))


def _weight(terms: list[Term]) -> int:
    """How many different loads and reductions there are."""
    return sum(t.op in ("load", "reduce") for t in _nodes(terms))


def _outermost_first(terms: list[Term]) -> list[Dim]:
    """Bound dims in order of depth, then of first occurrence."""
    depth: dict[Dim, int] = {}
    for term in terms:
        level = {term: 0}
        for node in reversed(list(subterms(term))):
            for arg in node.args:
                level[arg] = max(level.get(arg, 0), level[node] + 1)
            if node.op == "reduce":
                dim = node.attrs[1]
                depth[dim] = min(depth.get(dim, level[node]), level[node])
    return sorted(depth, key=depth.__getitem__)


def _captures(terms: list[Term], renamed: Dim, kept: Dim) -> bool:
    """Whether renaming `renamed` to `kept` would bind an occurrence of another coordinate."""
    for node in _nodes(terms):
        if node.op != "reduce":
            continue
        body, dim = node.args[0], node.attrs[1]
        if dim == renamed and kept in body.dims:
            return True
        if dim == kept and renamed in body.dims:
            return True
    return False


def _names(terms: list[Term], orders: list[tuple[Dim, ...]]) -> dict[Dim, Dim]:
    """Unique short names: b, h, i, e for the first result's axes, j for the outermost reduction, then d, c, ..."""
    names: dict[Dim, Dim] = {}
    taken: set[str] = set()

    def give(dim: Dim, choices) -> None:
        name = next(n for n in choices if n not in taken)
        taken.add(name)
        names[dim] = Dim(name, dim.size)

    for place, dim in enumerate(reversed(orders[0])):
        give(dim, _OUTPUT_NAMES[place:] + tuple(f"b{k}" for k in range(2, len(orders[0]) + 2)))
    rest = dict.fromkeys([*_outermost_first(terms), *(d for order in orders for d in order)])
    bound = [d for d in rest if d not in names]
    spare = tuple(f"r{k}" for k in range(1, len(bound) + 1))
    for dim in bound:
        give(dim, _BOUND_NAMES + spare)
    known = {d for term in terms for d in all_dims(term)}
    assert known <= set(names), "a dim that is neither bound nor of a result"
    return names
