"""The operations of a term on tiles: torch tensors with one axis per dim of a kernel, of size 1 where it is not used.

Loads are views wherever the index terms are affine. A sum of a product is a batched matrix product.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from math import inf, prod
from typing import Any

import torch

from ...egraph.terms.affine import affine
from ...egraph.terms.ops import LAST_PLACE, MONOIDS
from ...egraph.terms.sizes import resolve
from ...egraph.terms.term import Dim, Term
from ..analysis.data_indices import reads_memory
from ..plan.records import OUT_OF_RANGE, IndexOutOfRange
from . import random_numbers
from .exact_sums import exact_product, exact_sum, one_by_one
from .random_numbers import Places

HALVES = (torch.float16, torch.bfloat16)
MIN_ROWS_OF_A_PRODUCT = 16  # with fewer, and one column, multiplying and adding is faster than a matrix product


TileValue = Any  # a tensor, or the pair (scale, mantissa) of a rescaled sum


class OutOfTime(Exception):
    """A run that was given a time has not finished by then."""


@dataclass
class Frame:
    """One tile: its axes, the range of coordinates it covers along each dim, and what may be read.

    invariant: an element's bits depend on no other row. apart: axes along which elements belong to different rows or
    keys. until: the time, as time.perf_counter() has it, at which no further tile begins. drops: those of the tile's
    elements that a guard drops, of which data may be anything; True: all of them may be dropped, None: none is.
    compiled: what runs tiles of common shapes, as compiled_tiles.py has it. views: of loads that were seen before.
    flipped_later: loads that whoever reads them flips where an index goes back along a dim. rounds: whether products
    with bfloat16 numbers round their other factor and their results to that type.
    """

    axes: dict[Dim, int]
    tensors: Mapping[str, torch.Tensor]
    sizes: Mapping[str, int]
    device: torch.device
    ranges: dict[Dim, tuple[int, int]] = field(default_factory=dict)
    invariant: bool = False
    apart: frozenset[int] = frozenset()
    until: float = inf
    drops: torch.Tensor | bool | None = None
    compiled: Any = None
    views: dict[Term, View | None] = field(default_factory=dict)
    flipped_later: frozenset[Term] = frozenset()
    rounds: bool = False

    def begin_tile(self) -> None:
        """Raises OutOfTime where it is too late for another tile."""
        if time.perf_counter() > self.until:
            raise OutOfTime

    def settled(self, value: TileValue, node: Term) -> TileValue:
        """The value. A tile of literals alone, as Σ_j 1, gets the type in which tensors are computed."""
        if node.dtype != "float" or value.dim() == 0 or value.dtype != torch.float64:
            return value
        return value.to(self.real)

    @property
    def real(self) -> torch.dtype:
        """The type in which literals are computed."""
        double = any(t.dtype == torch.float64 for t in self.tensors.values())
        return torch.float64 if double else torch.float32

    def length(self, dim: Dim) -> int:
        start, stop = self.ranges[dim]
        return stop - start

    def coordinates(self, dim: Dim) -> torch.Tensor:
        shape = [1] * len(self.axes)
        shape[self.axes[dim]] = -1
        return torch.arange(*self.ranges[dim], device=self.device).view(shape)

    def spread(self, value: torch.Tensor, dims: list[Dim]) -> torch.Tensor:
        """A tensor whose axes are `dims`, viewed with all axes of the frame."""
        order = sorted(range(len(dims)), key=lambda k: self.axes[dims[k]])
        shape = [1] * len(self.axes)
        for k in order:
            shape[self.axes[dims[k]]] = value.shape[k]
        places = {self.axes[d] for d in dims}
        return value.permute(order)[tuple(slice(None) if k in places else None for k in range(len(shape)))]


def _chosen(condition, yes, no):
    """A literal is float64 here; beside a number without axes of a narrower type torch would widen that."""
    if yes.dim() == no.dim() == 0 and yes.dtype != no.dtype and yes.is_floating_point() and no.is_floating_point():
        narrow = min(yes.dtype, no.dtype, key=lambda dtype: dtype.itemsize)
        yes, no = yes.to(narrow), no.to(narrow)
    return torch.where(condition, yes, no)


def _mantissa(state):
    scale, mantissa = state
    return torch.where(torch.isneginf(scale), torch.nan, mantissa)


def _order(x):
    """The place of a number among those of float32, as egraph/terms/ops.py has it."""
    bits = (x.to(torch.float32) + 0.0).view(torch.int32)
    place = torch.where(bits < 0, bits ^ LAST_PLACE, bits)
    return place.masked_fill_(x.isnan(), LAST_PLACE).to(torch.int64)


_POINTWISE = "neg exp exp2 log log2 log1p sqrt rsqrt tanh sigmoid erf sin cos abs floor add sub mul div pow".split()
APPLY: dict[str, Callable] = {
    **{name: getattr(torch, name) for name in (*_POINTWISE, "maximum", "minimum", "lt", "le", "eq")},
    "finite": torch.isfinite,
    "order": _order,
    "not": torch.logical_not,
    "and": torch.logical_and,
    "or": torch.logical_or,
    "floordiv": lambda a, b: torch.div(a, b, rounding_mode="floor"),
    "mod": torch.remainder,
    "where": _chosen,
    "uniform": random_numbers.uniform,
    "scaled": lambda scale, weight: (scale, weight),
    "scale": lambda state: state[0],
    "mantissa": _mantissa,
}
IN_PLACE: dict[str, Callable] = {name: getattr(torch.Tensor, f"{name}_") for name in _POINTWISE}
COMMUTE = ("add", "mul")
BY_PLACE = ("exp2", "pow", "sigmoid")  # whose bits depend on an element's place in a vector, as torch computes them


def apply(op: str, args: list, mine: list[bool], invariant: bool = False) -> TileValue:
    """The operation's value; an operand that is `mine` may be overwritten. invariant: as Frame has it."""
    if invariant and op in BY_PLACE:
        return one_by_one(APPLY[op], *(a.float() if a.dtype in HALVES else a for a in args))
    return _apply(op, args, mine)


