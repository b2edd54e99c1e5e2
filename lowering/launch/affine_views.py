"""Reads at affine places, as reads of views: x[2 · i + 1, d] is y[i, d] for the view y of every second row from row 1.

A tensor map describes neither steps nor odd starts inside of a tensor, but it describes a view, or a copy of one.
Invariant: a view lies inside of its tensor, and with each read of a view replaced by the read that it stands for, the
plan is the original one.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import count

import torch

from ...egraph.terms.affine import affine
from ...egraph.terms.ops import iota, load
from ...egraph.terms.sizes import UnknownSize, resolve
from ...egraph.terms.term import Dim, Tensor, Term
from ...egraph.terms.traversal import substitute
from ..plan.kernel_edits import with_terms
from ..plan.queries import nodes, read_by
from ..plan.records import Kernel, Plan

Steps = tuple[tuple[int, tuple[int, ...]], ...]  # by axis of a tensor, (where it begins, the step of each dim)


@dataclass(frozen=True)
class AffineView:
    """The elements of a tensor that `read` reads, with an axis for each of its dims. place: of the tensor among inputs.
    """

    name: str
    place: int
    read: Term
    sizes: tuple[int, ...]
    steps: Steps

    @property
    def load(self) -> Term:
        """The read of the view that `read` becomes."""
        dims = _dims(self.read)
        return load(Tensor(self.name, self.read.dtype, tuple(dim.size for dim in dims)), *map(iota, dims))

    def of(self, tensor: torch.Tensor) -> torch.Tensor:
        """The view of this tensor."""
        axes = [*zip(self.steps, tensor.stride(), strict=True)]
        start = sum(begin * stride for (begin, _), stride in axes)
        strides = [sum(each[k] * stride for (_, each), stride in axes) for k in range(len(self.sizes))]
        return tensor.as_strided(self.sizes, strides, tensor.storage_offset() + start)


def with_views(plan: Plan, names: Sequence[str], sizes: Mapping[str, int]) -> tuple[Plan, tuple[AffineView, ...]]:
    """The plan with views of the inputs that kernels read with steps or from a start; (plan, ()) if there are none.

    names: of the inputs, in their order. sizes: values of symbolic sizes.
    """
    if not (found := _views(plan, names, sizes)):
        return plan, ()
    forth = {view.read: view.load for view in found}
    kernels = tuple(_changed(kernel, forth) for kernel in plan.kernels)
    back = {load: read for read, load in forth.items()}
    before = [replace(kernel, inputs=read_by(kernel.stores)) for kernel in plan.kernels]
    if [_changed(kernel, back) for kernel in kernels] != before:
        return plan, ()
    read = {t.name for kernel in kernels for t in kernel.inputs}
    inputs = (*(t for t in plan.inputs if t.name in read), *(view.load.attrs[0] for view in found))
    return replace(plan, kernels=kernels, inputs=inputs), found


def in_views(plan: Plan) -> Plan:
    """The plan with views where it has them and all sizes are known; else the plan as it is."""
    try:
        return with_views(plan, tuple(t.name for t in plan.inputs), {})[0]
    except UnknownSize:
        return plan


def _views(plan: Plan, names: Sequence[str], sizes: Mapping[str, int]) -> tuple[AffineView, ...]:
    """A view for each read of floating numbers that is moved inside of its tensor."""
    taken = {t.name for kernel in plan.kernels for t in (*kernel.inputs, *(s.output for s in kernel.stores))}
    free = (name for k in count() if (name := f"view{k}") not in taken)
    found = []
    for node in sorted((n for n in _floating_reads(plan) if n.attrs[0].name in names), key=repr):
        extents = tuple(resolve(dim.size, sizes) for dim in _dims(node))
        if (steps := _moved(node, extents, sizes)) is not None:
            found.append(AffineView(next(free), names.index(node.attrs[0].name), node, extents, steps))
    return tuple(found)


def _floating_reads(plan: Plan) -> set[Term]:
    """What kernels read of floating numbers, but for a single number."""
    return {n for kernel in plan.kernels for n in nodes(kernel) if n.op == "load" and "float" in n.dtype and n.dims}


def _moved(read: Term, extents: Sequence[int], sizes: Mapping[str, int]) -> Steps | None:
    """Its steps, if it is affine and not the whole tensor with its axes as they are."""
    whole = [resolve(size, sizes) for size in read.attrs[0].shape]
    steps = _steps(read, extents, whole)
    return None if steps is None or _is_whole(steps, extents, whole) else steps


def _is_whole(steps: Steps, extents: Sequence[int], whole: Sequence[int]) -> bool:
    """Whether it reads all of the tensor, with its axes as they are."""
    return [*extents] == [*whole] and all(not begin and max(each) == 1 for begin, each in steps)


def _dims(read: Term) -> tuple[Dim, ...]:
    """The dims of a read, in the order of the axes that have them."""
    return tuple(dict.fromkeys(dim for index in read.args for dim in sorted(index.dims, key=str)))


def _steps(read: Term, extents: Sequence[int], whole: Sequence[int]) -> Steps | None:
    """For each axis where it begins and the step of each dim; None if a place is not affine or may lie outside."""
    dims, found = _dims(read), []
    for index, size in zip(read.args, whole, strict=True):
        coefficients, begin = affine(index)
        each = tuple(coefficients.pop(iota(dim), 0) for dim in dims)
        last = begin + sum(step * (extent - 1) for step, extent in zip(each, extents, strict=True))
        if coefficients or min(begin, *each) < 0 or last >= size:
            return None
        found.append((begin, each))
    return tuple(found)


def _changed(kernel: Kernel, reads: Mapping[Term, Term]) -> Kernel:
    """The kernel with other reads in place of these."""
    changed = with_terms(kernel, lambda term: substitute(term, dict(reads)))
    return replace(changed, inputs=read_by(changed.stores))
