"""Names of bound dims: reductions over equal ranges share one dim where their bodies then coincide; names for readers.

Renaming a bound dim never changes a value; a merge that is missed only misses a fusion. Called by translate.py.
"""

from __future__ import annotations

from collections.abc import Iterator

from .egraph.index import simplify_index
from .egraph.term import Dim, Term, all_dims, rename_dims, subterms
from .sizes import product

_OUTPUT_NAMES = ("e", "i", "h", "b")  # from the last axis forward
_BOUND_NAMES = ("j", "d", "c", "a", "f", "g", "l", "m", "n", "o", "p", "r", "s", "t", "u", "w", "x", "y", "z")


def merge_binders(root: Term) -> Term:
    """Renames bound dims to others of equal size, wherever loads or reductions become shared by it, to a fixpoint."""
    while (better := next(_merges(root), None)) is not None:
        root = better
    return root


def _merges(root: Term) -> Iterator[Term]:
    binders = _outermost_first(root)
    weight = _weight(root)
    for position, kept in enumerate(binders):
        for gone in binders[position + 1 :]:
            if product((kept.size,)) == product((gone.size,)) and not _captures(root, gone, kept):
                candidate = simplify_index(rename_dims(root, {gone: kept}))
                if _weight(candidate) < weight:
                    yield candidate


def _weight(root: Term) -> int:
    """How many different loads and reductions there are."""
    return sum(t.op in ("load", "reduce") for t in subterms(root))


def _outermost_first(root: Term) -> list[Dim]:
    """Bound dims in order of depth, then of first occurrence."""
    depth: dict[Dim, int] = {}
    level = {root: 0}
    for node in reversed(list(subterms(root))):
        for arg in node.args:
            level[arg] = max(level.get(arg, 0), level[node] + 1)
        if node.op == "reduce":
            dim = node.attrs[1]
            depth[dim] = min(depth.get(dim, level[node]), level[node])
    return sorted(depth, key=lambda d: (depth[d], d.name))


def _captures(root: Term, gone: Dim, kept: Dim) -> bool:
    """Renaming `gone` to `kept` would bind an occurrence that means another coordinate."""
    for node in subterms(root):
        if node.op != "reduce":
            continue
        body, dim = node.args[0], node.attrs[1]
        if dim == gone and kept in body.dims:
            return True
        if dim == kept and gone in body.dims:
            return True
    return False


def rename_for_reading(root: Term, order: tuple[Dim, ...]) -> tuple[Term, tuple[Dim, ...]]:
    """Unique short names: b, h, i, e for the output's axes, j for the outermost reduction, then d, c, ..."""
    names: dict[Dim, Dim] = {}
    taken: set[str] = set()

    def give(dim: Dim, choices) -> None:
        name = next(n for n in choices if n not in taken)
        taken.add(name)
        names[dim] = Dim(name, dim.size)

    for place, dim in enumerate(reversed(order)):
        give(dim, _OUTPUT_NAMES[place:] + tuple(f"b{k}" for k in range(2, len(order) + 2)))
    bound = [d for d in _outermost_first(root) if d not in names]
    spare = tuple(f"r{k}" for k in range(1, len(bound) + 1))
    for dim in bound:
        give(dim, _BOUND_NAMES + spare)
    assert set(all_dims(root)) <= set(names), "a dim that is neither bound nor of the output"
    return simplify_index(rename_dims(root, names)), tuple(names[d] for d in order)
