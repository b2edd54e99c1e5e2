"""Runs a plan in stages: its kernels by an executor, its large plain products by torch, for parts of one dim.

Nothing is known of executors but what prepares a plan for tensors. Invariant: stages compute the plan's results in its
order. Example: the backward of a layer with its cross entropy runs, for each part of the words, a product that gives
scores, a kernel that gives their gradient, and a product for the gradient of each factor.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import groupby
from typing import Any

import torch

from ...egraph.terms.sizes import resolve
from ...egraph.terms.term import Tensor
from ..plan.records import Kernel, Plan
from .dim_parts import START, DimParts, name_of_part, part_of
from .plain_products import PlainProduct, plain_product
from .staged_plan import Staged

Values = dict[str, torch.Tensor]
Strides = Mapping[str, Sequence[int]]  # of outputs, by name
Prepare = Callable[[Plan, Mapping[str, torch.Tensor], Strides], Any]  # makes a stage's kernels ready: a PreparedPlan
ALIGNED = 16  # bytes: a multiple of them is between rows of what is stored between stages; else products take longer


class RunStage:
    """Some kernels that follow one another: those of an executor, or one product. ready: a PreparedPlan.

    results: names of what is a result of the whole plan, too.
    """

    def __init__(self, kernels: tuple[Kernel, ...], results: Collection[str]):
        made = tuple(s.output for k in kernels for s in k.stores)
        inputs = dict.fromkeys(t for k in kernels for t in k.inputs if t not in made)
        self.plan = Plan(kernels, tuple(inputs), made)
        self.strides = {t.name: _aligned(t) for t in made if t.name not in results}
        self.product: PlainProduct | None = plain_product(kernels[0])
        self.ready: Any = None

    def prepare(self, values: Values, targets: Values, prepare: Prepare) -> None:
        """Makes it ready for tensors like these, and adds tensors like its results, as `run` does."""
        if self.product is None:
            self.ready = prepare(self.plan, {t.name: values[t.name] for t in self.plan.inputs}, self.strides)
            if not getattr(self.ready, "has_strides", True):  # nothing is ready where kernels are only compiled ahead
                self.strides = {}
        for output in self.plan.outputs:
            lies_in = None if self.product is None else targets.get(output.name)
            values[output.name] = self._new(output, values) if lies_in is None else lies_in

    def _new(self, output: Tensor, values: Values) -> torch.Tensor:
        return _new(output, _device(values), strides=self.strides.get(output.name))

    def run(self, values: Values, targets: Values, adds: bool = False) -> None:
        """Adds its results to the values. targets: tensors that are to hold them. adds: to sums among these."""
        if self.product is not None:
            output = self.product.store.output
            if output.name not in targets:
                targets[output.name] = self._new(output, values)
            values[output.name] = targets[output.name]
            self.product.run(values, values[output.name], adds)
            return
        results = self.ready.run([values[t.name] for t in self.plan.inputs])
        for output, result in zip(self.plan.outputs, results, strict=True):
            if output.name in targets:
                targets[output.name].copy_(result)
            values[output.name] = result


def _stages(kernels: Sequence[Kernel], results: Collection[str]) -> list[RunStage]:
    """Each product alone, and what is between products together."""
    found: list[RunStage] = []
    for is_product, group in groupby(kernels, lambda kernel: plain_product(kernel) is not None):
        some = tuple(group)
        found += [RunStage((kernel,), results) for kernel in some] if is_product else [RunStage(some, results)]
    return found


def _device(values: Values) -> torch.device:
    return next(iter(values.values())).device


def _aligned(tensor: Tensor) -> tuple[int, ...]:
    """Strides of a new tensor whose rows begin at multiples of ALIGNED bytes."""
    *outer, columns = [resolve(size, {}) for size in tensor.shape] or [1]
    step = ALIGNED // getattr(torch, tensor.dtype).itemsize
    strides = [1, *([-(-columns // step) * step] if outer else [])]
    for size in outer[:0:-1]:
        strides.append(strides[-1] * size)
    return tuple(strides[::-1]) if tensor.shape else ()


def _new(
    tensor: Tensor, device: torch.device, dtype: torch.dtype | None = None, strides: Sequence[int] | None = None
) -> torch.Tensor:
    shape, kind = [resolve(size, {}) for size in tensor.shape], dtype or getattr(torch, tensor.dtype)
    if strides is not None:
        return torch.empty_strided(shape, strides, dtype=kind, device=device)
    return torch.empty(shape, dtype=kind, device=device)


@dataclass
class PartsRun:
    """The stages of each part of a dim. by_size: those of a part of so many elements. results: what is read of them."""

    parts: DimParts
    starts: range
    results: tuple[Tensor, ...]
    by_size: dict[int, list[RunStage]] = field(default_factory=dict)
    coordinates: dict[int, torch.Tensor] = field(default_factory=dict)  # what START is of each part

    def size(self, start: int) -> int:
        """Elements of the part that begins there."""
        return min(self.starts.step, self.parts.size - start)

    def prepare(self, values: Values, prepare: Prepare) -> None:
        """Makes it ready for tensors like these, and adds tensors like its results."""
        device = _device(values)
        self.coordinates = {n: torch.tensor(n, dtype=torch.int64, device=device) for n in self.starts}
        whole = self._whole(device)
        for size, start in {self.size(n): n for n in self.starts}.items():
            made = [part_of(kernel, self.parts, size) for kernel in self.parts.parts]
            self.by_size[size] = _stages(made, [t.name for t in self.results])
            local, targets = self._local(values, start, size), self._narrowed(whole, start, size)
            for stage in self.by_size[size]:
                stage.prepare(local, targets, prepare)
        values |= {t.name: _new(t, device) for t in self.results}

    def run(self, values: Values) -> None:
        """Adds its results to the values."""
        summed, whole = self.parts.summed, self._whole(_device(values))
        for start in self.starts:
            size = self.size(start)
            local, targets = self._local(values, start, size), self._narrowed(whole, start, size)
            for stage in self.by_size[size]:
                stage.run(local, targets, start > 0 and stage.plan.output.name in summed)
        values |= {t.name: whole[t.name].to(getattr(torch, t.dtype)) for t in self.results}

    def _whole(self, device: torch.device) -> Values:
        """Tensors for what is read of all parts, with sums in float32."""
        kind = lambda t: torch.float32 if t.name in self.parts.summed else None
        return {t.name: _new(t, device, kind(t)) for t in self.results}

    def _local(self, values: Values, start: int, size: int) -> Values:
        cut = {name_of_part(t, n): values[t].narrow(n, start, size) for t, n in self.parts.inputs}
        return {**self._narrowed(values, start, size), **cut, START.name: self.coordinates[start]}

    def _narrowed(self, values: Values, start: int, size: int) -> Values:
        """The tensors, those that are cut from a start on."""
        axes = self.parts.axes
        return {name: x.narrow(axes[name], start, size) if name in axes else x for name, x in values.items()}


class StagedRun:
    """The stages of a plan, ready for tensors like those it was made for. Call it with tensors by name.

    It raises what `prepare` raises.
    """

    def __init__(self, what: Staged, tensors: Mapping[str, torch.Tensor], prepare: Prepare):
        self.what, parts = what, what.parts
        results = [t.name for t in what.plan.outputs]
        self.before = _stages(what.plan.kernels if parts is None else parts.before, results)
        self.after = _stages(() if parts is None else parts.after, results)
        self.parts: PartsRun | None = None
        if parts is not None:
            read = {*what.plan.outputs, *(t for kernel in parts.after for t in kernel.inputs)}
            made = (s.output for kernel in parts.parts for s in kernel.stores)
            self.parts = PartsRun(parts, range(0, parts.size, what.count), tuple(t for t in made if t in read))
        values = dict(tensors)
        for stage in self.before:
            stage.prepare(values, {}, prepare)
        if self.parts is not None:
            self.parts.prepare(values, prepare)
        for stage in self.after:
            stage.prepare(values, {}, prepare)

    @property
    def prepared_plans(self) -> list[Any]:
        """What an executor has prepared."""
        inside = [] if self.parts is None else [stage for some in self.parts.by_size.values() for stage in some]
        return [stage.ready for stage in (*self.before, *inside, *self.after) if stage.product is None]

    def __call__(self, tensors: Mapping[str, torch.Tensor]) -> list[torch.Tensor]:
        """The plan's results."""
        values = dict(tensors)
        for stage in self.before:
            stage.run(values, {})
        if self.parts is not None:
            self.parts.run(values)
        for stage in self.after:
            stage.run(values, {})
        return [values[target.name] for target in self.what.plan.outputs]
