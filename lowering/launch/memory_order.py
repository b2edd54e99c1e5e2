"""A plan for tensors as they lie in memory: what is copied first, and in which order the axes of the rest are named.

Invariant: the plan reads the same elements, and its results have their axes as the original plan names them. Example:
three tensors that begin at an odd element have no tensor maps; on a Hopper GPU the kernel reads copies of them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache, reduce

import torch

from ..plan.queries import are_distinct
from ..plan.records import NotPlannable, Plan
from ..readback.check_plan import differs_in_order
from .affine_views import AffineView, with_views
from .axis_order import ReorderedPlan, in_memory_order
from .relayout import AxesForMaps, Copy, copies_of, copying, with_copies

Run = Callable[[Sequence[torch.Tensor]], list[torch.Tensor]]
Inputs = Mapping[str, torch.Tensor]  # by name
Strides = Mapping[str, tuple[int, ...]]  # of outputs, by name
ByMaps = Callable[[Plan, Inputs], AxesForMaps]  # what `copies_of` asks of a plan and its tensors


@dataclass(frozen=True)
class PlanInMemoryOrder:
    """A plan whose axes are in the order of memory. It reads tensors of these names: the ones at `places` among those
    that are given, then views of them; `copies` are made of some of these first."""

    reordered: ReorderedPlan
    names: tuple[str, ...]
    places: tuple[int, ...]
    views: tuple[AffineView, ...]
    copies: tuple[Copy, ...]
    strides: Strides | None  # of outputs, as the reordered plan names their axes

    @property
    def plan(self) -> Plan:
        return self.reordered.plan

    @property
    def notes(self) -> tuple[str, ...]:
        """A sentence for each input that is copied first."""
        reads = [*self.names[: len(self.places)], *(str(view.read) for view in self.views)]
        return tuple(f"{reads[copy.place]} is copied to be read in runs: {copy}" for copy in self.copies)

    def given(self, tensors: Inputs) -> list[torch.Tensor]:
        """The tensors as the plan has them, copied where they are."""
        return self._turned(with_copies(self._viewed([*tensors.values()]), self.copies))

    def running(self, tensors: Inputs, bind: Callable[[Sequence[torch.Tensor]], Run]) -> Run:
        """A function that runs the plan on tensors like these. bind: gives one for tensors whose axes are in its order.
        """
        given = self._viewed([*tensors.values()])
        copied = copying(given, self.copies)
        run = bind(self._turned(copied(given)))
        # A launch that is prepared takes the address of a tensor and nothing else: no axes are turned for it.
        steps: list[Callable] = [self._viewed] if self.views else []
        steps += [copied] if self.copies else []
        steps += [self._turned] if self.reordered.reads_maps else []
        return reduce(lambda behind, step: lambda given: behind(step(given)), reversed(steps), run)

    def _viewed(self, tensors: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        return [*(tensors[place] for place in self.places), *(view.of(tensors[view.place]) for view in self.views)]

    def _turned(self, tensors: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        return [self.reordered.turned(name, tensor) for name, tensor in zip(self.names, tensors, strict=True)]


def in_order(
    plan: Plan, tensors: Inputs, sizes: Mapping[str, int], strides: Strides | None, by_maps: ByMaps
) -> PlanInMemoryOrder:
    """The plan for tensors like these. strides: wanted of outputs. Raises NotPlannable."""
    wanted = strides if strides and are_distinct(plan) else {}
    plan, read, views, axes = _with_views(plan, tensors, sizes, by_maps)
    names = tuple(read)
    copies = copies_of(plan, names, [*read.values()], sizes, axes)
    lie = {name: tensor.stride() for name, tensor in read.items()}
    lie |= {names[copy.place]: copy.strides(read[names[copy.place]].shape) for copy in copies}
    found = in_memory_order(plan, {**wanted, **lie})
    if found.orders and (different := _different(found.plan, plan, tuple(found.orders.items()))):
        raise NotPlannable(different)
    places = tuple(place for place, name in enumerate(tensors) if name in read)
    return PlanInMemoryOrder(found, names, places, views, copies, found.strides(wanted) or None)


def _with_views(
    plan: Plan, tensors: Inputs, sizes: Mapping[str, int], by_maps: ByMaps
) -> tuple[Plan, Inputs, tuple[AffineView, ...], AxesForMaps]:
    """(the plan, the tensors that it reads, views among these, what it reads by maps): with views where one more kernel
    then reads by tensor maps, if copies are made."""
    axes = by_maps(plan, tensors)
    as_given = plan, tensors, (), axes
    if all(_reads_by_maps(axes.get(kernel.name)) for kernel in plan.kernels):
        return as_given
    viewed, views = with_views(plan, tuple(tensors), sizes)
    left = {t.name for t in viewed.inputs}
    given = [*tensors.values()]
    read = {name: tensor for name, tensor in tensors.items() if name in left}
    read |= {view.name: view.of(given[view.place]) for view in views}
    found = by_maps(viewed, read) if views else {}
    more = [name for name, each in found.items() if each and not _reads_by_maps(axes.get(name))]
    return (viewed, read, views, found) if more else as_given


def _reads_by_maps(axes: Mapping[str, int | None] | None) -> bool:
    return bool(axes) and not any(axis is not None for axis in axes.values())


@lru_cache(maxsize=256)
def _different(reordered: Plan, plan: Plan, orders: tuple[tuple[str, tuple[int, ...]], ...]) -> str:
    """Why the reordered plan is not the plan, or empty. Memoised: each new size of a call prepares the same two."""
    return differs_in_order(reordered, plan, dict(orders))