def _apply(op: str, args: list, mine: list[bool]) -> TileValue:
    if op in IN_PLACE:
        args = [a.float() if a.dtype in HALVES else a for a in args]
        if op in COMMUTE and not (mine[0] and _fits(args[0], args)) and mine[1]:
            args, mine = args[::-1], mine[::-1]
        if mine[0] and _fits(args[0], args):
            return IN_PLACE[op](*args)
    if op == "where" and mine[1] and args[2].dim() == 0 and args[1].is_floating_point() and _fits(args[1], args):
        return args[1].masked_fill_(~args[0], args[2].to(args[1].dtype))
    return APPLY[op](*args)


def _fits(target: torch.Tensor, args: list[torch.Tensor]) -> bool:
    """Whether the result of an arithmetic operation has the target's shape and type."""
    same = target.is_floating_point() and all(a.dim() == 0 or a.dtype in (target.dtype, torch.bool) for a in args)
    return same and torch.broadcast_shapes(*(a.shape for a in args)) == target.shape


def cast(value: torch.Tensor, dtype: str) -> torch.Tensor:
    return value.to(getattr(torch, dtype)) if dtype != "float" else value


def full(value: torch.Tensor, dim: Dim, frame: Frame) -> torch.Tensor:
    """The value with its axis for the dim at full length: folding what ignores the dim repeats it."""
    axis, rank = frame.axes[dim], len(frame.axes)
    value = value.reshape((1,) * rank) if value.dim() != rank else value
    if value.shape[axis] == frame.length(dim):
        return value
    return value.expand([frame.length(dim) if k == axis else n for k, n in enumerate(value.shape)])


_FOLDS: dict[str, Callable] = {
    "sum": lambda x, axis: x.sum(axis, keepdim=True),
    "prod": lambda x, axis: x.prod(axis, keepdim=True),
    "max": lambda x, axis: x.amax(axis, keepdim=True),
    "min": lambda x, axis: x.amin(axis, keepdim=True),
    "any": lambda x, axis: x.any(axis, keepdim=True),
    "all": lambda x, axis: x.all(axis, keepdim=True),
}
JOINS: dict[str, Callable] = {
    "sum": torch.add,
    "prod": torch.mul,
    "max": torch.maximum,
    "min": torch.minimum,
    "any": torch.logical_or,
    "all": torch.logical_and,
}


