"""Whether the ranges of a loop, and its block map, say what its guard says, element by element at sampled rows.

Columns are sampled where ranges begin and end. Invariant: what the guard keeps is inside of a range, and an exact range
has nothing else. Example: for j <= i the limit j < i + 1 is exact, j < i loses an element, j < i + 2 is not exact.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from ...egraph.terms.ops import const
from ...egraph.terms.term import Dim
from ..plan.records import BlockMap, Kernel, Limit, Loop
from .plan_meaning import NotReadBack
from .sample_points import Points
from .sampled_values import SampledValues, axes_of, axes_of_dims, moved

ALL_COLUMNS = 64  # a loop with so many has all of them looked at
MOST_COLUMNS = 96


def demand_limits(kernel: Kernel, loop: Loop, values: SampledValues) -> None:
    """Raises NotReadBack where ranges, limits or the map do not fit the guard."""
    where = f"the loop over {loop.dim} of {kernel.name}"
    if loop.map is not None:
        _demand_map(kernel, loop, loop.map, where)
    known = {*kernel.grid, kernel.rows, *loop.outer}
    if stray := {d for limit in loop.limits for d in limit.bound.dims} - known:
        raise NotReadBack(f"a limit of {where} depends on {', '.join(map(str, sorted(stray)))}")
    if loop.guard is not None or loop.limits or not loop.ranges:
        _demand_ranges(loop, _with_columns(loop, values), where)
    for limit in loop.limits:
        _demand_direction(limit, kernel.rows, values, where)


def _demand_ranges(loop: Loop, values: SampledValues, where: str) -> None:
    """What the guard keeps is inside of a range, and an exact range has nothing else."""
    guard = const(True) if loop.guard is None else loop.guard
    axes = axes_of_dims(frozenset({loop.dim, *guard.dims}.union(*(limit.bound.dims for limit in loop.limits))))
    shape = [len(values.indices(d)) for d in axes]
    place = moved(values.indices(loop.dim), (loop.dim,), axes)
    kept, inside = np.broadcast_to(values.aligned(guard, axes), shape), np.zeros(shape, bool)
    for one in loop.ranges:
        within = np.ones(shape, bool)
        for limit in one.uppers:
            within = within & (place < values.aligned(limit.bound, axes))
        for limit in one.lowers:
            within = within & (place >= values.aligned(limit.bound, axes))
        if one.exact and (within & ~kept).any():
            raise NotReadBack(f"a range of {where} is called exact and is not")
        inside |= within
    if (kept & ~inside).any():
        raise NotReadBack(f"the ranges of {where} leave out what its guard keeps")


def _with_columns(loop: Loop, values: SampledValues) -> SampledValues:
    """The values at more columns: where ranges begin and end."""
    points: Points = values.indices
    length = points.length(loop.dim)
    if length <= ALL_COLUMNS:
        columns = np.arange(length)
    else:
        ends = [np.ravel(values.value(limit.bound)) for limit in loop.limits]
        near = np.concatenate([points(loop.dim), *(end + step for end in ends for step in (-2, -1, 0, 1))])
        columns = np.array(sorted({*near[(near >= 0) & (near < length)].tolist()}), np.int64)
        if len(columns) > MOST_COLUMNS:
            columns = columns[np.linspace(0, len(columns) - 1, MOST_COLUMNS).astype(int)]
    more = {**points.more, loop.dim: columns}
    again = replace(points, more=more, found={})
    return SampledValues(again, values.ranges, values.sizes, values.trial, values.literals)


def _demand_direction(limit: Limit, rows: Dim | None, values: SampledValues, where: str) -> None:
    """A limit rises with the rows, or falls, as it says."""
    if rows is None or rows not in limit.bound.dims:
        return
    found = np.diff(values.value(limit.bound), axis=axes_of(limit.bound).index(rows))
    if (found < 0).any() if limit.rising else (found > 0).any():
        raise NotReadBack(f"a limit of {where} does not move with {rows} as it says")


def _demand_map(kernel: Kernel, loop: Loop, found: BlockMap, where: str) -> None:
    """A map is of the loop's own guard, over dims that the kernel has."""
    known = {*kernel.grid, *loop.outer}
    same = found.guard is loop.guard and found.loop == loop.dim and found.finite_mask == loop.finite_mask
    placed = {*found.dims} <= known and {*found.rows} <= {kernel.rows}
    if not same or not placed or found.guard.dims - {*found.dims, *found.rows, loop.dim}:
        raise NotReadBack(f"the block map of {where} is not of its guard")
