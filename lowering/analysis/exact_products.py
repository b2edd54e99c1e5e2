"""Which products must not round what they compute: those that a float32 result shows with no rounding in between.

A product with a half-precision matrix rounds computed factors to its type, which makes it fast. That is of the size of
the result's own rounding where the result is stored in half precision, and of the program's where that rounds the
factors or their product itself; elsewhere it would be all the error there is. A factor that is a sum which the program
never had, as of products done in another order, was rounded nowhere. Decided once, by lowering/planning/planner.py, for
emitters.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

from ...egraph.terms.term import Term
from ...egraph.terms.traversal import reduces
from ..plan.dtypes import HALVES
from ..plan.records import Kernel, Store
from .dim_roles import sum_factors, two_sides


def with_exact(kernels: Sequence[Kernel], stores: Sequence[Store], asked: Sequence[Term]) -> tuple[Kernel, ...]:
    """The kernels with their `exact` reductions. asked[n]: what stores[n] computes, as the program has it."""
    pairs = zip(stores, asked, strict=True)
    had = {_signature(n) for term in asked for n in reduces(term)}
    shown = {s.output for s, term in pairs if s.output.dtype not in HALVES and any(map(has_computed, unrounded(term)))}
    found: list[Kernel] = []
    for kernel in reversed(kernels):
        nodes = {n for store in kernel.stores if store.output in shown for n in unrounded(store.term)}
        shown |= {n.attrs[0] for n in nodes if n.op == "load"}
        new = {n for store in kernel.stores for n in reduces(store.term) if _has_new_factor(n, had)}
        found.append(replace(kernel, exact=frozenset(filter(has_computed, nodes | new))))
    return tuple(reversed(found))


def _has_new_factor(node: Term, had: set[tuple]) -> bool:
    parts = sum_factors(node) if node.attrs[0] == "sum" else []
    return any(p.op == "reduce" and p.attrs[0] == "sum" and _signature(p) not in had for p in parts)


def _signature(node: Term) -> tuple:
    """A sum by the sizes of its dims and the tensors it multiplies: the same in every form that sums in one order."""
    parts = [native(part) or part for part in sum_factors(node)]
    tensors = frozenset(part.attrs[0].name for part in parts if part.op == "load")
    return node.attrs[0], str(node.attrs[1].size), tuple(sorted(str(d.size) for d in node.dims)), tensors


def unrounded(term: Term) -> Iterator[Term]:
    """What the term depends on with no rounding to half precision in between."""
    seen, waiting = set(), [term]
    while waiting:
        node = waiting.pop()
        if node not in seen and node.dtype not in HALVES:
            seen.add(node)
            waiting += node.args
            yield node


def has_computed(node: Term) -> bool:
    """Whether the node is the sum of a product of two matrices, one of them computed and not rounded to half."""
    if node.op != "reduce" or node.attrs[0] not in ("sum", "rescaled"):
        return False
    dim = node.attrs[1]
    weights = [node.args[0].args[0]] if node.args[0].op == "scaled" else []
    parts = [*weights, *(p for p in sum_factors(node)[len(weights) :] if dim in p.dims)]
    sides = [[parts[k] for k in side] for side in two_sides([p.dims for p in parts], dim)]
    left, right = (frozenset().union(*(p.dims for p in side)) for side in sides)
    matrices = not left <= right and not right <= left
    return matrices and any(side[0] in weights or len(side) > 1 or native(side[0]) is None for side in sides)


def native(part) -> Term | None:
    """The half-precision term that a factor is the exact float32 image of."""
    if not isinstance(part, Term):
        return None
    if part.dtype in HALVES:
        return part
    if part.op == "cast" and part.dtype == "float32" and part.args[0].dtype in HALVES:
        return part.args[0]
    return None