def fold(monoid: str, value: torch.Tensor, dim: Dim, frame: Frame) -> torch.Tensor:
    value = full(value, dim, frame)
    value = value.float() if value.dtype in HALVES else value
    if value.shape[frame.axes[dim]] == 0:  # torch has no maximum of nothing
        return identity(monoid, value).expand([1 if k == frame.axes[dim] else n for k, n in enumerate(value.shape)])
    if frame.invariant and monoid == "sum" and value.is_floating_point():
        return exact_sum(value, frame.axes[dim])
    return _FOLDS[monoid](value, frame.axes[dim])


def identity(monoid: str, like: torch.Tensor) -> torch.Tensor:
    """The monoid's absent element, as a tensor of rank and type of `like`."""
    absent = MONOIDS[monoid].identity
    if not like.is_floating_point() and like.dtype != torch.bool and monoid in ("max", "min"):
        absent = torch.iinfo(like.dtype).min if monoid == "max" else torch.iinfo(like.dtype).max
    return torch.full((1,) * like.dim(), absent, dtype=like.dtype, device=like.device)


def contract(x: torch.Tensor, y: torch.Tensor, dim: Dim, frame: Frame) -> torch.Tensor:
    """The sum over dim of x · y: axes of both are a batch, axes of one are rows or columns of a matrix product."""
    x, y = full(x, dim, frame), full(y, dim, frame)
    axis = frame.axes[dim]
    if frame.rounds and torch.bfloat16 in (x.dtype, y.dtype) and x.is_floating_point() and y.is_floating_point():
        return _product(x.bfloat16(), y.bfloat16(), axis, MIN_ROWS_OF_A_PRODUCT).float()
    x, y = (v.float() if v.dtype in HALVES else v for v in (x, y))
    if not x.is_floating_point():
        return (x * y).sum(axis, keepdim=True)
    if frame.invariant:
        return exact_product(x, y, axis, frame.apart, lambda x, y: _product(x, y, axis, 0))
    return _product(x, y, axis, MIN_ROWS_OF_A_PRODUCT)


def _product(x: torch.Tensor, y: torch.Tensor, axis: int, least: int) -> torch.Tensor:
    """The sum of x · y along an axis; as a matrix product from `least` rows on."""
    of_x, of_y = ({k for k, size in enumerate(v.shape) if k != axis and size > 1} for v in (x, y))
    batch, left, right = (sorted(axes) for axes in (of_x & of_y, of_x - of_y, of_y - of_x))
    if not right and prod(x.shape[k] for k in left) < least:
        return (x * y).sum(axis, keepdim=True)
    product = torch.bmm(_matrices(x, batch, left, [axis]), _matrices(y, batch, [axis], right))
    sizes = [x.shape[k] for k in batch + left] + [y.shape[k] for k in right]
    return _with_axes(product.reshape(sizes), batch + left + right, x.dim())


def _with_axes(value: torch.Tensor, axes: list[int], rank: int) -> torch.Tensor:
    """A tensor whose axes have these numbers, with the axes in order and one of size 1 in each other place."""
    value = value.permute(sorted(range(len(axes)), key=axes.__getitem__))
    return value[tuple(slice(None) if axis in axes else None for axis in range(rank))]


def _matrices(x: torch.Tensor, *groups: list[int]) -> torch.Tensor:
    used = [k for group in groups for k in group]
    x = x.permute(used + [k for k in range(x.dim()) if k not in used])
    return x.reshape([prod(n) for n in _split([*x.shape[: len(used)]], [len(g) for g in groups])])


def _split(values: list[int], lengths: list[int]) -> list[list[int]]:
    found, at = [], 0
    for n in lengths:
        found.append(values[at : at + n])
        at += n
    return found


