"""Runs a plan in stages: its kernels by an executor, its large plain products by torch, for parts of one dim.

Nothing is known of executors but what prepares a plan for tensors. Invariant: stages compute the plan's results in its
order. Example: the backward of a layer with its cross entropy runs, for each part of the words, a product that gives
scores, a kernel that gives their gradient, and a product for the gradient of each factor.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from itertools import groupby
from math import prod
from typing import Any

import torch

from ...egraph.terms.sizes import resolve
from ...egraph.terms.term import Tensor
from ..plan.records import Kernel, Plan
from ..plan.thresholds import MAX_STORED_BYTES
from ..readback.check_plan import differs
from .dim_parts import START, DimParts, dim_parts, part_of, stored_between
from .plain_products import PlainProduct, plain_product
from .stored_factors import with_stored_factors

Values = dict[str, torch.Tensor]
Prepare = Callable[[Plan, Mapping[str, torch.Tensor]], Any]  # what makes a stage's kernels ready, as a PreparedPlan
GRANULE = 128  # elements of a dim: parts are multiples of a tile of a product
SHARE_OF_ENDS = 1 / 8  # of the bytes of inputs and results, that a part may take between kernels
LEAST_OF_A_PART = 1024  # elements that keep a GPU busy with the products of a part


@dataclass(frozen=True)
class Staged:
    """A plan that runs in stages. parts: of which dim, None for all at once; count: elements of a part."""

    plan: Plan
    parts: DimParts | None
    count: int = 0

    @property
    def products(self) -> tuple[str, ...]:
        """The names of what torch's products give."""
        return tuple(k.output.name for k in self.plan.kernels if plain_product(k) is not None)

    def __str__(self) -> str:
        said = f"{', '.join(self.products)} by torch's products of matrices"
        if self.parts is None:
            return said
        number = -(-self.parts.size // self.count)
        return f"{said}, in {number} parts of a dim of {self.parts.size}, so that little is stored between kernels"


@lru_cache(256)
def staged(plan: Plan) -> Staged | None:
    """The stages of a plan; None for one that has no large plain product, or sizes that are symbols."""
    if plan.piece or not any(kernel.columns for kernel in plan.kernels):
        return None
    found = with_stored_factors(plan)
    if found is not plan and differs(found, plan):
        found = plan
    if not any(plain_product(kernel) for kernel in found.kernels) or not _sizes_are_numbers(found):
        return None
    return _in_parts(found)


def _sizes_are_numbers(plan: Plan) -> bool:
    tensors = {t for k in plan.kernels for t in (*k.inputs, *(s.output for s in k.stores))}
    return all(isinstance(size, int) for t in tensors for size in t.shape)


def _in_parts(plan: Plan) -> Staged:
    """The plan in parts of the dim that leaves least in memory, where all at once would leave much."""
    between = stored_between(plan)
    if sum(map(_bytes, between)) <= MAX_STORED_BYTES:
        return Staged(plan, None)
    options = []
    for tensor in between:
        for axis, size in enumerate(tensor.shape):
            found = dim_parts(plan, tensor, axis) if size >= 2 * LEAST_OF_A_PART else None
            if found is not None:
                count = _elements_of_a_part(plan, found)
                options.append((_held(plan, found, count), len(options), Staged(plan, found, count)))
    return min(options)[2] if options else Staged(plan, None)


def _elements_of_a_part(plan: Plan, parts: DimParts) -> int:
    """As many as leave little in memory beside inputs and results, or as keep a GPU busy."""
    each = sum(_bytes(t) for t in stored_between(plan) if t.name in parts.axes) / parts.size
    most = max(MAX_STORED_BYTES // 2, SHARE_OF_ENDS * sum(map(_bytes, {*plan.inputs, *plan.outputs})))
    count = max(LEAST_OF_A_PART, int(most / each))
    return min(parts.size, -(-count // GRANULE) * GRANULE)


def held_bytes(plan: Plan, sizes: Mapping[str, int]) -> float:
    """Bytes between the kernels of a plan as it runs. sizes: values of symbols, with which it runs at once."""
    found = staged(plan)
    if found is None or found.parts is None:
        return sum(_bytes(t, sizes) for t in stored_between(plan if found is None else found.plan))
    return _held(found.plan, found.parts, found.count)


def _held(plan: Plan, parts: DimParts, count: int) -> float:
    """Bytes in memory while parts run: of a part, of what is stored as a whole, and of sums in float32."""
    stored = sum(_bytes(t) * (count / parts.size if t.name in parts.axes else 1) for t in stored_between(plan))
    outputs = [s.output for k in plan.kernels for s in k.stores if s.output.name in parts.summed]
    return stored + sum(4 * prod(_numbers(t)) for t in outputs)


def _bytes(tensor: Tensor, sizes: Mapping[str, int] | None = None) -> int:
    return getattr(torch, tensor.dtype).itemsize * prod(resolve(size, sizes or {}) for size in tensor.shape)


def _numbers(tensor: Tensor) -> list[int]:
    return [int(size) for size in tensor.shape]


# Running


@dataclass
class Stage:
    """Some kernels that follow one another: those of an executor, or one product."""

    kernels: tuple[Kernel, ...]
    product: PlainProduct | None = None
    ready: Any = None  # a PreparedPlan

    @property
    def plan(self) -> Plan:
        """The kernels as a plan of what they store."""
        made = [s.output for k in self.kernels for s in k.stores]
        inputs = dict.fromkeys(t for k in self.kernels for t in k.inputs if t not in made)
        return Plan(self.kernels, tuple(inputs), tuple(made))

    def prepare(self, values: Values, prepare: Prepare) -> None:
        """Makes it ready for tensors like these, and adds tensors like its results."""
        plan, device = self.plan, next(iter(values.values())).device
        if self.product is None:
            self.ready = prepare(plan, {t.name: values[t.name] for t in plan.inputs})
        for output in plan.outputs:
            values[output.name] = _new(output, device)

    def run(self, values: Values, targets: Values, added: bool = False) -> None:
        """Adds its results to the values. targets: tensors that products write, or add to."""
        if self.product is not None:
            output = self.product.store.output
            out = targets.get(output.name)
            values[output.name] = out = _new(output, _device(values)) if out is None else out
            self.product.run(values, out, added)
            return
        plan = self.plan_once
        results = self.ready.run([values[t.name] for t in plan.inputs])
        for output, result in zip(plan.outputs, results, strict=True):
            if output.name in targets:
                targets[output.name].copy_(result)
            values[output.name] = result

    def __post_init__(self):
        self.plan_once = self.plan


def _device(values: Values) -> torch.device:
    return next(iter(values.values())).device


def _new(tensor: Tensor, device: torch.device, dtype: torch.dtype | None = None) -> torch.Tensor:
    return torch.empty(_numbers(tensor), dtype=dtype or getattr(torch, tensor.dtype), device=device)


def _stages(kernels: Sequence[Kernel]) -> list[Stage]:
    """Each product alone, and what is between products together."""
    found: list[Stage] = []
    for is_product, some in groupby(kernels, lambda kernel: plain_product(kernel) is not None):
        found += [Stage((k,), plain_product(k)) for k in some] if is_product else [Stage(tuple(some))]
    return found


@dataclass
class StagedRun:
    """The stages of a plan, ready for tensors like those they were prepared for. Call it with tensors by name."""

    what: Staged
    before: list[Stage]
    after: list[Stage]
    parts: dict[int, list[Stage]]  # by elements of a part
    starts: tuple[int, ...] = ()
    coordinates: Values = field(default_factory=dict)  # START, by its number as text

    @classmethod
    def prepared(cls, what: Staged, tensors: Mapping[str, torch.Tensor], prepare: Prepare) -> StagedRun:
        """Raises what `prepare` raises."""
        values = dict(tensors)
        device = _device(values)
        parts = what.parts
        before = _stages(what.plan.kernels if parts is None else parts.before)
        after = _stages(() if parts is None else parts.after)
        made = cls(what, before, after, {})
        for stage in before:
            stage.prepare(values, prepare)
        if parts is not None:
            made.starts = tuple(range(0, parts.size, what.count))
            made.coordinates = {str(n): torch.tensor(n, dtype=torch.int64, device=device) for n in made.starts}
            for size in dict.fromkeys(min(what.count, parts.size - n) for n in made.starts):
                made.parts[size] = _stages([part_of(kernel, parts, size) for kernel in parts.parts])
                local = {**_narrowed(values, parts, 0, size), START.name: made.coordinates["0"]}
                for stage in made.parts[size]:
                    stage.prepare(local, prepare)
            values |= {s.output.name: _new(s.output, device) for k in parts.parts for s in k.stores
                       if s.output.name in {t.name for k in parts.after for t in k.inputs}}  # fmt: skip
        for stage in after:
            stage.prepare(values, prepare)
        return made

    @property
    def prepared_plans(self) -> list[Any]:
        """What an executor has prepared."""
        stages = (*self.before, *(stage for some in self.parts.values() for stage in some), *self.after)
        return [stage.ready for stage in stages if stage.product is None]

    def __call__(self, tensors: Mapping[str, torch.Tensor]) -> list[torch.Tensor]:
        """The plan's results."""
        values = dict(tensors)
        for stage in self.before:
            stage.run(values, {})
        if self.what.parts is not None:
            values |= self._of_parts(values, self.what.parts)
        for stage in self.after:
            stage.run(values, {})
        return [values[target.name] for target in self.what.plan.outputs]

    def _of_parts(self, values: Values, parts: DimParts) -> Values:
        """What the parts give: each result whole."""
        needed = {t.name for t in self.what.plan.outputs} | {t.name for k in parts.after for t in k.inputs}
        outputs = [s.output for k in parts.parts for s in k.stores if s.output.name in needed]
        device = _device(values)
        sums = {t.name: _new(t, device, torch.float32) for t in outputs if t.name in parts.summed}
        whole = {t.name: _new(t, device) for t in outputs if t.name not in parts.summed}
        for start in self.starts:
            size = min(self.what.count, parts.size - start)
            local = {**_narrowed(values, parts, start, size), START.name: self.coordinates[str(start)]}
            targets = {**_narrowed(whole, parts, start, size), **sums}
            for stage in self.parts[size]:
                adds = stage.product is not None and stage.product.store.output.name in sums
                stage.run(local, targets, added=adds and start > 0)
        kinds = {t.name: getattr(torch, t.dtype) for t in outputs}
        return whole | {name: total.to(kinds[name]) for name, total in sums.items()}


def _narrowed(values: Values, parts: DimParts, start: int, size: int) -> Values:
    """The tensors, those that are cut from a start on."""
    cut = lambda name, x: x.narrow(parts.axes[name], start, size) if name in parts.axes else x
    return {name: cut(name, x) for name, x in values.items()}

