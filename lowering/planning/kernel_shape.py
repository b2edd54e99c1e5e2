"""The shape of a kernel: which dim is tiled (the rows), which dims a tile holds whole, which are the grid.

Invariant: each dim of a store is in exactly one of the three. The rows are what `lowering/cost` has chosen for results
of these dims, or else the first guess, from which it starts. Example: for out[b, i, e] = Σ_j p[b, i, j] · v[b, j, e]
the rows are i, a tile holds e, and b is the grid.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import lru_cache
from math import prod

from ...egraph.forks import cached_property
from ...egraph.terms.term import Dim, Term
from ...egraph.terms.traversal import tensors
from ..analysis.dim_roles import (
    batch_dims,
    beside_long,
    compared_dims,
    cube_work,
    is_long,
    is_product,
    loop_reductions,
    paired_dims,
    private_dims,
    repeated_dims,
    size_key,
    state_dims,
    static_size,
)
from ..analysis.nested_sums import body_of, products_of_pairs, reductions, sides_of
from ..plan.plan_choice import ChosenRows
from ..plan.records import Store
from ..plan.thresholds import MAX_RESIDENT_ELEMENTS_OF_A_ROW, MIN_ROWS_OF_A_PRODUCT
from .planning_state import KernelShape, Planning, dims_of_results


def choose_kernel_shape(planning: Planning) -> Planning:
    """A pass: chooses the shape of each store, as if it had a kernel of its own."""
    shapes = {store.output.name: kernel_shape((store,), planning) for store in planning.stores}
    return replace(planning, shapes=shapes)


def with_new_shape(planning: Planning) -> Planning:
    """The focused store's shape, chosen again: a cut has changed its term."""
    shape = kernel_shape((planning.focused,), planning)
    return replace(planning, shapes={**planning.shapes, planning.focus: shape})


def kernel_shape(stores: Sequence[Store], planning: Planning) -> KernelShape:
    """The shape of one kernel with all of these stores."""
    return _shape(tuple(stores), planning.held_limit, planning.choice.rows)


@lru_cache(512)
def _shape(stores: tuple[Store, ...], held_limit: int, chosen: ChosenRows) -> KernelShape:
    facts = DimFacts(stores, held_limit)
    dims = dims_of_results(stores)
    found = next((rows for results, rows in chosen if results == dims), None)
    rows, reason = _first_rows(facts) if found is None else (found, "this takes the least estimated time")
    held = tuple(d for d in facts.held if d != rows)
    return KernelShape(rows, held, tuple(d for d in facts.order if d != rows and d not in held), reason)


class DimFacts:
    """What the choice of a kernel's shape asks about the dims of its stores."""

    def __init__(self, stores: Sequence[Store], held_limit: int):
        self.terms: list[Term] = [store.term for store in stores]
        self.orders: list[tuple[Dim, ...]] = [store.order for store in stores]
        self.order: tuple[Dim, ...] = tuple(dict.fromkeys(d for order in self.orders for d in order))
        self.held_limit = held_limit

    @cached_property
    def loops(self) -> list[Term]:
        """Reductions that need a loop. A count reads nothing; beside other loops it costs no tile anything."""
        found = loop_reductions(self.terms, self.held_limit)
        return [r for r in found if tensors(r)] or found

    @cached_property
    def private(self) -> set[Dim]:
        """Dims that only values carry."""
        return private_dims(self.terms)

    @cached_property
    def batch(self) -> set[Dim]:
        """Dims over which some product of matrices repeats. In a tile of such rows it is no product of matrices."""
        return batch_dims(self.terms)

    @cached_property
    def state(self) -> set[Dim]:
        """Dims of the states of loops."""
        return state_dims(self.terms)

    @cached_property
    def outside(self) -> list[Dim]:
        """Dims that no loop depends on and that a tile cannot hold whole."""
        free = [d for d in self.order if self.loops and not any(d in r.dims for r in self.loops)]
        return [d for d in free if is_long(d, self.held_limit if d in self.private else MIN_ROWS_OF_A_PRODUCT - 1)]

    @cached_property
    def carried(self) -> list[Dim]:
        """Dims for which loops have no work to repeat: no loop depends on them, or else every loop does."""
        return self.outside or [d for d in self.order if all(d in r.dims for r in self.loops)]

    @cached_property
    def multiplied(self) -> set[Dim]:
        """Sides of products inside of other sums: as rows they leave these products to matrix units."""
        outer = reductions(self.terms)
        return {d for r in outer for product in products_of_pairs(body_of(r)) for d in sides_of(product)}

    @cached_property
    def held(self) -> list[Dim]:
        """Dims that a tile holds whole: short dims of values, and dims for which products would be done again."""
        held = _fitting(self._short_values(), self.orders, self.held_limit)
        repeated = repeated_dims(self.terms, self.held_limit) | compared_dims(self.loops)
        again = [d for d in self.order if d in repeated and not is_long(d, self.held_limit) and d.size != 1]
        if prod(map(static_size, {*again, *held})) > MAX_RESIDENT_ELEMENTS_OF_A_ROW:
            return held
        return [d for d in self.order if d in again or d in held]

    def _short_values(self) -> list[Dim]:
        """Short dims that only values carry; of a kernel without loops the last one that is no side of a product, if
        holding it saves something.
        """
        most = 2 * self.held_limit if self.loops else self.held_limit
        values = [d for d in self.order if d in self.private and d not in self.outside]
        short = [d for d in values if not is_long(d, most) and d.size != 1]
        if self.loops:
            return sorted(short, key=lambda d: d not in self.multiplied)  # the last ones are held first
        others = paired_dims(self.terms) | beside_long(self.terms, most)
        return [d for d in short if d not in others and self._saves(d)][-1:]

    def _saves(self, dim: Dim) -> bool:
        """Whether a kernel without loops saves something by holding the dim, instead of having it on the grid.

        It does where the dim is the last axis of a result, where a sum lacks it and would be done again, and where a
        sum is a product of matrices. Example: a batch of heads that all tensors have saves nothing.
        """
        is_last = any(order and order[-1] == dim for order in self.orders)
        return is_last or any(dim not in r.dims or is_product(r) for r in reductions(self.terms))