def contract_present(x: torch.Tensor, absent: torch.Tensor, y: torch.Tensor, dim: Dim, frame: Frame) -> torch.Tensor:
    """The sum over dim of x · y where not absent, also if y is not finite at absent elements, where 0 · y is NaN."""
    present, signs = ~absent, (y == torch.inf, y == -torch.inf)
    result = contract(x, torch.where(torch.isfinite(y), y, 0), dim, frame)

    def meets(where_x, where_y):
        return contract(where_x.to(x.dtype), where_y.to(x.dtype), dim, frame) > 0

    above, below = (present & (x > 0), present & (x < 0))
    rises = meets(above, signs[0]) | meets(below, signs[1])
    falls = meets(above, signs[1]) | meets(below, signs[0])
    bad = meets(present, torch.isnan(y)) | meets(present & (x == 0), signs[0] | signs[1])
    result = torch.where(rises, torch.inf, 0) + torch.where(falls, -torch.inf, 0) + result
    return torch.where(bad, torch.nan, result)


def skew(x: torch.Tensor, rows: Dim, loop: Dim, across: Dim, absent: float, frame: Frame) -> torch.Tensor:
    """Over rows and differences what was over rows and the loop's dim, and `absent` where a row has no such difference.

    In a buffer of rows that are longer by all but one of them, what goes one place back for each row lies in line.
    """
    x = full(full(x, rows, frame), loop, frame).movedim((frame.axes[rows], frame.axes[loop]), (-2, -1))
    *around, height, width = x.shape
    line = height + width - 1
    buffer = x.new_full((*around, height * line), absent)
    buffer.as_strided(x.shape, (*buffer.stride()[:-1], line - 1, 1), height - 1).copy_(x)
    made = buffer.view(*around, height, line).movedim((-2, -1), (frame.axes[rows], frame.axes[loop]))
    return made.transpose(frame.axes[loop], frame.axes[across])


def unskew(x: torch.Tensor, rows: Dim, loop: Dim, across: Dim, kept: Dim, frame: Frame) -> torch.Tensor:
    """Over rows and the loop's dim what was over differences and the one of both that is kept."""
    height, width = frame.length(rows), frame.length(loop)
    mine, other = frame.axes[kept], frame.axes[loop if kept == rows else rows]
    x = full(x, kept, frame).transpose(other, frame.axes[across]).movedim((mine, other), (-2, -1)).contiguous()
    line, around, start = x.shape[-1], (x.shape[:-2], x.stride()[:-2]), x.storage_offset()
    if kept == rows:  # place j - i + height - 1 of line i
        made = x.as_strided((*around[0], height, width), (*around[1], line - 1, 1), start + height - 1)
    else:  # of line j, from the last row to the first
        made = x.as_strided((*around[0], width, height), (*around[1], line + 1, 1), start).flip(-1)
    return made.movedim((-2, -1), (mine, other))


def along_diagonals(x: torch.Tensor) -> torch.Tensor:
    """The sums over the last two axes, rows and columns, for each column - row + rows - 1."""
    *around, height, width = x.shape
    line = height + width - 1
    buffer = x.new_zeros((*around, height * line))
    buffer.as_strided(x.shape, (*buffer.stride()[:-1], line - 1, 1), height - 1).copy_(x)
    return buffer.view(*around, height, line).sum(-2)


def differences(rows: tuple[int, int], columns: tuple[int, int], length: int) -> tuple[int, int]:
    """The range of column - row + length - 1, for ranges of both."""
    return columns[0] - rows[1] + length, columns[1] - rows[0] + length - 1


def affine_index(index: Term) -> tuple[dict[Dim, int], dict[Term, int], int] | None:
    """(coefficients of dims, of sizes, constant) of an affine index; None for any other."""
    coefficients, constant = affine(index)
    dims = {atom.attrs[0]: c for atom, c in coefficients.items() if atom.op == "iota"}
    sizes = {atom: c for atom, c in coefficients.items() if atom.op == "size"}
    if len(dims) + len(sizes) < len(coefficients):
        return None
    return dims, sizes, constant


