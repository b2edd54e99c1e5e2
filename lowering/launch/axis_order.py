"""A plan whose tensors have their axes in the order of memory, with the contiguous one last.

Tensor maps, and tiles that are read in runs, ask for that. Nothing is copied: only the order in which axes are named
changes. Invariant: the same elements are read and written. Example: the transpose k.mT of contiguous keys is an input
[b, h, d, j]; in the plan that runs it is [b, h, j, d].
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import torch

from ...egraph.terms.ops import load, make
from ...egraph.terms.term import Tensor, Term
from ...egraph.terms.traversal import rebuild, tensors
from ..plan.kernel_edits import with_terms
from ..plan.records import Kernel, Plan, Store

Axes = tuple[int, ...]
NO_ORDERS: Mapping[str, Axes] = {}


@dataclass(frozen=True)
class ReorderedPlan:
    """The plan, and by name of a tensor the order in which its axes are named there."""

    plan: Plan
    orders: Mapping[str, Axes]

    @property
    def reads_maps(self) -> bool:
        """Whether a block map, which is built in a call, reads a tensor whose axes have another order."""
        maps = (loop.map for kernel in self.plan.kernels for loop in kernel.loops)
        return any(t.name in self.orders for found in maps if found is not None for t in tensors(found.guard))

    def turned(self, name: str, tensor: torch.Tensor) -> torch.Tensor:
        """The tensor as the plan has it."""
        return tensor.permute(self.orders[name]) if name in self.orders else tensor

    def strides(self, strides: Mapping[str, Axes]) -> dict[str, Axes]:
        """Strides of results as the plan has them."""
        at = lambda name, steps: tuple(steps[axis] for axis in self.orders[name])
        return {name: at(name, steps) if name in self.orders else tuple(steps) for name, steps in strides.items()}


def turned_back(of_axes: Sequence[int], order: Axes | None) -> Sequence[int]:
    """Numbers for each axis of a reordered tensor, such as sizes or strides, in the order of the original axes."""
    return of_axes if order is None else [of_axes[order.index(axis)] for axis in range(len(order))]


def in_memory_order(plan: Plan, strides: Mapping[str, Sequence[int]]) -> ReorderedPlan:
    """The plan for tensors with these strides by name. One whose last axis is contiguous, or none, stays as it is."""
    stored = {s.output.name: s.output for kernel in plan.kernels for s in kernel.stores}
    known = {t.name: t for t in (*plan.inputs, *plan.outputs)}
    whole = {name: t for name, t in known.items() if len(stored.get(name, t).shape) == len(t.shape)}
    orders = {n: o for n in whole if (o := order_of(strides.get(n, ()))) is not None}
    if not orders:
        return ReorderedPlan(plan, {})
    change = _Change(orders)
    return ReorderedPlan(
        replace(
            plan,
            kernels=tuple(map(change.kernel, plan.kernels)),
            inputs=tuple(map(change.tensor, plan.inputs)),
            outputs=tuple(map(change.tensor, plan.outputs)),
        ),
        orders,
    )


def order_of(strides: Sequence[int]) -> Axes | None:
    """The axes by falling stride; None where the last is contiguous as it is, and where none is."""
    if len(strides) < 2 or strides[-1] == 1 or 1 not in strides or min(strides) < 1:
        return None
    return tuple(sorted(range(len(strides)), key=lambda axis: -strides[axis]))


def turned_load(node: Term, order: Axes) -> Term:
    """The load of a tensor whose axes are in another order."""
    tensor: Tensor = node.attrs[0]
    return load(_turned(tensor, order), *(node.args[axis] for axis in order))


def _turned(tensor: Tensor, order: Axes) -> Tensor:
    return replace(tensor, shape=tuple(tensor.shape[axis] for axis in order))


class _Change:
    """Other orders of axes in the records of a plan."""

    def __init__(self, orders: Mapping[str, Axes]):
        self.orders = orders

    def tensor(self, tensor: Tensor) -> Tensor:
        if tensor.name not in self.orders:
            return tensor
        return _turned(tensor, self.orders[tensor.name])

    def term(self, term: Term) -> Term:
        def change(node: Term, args: tuple[Term, ...]) -> Term:
            if node.op == "load" and node.attrs[0].name in self.orders:
                return turned_load(make("load", args, node.attrs), self.orders[node.attrs[0].name])
            return node if args == node.args else make(node.op, args, node.attrs)

        return rebuild(term, change)

    def kernel(self, kernel: Kernel) -> Kernel:
        changed = with_terms(kernel, self.term)
        return replace(
            changed, stores=tuple(map(self.store, changed.stores)), inputs=tuple(map(self.tensor, kernel.inputs))
        )

    def store(self, store: Store) -> Store:
        """A store, whose term is changed already, with its axes in the other order."""
        order = self.orders.get(store.output.name)
        dims = store.order if order is None else tuple(store.order[axis] for axis in order)
        return replace(store, output=self.tensor(store.output), order=dims)
