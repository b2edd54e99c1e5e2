"""Questions about one kernel of a plan: its terms, how far it reads along an axis, the names of its block maps.

They look at records only. Example: `roots(kernel)` gives the terms of stores, guards and accumulators.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from ...egraph.terms.affine import affine
from ...egraph.terms.term import Dim, Tensor, Term
from ...egraph.terms.traversal import subterms, tensors
from .records import Kernel, Loop, NotPlannable, Plan, Store


def roots(kernel: Kernel) -> list[Term]:
    """Every term that the kernel evaluates as it stands."""
    found = [store.term for store in kernel.stores]
    for loop in kernel.loops:
        found += [loop.guard] if loop.guard is not None else []
        for state in loop.accumulators:
            found += [*([state.gauge] if state.gauge is not None else []), *state.values]
    return found


def read_by(stores: Iterable[Store]) -> tuple[Tensor, ...]:
    """The tensors that stores read, each once."""
    return tuple(dict.fromkeys(t for store in stores for t in tensors(store.term)))


def nodes(kernel: Kernel, terms: Iterable[Term] | None = None) -> set[Term]:
    """Every node of these terms, or of some of them, but sums over dims around a loop: accumulators add these up."""
    around = kernel.around
    found = {node for root in (roots(kernel) if terms is None else terms) for node in subterms(root)}
    return {n for n in found if n.op != "reduce" or n.attrs[1] not in around} if around else found


def states_of(kernel: Kernel) -> set[Term]:
    """The reductions that the kernel's loops compute."""
    return {r for loop in kernel.loops for a in loop.accumulators for r in a.reductions}


def carried_dims(kernel: Kernel) -> list[frozenset[Dim]]:
    """For each state, the dims of its accumulator that a tile holds for each row and column, as those of values."""
    placed = {*kernel.grid, *kernel.tiled, *kernel.around, *(loop.dim for loop in kernel.loops)}
    return [r.dims - placed for r in states_of(kernel)]


def are_distinct(plan: Plan) -> bool:
    """Whether each result is a tensor of its own; else one that is stored is two results."""
    return len({output.name for output in plan.outputs}) == len(plan.outputs)


def reach(kernel: Kernel) -> dict[tuple[str, int], int]:
    """(tensor, axis) indexed by a tile's coordinates: the largest step between neighbours, in elements of the axis."""
    single = {*kernel.grid, *kernel.around}  # dims of which a tile has one coordinate
    found = {(name, axis): 1 for name, axis, d in _stored_axes(kernel) if d not in single}
    for node in {n for root in roots(kernel) for n in subterms(root) if n.op == "load"}:
        for axis, index in enumerate(node.args):
            steps = [abs(c) for a, c in affine(index)[0].items() if a.op == "iota" and a.attrs[0] not in single]
            if steps:
                key = (node.attrs[0].name, axis)
                found[key] = max(found.get(key, 0), *steps)
    return found


def _stored_axes(kernel: Kernel) -> list[tuple[str, int, Dim]]:
    """(tensor, axis, dim) of what stores write at dims."""
    stores = (store for store in kernel.stores if not store.places)
    return [(store.output.name, axis, d) for store in stores for axis, d in enumerate(store.order)]


@dataclass(frozen=True)
class StoredDiagonal:
    """Where a store adds elements: at the dims `points`, and last at column - row + constant + multiples of sizes."""

    points: tuple[Dim, ...]
    rows: Dim
    columns: Dim
    constant: int
    sizes: Mapping[Term, int]


def diagonal(store: Store) -> StoredDiagonal:
    """The places of a store that adds its elements. Raises NotPlannable for places that are no diagonals."""
    *points, last = store.places
    coefficients, constant = affine(last)
    signs = {c: atom.attrs[0] for atom, c in coefficients.items() if atom.op == "iota"}
    sizes = {atom: c for atom, c in coefficients.items() if atom.op == "size"}
    if {*signs} != {1, -1} or len(sizes) + 2 != len(coefficients) or any(index.op != "iota" for index in points):
        raise NotPlannable(f"elements are added at {', '.join(map(str, store.places))}, which are no diagonals")
    return StoredDiagonal(tuple(index.attrs[0] for index in points), signs[-1], signs[1], constant, sizes)


def map_name(kernel: Kernel, loop: Loop) -> str:
    """What a loop's block map is called among the tensors of a launch; loops with one guard share theirs."""
    records = list(dict.fromkeys(one.map for one in kernel.loops if one.map is not None and one.dim == loop.dim))
    number = records.index(loop.map) if loop.map in records else 0
    return f"{kernel.name} {loop.dim} map{number or ''}"