class View:
    """A load whose indices are affine, for any tile of a kernel: all but where the tile begins is worked out once.

    back: the axes along which an index goes back, so that the view is to be flipped: strides are never below 0.
    Example: of x[j - i + 7], row i is that much further back.
    """

    def __init__(self, node: Term, frame: Frame):
        self.source = frame.tensors[node.attrs[0].name]
        self.dims: dict[Dim, int] = {}
        steps = [0] * len(frame.axes)
        self.indices: list[tuple[int, dict[Dim, int], int, int]] = []
        for axis, term in enumerate(node.args):
            dims, base = _resolved(term, frame)
            step = self.source.stride(axis)
            self.indices.append((base, dims, self.source.shape[axis], step))
            for dim, c in dims.items():
                self.dims[dim] = place = frame.axes[dim]
                steps[place] += c * step
        self.back = [place for place, step in enumerate(steps) if step < 0]
        self.strides = [abs(step) for step in steps]

    def of_tile(self, frame: Frame) -> torch.Tensor | None:
        """The tile, to be flipped; None if an index leaves its axis."""
        offset, shape = self.source.storage_offset(), [1] * len(self.strides)
        for dim, place in self.dims.items():
            start, stop = frame.ranges[dim]
            shape[place] = stop - start
        for base, dims, size, step in self.indices:
            first, least, largest = _reach(base, dims, frame)
            if least < 0 or largest >= size:
                return None
            offset += first * step
        offset -= sum(self.strides[place] * (shape[place] - 1) for place in self.back)
        return self.source.as_strided(shape, self.strides, offset)


def load(node: Term, index: list[torch.Tensor | None], frame: Frame) -> torch.Tensor:
    """The tile of a tensor. `index` holds values of the index terms that are not affine: those axes are gathered."""
    back = []
    if all(value is None for value in index):
        view = frame.views.get(node) or frame.views.setdefault(node, View(node, frame))
        back = view.back if node in frame.flipped_later else []
        if (found := view.of_tile(frame)) is not None:
            return found if back or not view.back else found.flip(view.back)
    source = frame.tensors[node.attrs[0].name]
    steps: dict[Dim, int] = {}
    offset, gathered = source.storage_offset(), []
    for axis, term in enumerate(node.args):
        least = None if index[axis] is not None else _add_steps(steps, term, source, axis, frame)
        if least is None:
            gathered.append(axis)
        else:
            offset += least
    found = _gather(node, index, gathered, steps, offset, source, frame)
    return found.flip(back) if back else found


def flipped(node: Term, value: torch.Tensor, frame: Frame) -> torch.Tensor:
    """What a load is, of one that was to be flipped later."""
    view = frame.views.get(node)
    return value.flip(view.back) if view is not None and view.back else value


def _resolved(index: Term, frame: Frame) -> tuple[dict[Dim, int], int]:
    """The coefficients of dims of an affine index, and the rest of it, a number."""
    dims, sizes, constant = affine_index(index)
    return dims, constant + sum(c * resolve(atom.attrs[0], frame.sizes) for atom, c in sizes.items())


def _reach(base: int, dims: dict[Dim, int], frame: Frame) -> tuple[int, int, int]:
    """What an affine index is at a tile's first place, at least and at most."""
    first = least = largest = base
    for dim, c in dims.items():
        start, last = frame.ranges[dim][0], frame.ranges[dim][1] - 1
        low, high = (start, last) if c > 0 else (last, start)
        first, least, largest = first + c * start, least + c * low, largest + c * high
    return first, least, largest


def _add_steps(steps: dict[Dim, int], index: Term, source: torch.Tensor, axis: int, frame: Frame) -> int | None:
    """Adds an affine index's strides; its least offset in the storage, or None if it leaves the axis in this tile."""
    dims, base = _resolved(index, frame)
    _, least, largest = _reach(base, dims, frame)
    if least < 0 or largest >= source.shape[axis] or any(c < 0 for c in dims.values()):
        return None
    for d, c in dims.items():
        steps[d] = steps.get(d, 0) + c * source.stride(axis)
    return least * source.stride(axis)


