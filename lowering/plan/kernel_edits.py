"""Kernels with other terms in place of theirs: every term that the record of a kernel holds is changed alike.

Invariant: nothing but terms changes; grid, rows and loops stay. Example: `with_terms(kernel, change)` reads another
tensor where `change` gives a load of it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from ...egraph.terms.term import Term
from .records import Accumulator, BlockMap, Kernel, Limit, Loop, Range

Change = Callable[[Term], Term]


def with_terms(kernel: Kernel, change: Change) -> Kernel:
    """The kernel with `change` of each of its terms. What it stores in, and its inputs, stay."""
    return replace(
        kernel,
        loops=tuple(_loop(loop, change) for loop in kernel.loops),
        stores=tuple(replace(store, term=change(store.term)) for store in kernel.stores),
        exact=frozenset(map(change, kernel.exact)),
    )


def _loop(loop: Loop, change: Change) -> Loop:
    return replace(
        loop,
        accumulators=tuple(_accumulator(one, change) for one in loop.accumulators),
        guard=_optional(loop.guard, change),
        ranges=tuple(_range(one, change) for one in loop.ranges),
        map=_map(loop.map, change),
    )


def _accumulator(accumulator: Accumulator, change: Change) -> Accumulator:
    return replace(
        accumulator,
        gauge=_optional(accumulator.gauge, change),
        values=tuple(map(change, accumulator.values)),
        reductions=tuple(map(change, accumulator.reductions)),
    )


def _range(found: Range, change: Change) -> Range:
    limits = lambda bounds: tuple(Limit(change(limit.bound), limit.rising) for limit in bounds)
    return replace(found, uppers=limits(found.uppers), lowers=limits(found.lowers))


def _map(found: BlockMap | None, change: Change) -> BlockMap | None:
    return None if found is None else replace(found, guard=change(found.guard))


def _optional(term: Term | None, change: Change) -> Term | None:
    return None if term is None else change(term)