def _fitting(dims: list[Dim], orders: list[tuple[Dim, ...]], limit: int) -> list[Dim]:
    """The last of the dims such that in no store the sizes of its own multiply to more than the limit.

    One alone may have twice as many elements. The alternative is to put halves of it on the grid, and then the kernel
    does all of its other work twice.
    """
    fitting: list[Dim] = []
    for dim in reversed(dims):
        together = max(prod(static_size(d) for d in (dim, *fitting) if d in order) for order in orders if dim in order)
        if together <= limit or together == dim.size:
            fitting.insert(0, dim)
    return fitting


# The rows


def _first_rows(facts: DimFacts) -> tuple[Dim | None, str]:
    """The rows where none were chosen by cost, and the reason.

    The rows are the dim that suits best. Among dims that suit alike, a dim of the scores comes first, then the longest,
    then the innermost; among batches of products, first the one that leaves the least work to a tile. A dim of size 1
    can be the rows if nothing suits better, so that a decode step has the shape of a prefill.
    """
    is_of_scores = lambda d: d in facts.state or d in facts.multiplied
    key = lambda d: (_suits(facts, d), -_work(facts, d), is_of_scores(d), size_key(d), facts.order.index(d))
    rows = max((d for d in facts.order if _suits(facts, d)), key=key, default=None)
    return rows, SUITABLE[_suits(facts, rows) if rows is not None else 0]


# How well a dim suits as rows, from the worst to the best. Completes the sentence "the rows are i, ...".
SUITABLE = (
    "no dim of the results is left for them",
    "each other dim is a batch of a product as well",
    "each other dim is a batch of a product; loops that lack these rows are kernels of their own",
    "they are no batch of a product, though a tile could hold them whole",
    "no loop is done again for a tile of them, and they are no batch of a product",
)


def _suits(facts: DimFacts, dim: Dim) -> int:
    """The place in SUITABLE. With a batch as rows, a product is none of matrices."""
    if dim in facts.carried and dim not in facts.batch:
        return 4 if dim not in facts.held and dim.size != 1 else 3
    if dim in facts.held:
        return 0
    if dim not in facts.batch and dim.size != 1:
        return 2
    return 1 if dim in facts.carried else 0


def _work(facts: DimFacts, dim: Dim) -> float:
    """What a tile computes for each row and column if the rows are a batch of products; 0 where they need not be."""
    if _suits(facts, dim) != 1:
        return 0.0
    apart = {*facts.carried, *(r.attrs[1] for r in facts.loops)}
    return cube_work(facts.terms, dim, apart, MIN_ROWS_OF_A_PRODUCT)