def _gather(node, index, gathered, steps, offset, source, frame) -> torch.Tensor:
    """Gathered axes become one vector of offsets into the storage; axes in dims that it uses too join it."""
    linear = torch.zeros((1,) * len(frame.axes), dtype=torch.int64, device=frame.device)
    for axis in gathered:
        value = index[axis] if index[axis] is not None else affine_value(node.args[axis], frame)
        if reads_memory(node.args[axis]):
            _demand_places(value, node.attrs[0].name, source.shape[axis], frame)
        # Now an index outside the tensor can only stand under a guard that drops the element: any element will do.
        linear = linear + value.clamp(0, source.shape[axis] - 1) * source.stride(axis)
    shared = [d for d in steps if linear.shape[frame.axes[d]] > 1]
    for d in shared:
        linear = linear + (frame.coordinates(d) - frame.ranges[d][0]) * steps.pop(d)
    dims = list(steps)
    extent = int(linear.max()) + 1
    view = source.as_strided([extent, *(frame.length(d) for d in dims)], [1, *(steps[d] for d in dims)], offset)
    found = view[linear.flatten()].reshape(*linear.shape, *(frame.length(d) for d in dims))
    for k, d in enumerate(dims):  # each of these axes moves from the end to its place, where the offsets have size 1
        found = found.transpose(frame.axes[d], len(frame.axes) + k)
    return found.reshape(found.shape[: len(frame.axes)])


def _demand_places(index: torch.Tensor, name: str, size: int, frame: Frame) -> None:
    """Raises IndexOutOfRange where an index that is read from memory is no place of an axis, as eager does."""
    if frame.drops is True or index.numel() == 0:
        return
    if index.device.type == "cpu" and 0 <= int(index.min()) and int(index.max()) < size:
        return
    wild = (index < 0) | (index >= size)
    wild = wild if frame.drops is None else wild & ~frame.drops
    if index.device.type != "cpu":
        torch._assert_async(~wild.any(), OUT_OF_RANGE)
    elif wild.any():
        found = int(index.expand_as(wild)[wild][0])
        given = f"{found - size} (or {found}, if no place is counted from the end)" if found < 0 else found
        raise IndexOutOfRange(f"{OUT_OF_RANGE}: {given} is no place of an axis of {name}, which has {size}")


def uniform(node: Term, args: list[torch.Tensor], frame: Frame) -> torch.Tensor:
    """Random numbers for the tile; as whole blocks, if its rows and columns are two dims that nothing else reads."""
    rows, columns = (_places(index, frame) for index in node.args[3:])
    if rows is None or columns is None or rows.axis == columns.axis or _has_axis(node.args[2], (rows, columns), frame):
        return random_numbers.uniform(*args)
    seed, offset, matrix = args[:3]
    matrix = matrix.reshape((1,) * len(frame.axes)) if matrix.dim() == 0 else matrix
    return random_numbers.uniform_tile(seed, offset, matrix, rows, columns)


def _places(index: Term, frame: Frame) -> Places | None:
    """The coordinates of one dim, moved by a constant, as a range; None for any other index, and for few of them."""
    dims, sizes, constant = affine_index(index) or ({}, {}, 0)
    if len(dims) != 1 or sizes or set(dims.values()) != {1}:
        return None
    (dim,) = dims
    start, stop = (place + constant for place in frame.ranges[dim])
    found = Places(frame.axes[dim], start, stop)
    return found if start >= 0 and found.is_long else None


def _has_axis(index: Term, places: Iterable[Places], frame: Frame) -> bool:
    """Whether an index moves along the axis of one of the places."""
    return not {frame.axes[dim] for dim in index.dims}.isdisjoint(one.axis for one in places)


def affine_value(index: Term, frame: Frame) -> torch.Tensor:
    dims, sizes, constant = affine_index(index)
    base = constant + sum(c * resolve(atom.attrs[0], frame.sizes) for atom, c in sizes.items())
    value = torch.full((1,) * len(frame.axes), base, dtype=torch.int64, device=frame.device)
    for d, c in dims.items():
        value = value + c * frame.coordinates(d)
    return value
