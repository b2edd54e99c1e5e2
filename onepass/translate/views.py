"""Views, copies and gathers as index arithmetic: a view is no node of a term.

A reshape is cut into groups of axes with equal products of sizes. Only a group that merges or splits axes uses // and
%: (2, 3, 4) to (6, 4) merges the first two axes and leaves the third.
"""

from __future__ import annotations

from collections.abc import Callable

from .. import messages
from ..egraph.terms.affine import bounds
from ..egraph.terms.index_simplify import floordiv, mod
from ..egraph.terms.ops import const, iota
from ..egraph.terms.sizes import Size, of_whole_blocks, product, term_of
from ..egraph.terms.term import Term
from ..egraph.terms.traversal import reduces, tensors
from ..graph.program import Meta
from .registry import (
    INTEGERS,
    Handlers,
    Index,
    OperatorCall,
    TensorValue,
    apply,
    choose,
    convert,
    picked,
    same_size,
    spread,
)

handles = Handlers()


def moved(call: OperatorCall, source: TensorValue, move: Callable[[Index], Index]) -> TensorValue:
    """The view whose element at index is the source's at move(index)."""
    return call.value(lambda index: source.at(move(index)))


def permuted(call: OperatorCall, source: TensorValue, order: list[int]) -> TensorValue:
    """Axis k of the result is axis order[k] of the source."""
    back = [order.index(axis) for axis in range(len(order))]
    return moved(call, source, lambda index: tuple(index[k] for k in back))


def _exchanged(call: OperatorCall, source: TensorValue, a: int, b: int) -> TensorValue:
    order = list(range(len(source.shape)))
    if order:
        a, b = source.axis(a), source.axis(b)
        order[a], order[b] = order[b], order[a]
    return permuted(call, source, order)


@handles("aten.transpose.int", "aten.swapaxes.default", "aten.swapdims.default")
def transpose(call: OperatorCall) -> TensorValue:
    a = call.get("dim0") if call.get("axis0") is None else call["axis0"]
    b = call.get("dim1") if call.get("axis1") is None else call["axis1"]
    return _exchanged(call, call["self"], a, b)


@handles("aten.mT.default", "aten.mH.default", "aten.adjoint.default")
def matrix_transpose(call: OperatorCall) -> TensorValue:
    return _exchanged(call, call["self"], -2, -1)


@handles("aten.t.default", "aten.numpy_T.default", "aten.matrix_H.default")
def reverse_axes(call: OperatorCall) -> TensorValue:
    return permuted(call, call["self"], list(range(len(call["self"].shape)))[::-1])


@handles("aten.permute.default")
def permute(call: OperatorCall) -> TensorValue:
    return permuted(call, call["self"], [call["self"].axis(d) for d in call["dims"]])


@handles("aten.movedim.int", "aten.movedim.intlist", "aten.moveaxis.int", "aten.moveaxis.intlist")
def movedim(call: OperatorCall) -> TensorValue:
    source = call["self"]
    ends = (call["source"], call["destination"])
    origins, targets = ([source.axis(d) for d in (x if isinstance(x, list) else [x])] for x in ends)
    rest = iter(axis for axis in range(len(source.shape)) if axis not in origins)
    order = [origins[targets.index(k)] if k in targets else next(rest) for k in range(len(source.shape))]
    return permuted(call, source, order)


@handles("aten.expand.default", "aten.expand_as.default", "aten.broadcast_to.default")
def expand(call: OperatorCall) -> TensorValue:
    source = call["self"]
    return moved(call, source, lambda index: spread(source, index, call.meta.shape))


RESHAPES = (
    "aten.view.default aten.reshape.default aten._unsafe_view.default aten.view_as.default aten.reshape_as.default "
    "aten.flatten.using_ints aten.unflatten.int aten.unsqueeze.default aten.squeeze.default aten.squeeze.dim "
    "aten.squeeze.dims aten._reshape_alias.default"
).split()


@handles(*RESHAPES)
def reshape(call: OperatorCall) -> TensorValue:
    source = call["self"]
    groups = grouped(source.shape, call.meta.shape)
    if groups is None:
        raise call.refuse(messages.RESHAPE, before=source.shape, after=call.meta.shape)
    return moved(call, source, lambda index: _regrouped(index, groups, source.shape, call.meta.shape))


Groups = list[tuple[list[int], list[int]]]


def grouped(old: tuple[Size, ...], new: tuple[Size, ...]) -> Groups | None:
    """The shortest pairs (old axes, new axes) with equal products of sizes; None if the sizes do not match."""
    cuts_old, cuts_new = _prefixes(old), _prefixes(new)
    if of_whole_blocks(product(old)) != of_whole_blocks(product(new)):
        return None
    groups: Groups = []
    start_old = start_new = 0
    for end_old, key in enumerate(cuts_old, 1):
        if old[end_old - 1] == 1 or key not in cuts_new[start_new:]:
            continue
        end_new = cuts_new.index(key, start_new) + 1
        groups.append((list(range(start_old, end_old)), list(range(start_new, end_new))))
        start_old, start_new = end_old, end_new
    groups.append((list(range(start_old, len(old))), list(range(start_new, len(new)))))
    return groups


def _prefixes(shape) -> list:
    return [of_whole_blocks(product(shape[: k + 1])) for k in range(len(shape))]


def _regrouped(index, groups: Groups, old, new) -> tuple[Term, ...]:
    """The old index of an element of the reshaped tensor."""
    result: list[Term] = [const(0)] * len(old)
    for old_axes, new_axes in groups:
        _pair_units(index, old_axes, new_axes, old, new, result)
        many_old = [a for a in old_axes if old[a] != 1]
        many_new = [a for a in new_axes if new[a] != 1]
        if len(many_old) == len(many_new) == 1:
            result[many_old[0]] = index[many_new[0]]
        elif many_old:
            flat = _flat([index[a] for a in many_new], [new[a] for a in many_new])
            for axis, part in zip(many_old, _unflat(flat, [old[a] for a in many_old]), strict=True):
                result[axis] = part
    return tuple(result)


def _pair_units(index, old_axes, new_axes, old, new, result) -> None:
    """An axis of one element keeps its coordinate, so that a batch of one looks like any other batch."""
    units = [a for a in new_axes if new[a] == 1]
    for axis, other in zip([a for a in old_axes if old[a] == 1], units, strict=False):
        result[axis] = index[other]


def _flat(index: list[Term], sizes) -> Term:
    total = const(0)
    for i, size in zip(index, sizes, strict=True):
        total = apply("add", apply("mul", total, term_of(size)), i)
    return total


def _unflat(flat: Term, sizes) -> list[Term]:
    parts: list[Term] = []
    for size in reversed(sizes[1:]):
        g = term_of(size)
        parts.append(mod(flat, g))
        flat = floordiv(flat, g)
    return [flat, *reversed(parts)]


def _replaced(index, axis: int, new: Term) -> tuple[Term, ...]:
    return (*index[:axis], new, *index[axis + 1 :])


def _start(position: Size, size: Size) -> Term:
    """A position counted from the front; a negative one is counted from the end."""
    return _wrapped(term_of(position), size)


@handles("aten.select.int", symbolic="index")
def select(call: OperatorCall) -> TensorValue:
    source = call["self"]
    axis = source.axis(call["dim"])
    position = _start(call["index"], source.shape[axis])
    return moved(call, source, lambda index: (*index[:axis], position, *index[axis:]))


def shifted(
    call: OperatorCall, source: TensorValue, axis: int, start: Term, step: Size = 1, meta: Meta | None = None
) -> TensorValue:
    """Elements start, start + step, ... of an axis."""

    def pull(index):
        scaled = apply("mul", index[axis], term_of(step))
        return source.at(_replaced(index, axis, apply("add", start, scaled)))

    return call.value(pull, meta)


@handles("aten.diagonal.default", "aten.linalg_diagonal.default", "aten.diag.default")
def diagonal(call: OperatorCall) -> TensorValue:
    """x[..., k, k + offset]: one axis instead of two. In regions, `diag` is of a matrix."""
    source, offset = call.get("self") or call["A"], call.get("offset", call.get("diagonal"))
    one, other = source.axis(call.get("dim1", 0)), source.axis(call.get("dim2", 1))

    def move(index):
        rest, place = list(index[:-1]), index[-1]
        where = {one: apply("add", place, const(max(-offset, 0))), other: apply("add", place, const(max(offset, 0)))}
        return tuple(where[axis] if axis in where else rest.pop(0) for axis in range(len(source.shape)))

    return moved(call, source, move)


@handles("aten.slice.Tensor", "aten.narrow.default", symbolic="start step")
def slice_axis(call: OperatorCall) -> TensorValue:
    source = call["self"]
    axis, start, size = source.axis(call["dim"]), call["start"] or 0, source.shape[source.axis(call["dim"])]
    if same_size(size, call.meta.shape[axis]):
        return moved(call, source, lambda index: index)
    if isinstance(start, int) and isinstance(size, int):
        start = max(start + size, 0) if start < 0 else min(start, size)
    return shifted(call, source, axis, _start(start, size), call.get("step") or 1)


@handles("aten.split.Tensor", "aten.split_with_sizes.default", "aten.chunk.default", "aten.split.sizes")
def split(call: OperatorCall) -> list[TensorValue]:
    source, result, start = call["self"], [], const(0)
    axis = source.axis(call["dim"])
    for meta in call.node.metas:
        result.append(shifted(call, source, axis, start, 1, meta))
        start = apply("add", start, term_of(meta.shape[axis]))
    return result


@handles("aten.unbind.int")
def unbind(call: OperatorCall) -> list[TensorValue]:
    source = call["self"]
    axis = source.axis(call["dim"])

    def part(position: int):
        return lambda index: source.at((*index[:axis], const(position), *index[axis:]))

    return [call.value(part(k), meta) for k, meta in enumerate(call.node.metas)]


@handles("getitem")
def getitem(call: OperatorCall) -> TensorValue:
    return call["self"][call["position"]]


@handles("aten.repeat.default", "aten.tile.default")
def repeat(call: OperatorCall) -> TensorValue:
    source = call["self"]

    def move(index):
        kept = index[len(index) - len(source.shape) :]
        return tuple(mod(i, term_of(size)) for i, size in zip(kept, source.shape, strict=True))

    return moved(call, source, move)


@handles("aten.repeat_interleave.self_int", symbolic="repeats")
def repeat_interleave(call: OperatorCall) -> TensorValue:
    source, times = call["self"], term_of(call["repeats"])
    if call["dim"] is None:
        return moved(call, source, lambda index: tuple(_unflat(floordiv(index[0], times), source.shape)))
    axis = source.axis(call["dim"])
    return moved(call, source, lambda index: _replaced(index, axis, floordiv(index[axis], times)))


@handles("aten.flip.default")
def flip(call: OperatorCall) -> TensorValue:
    source = call["self"]
    axes = {source.axis(d) for d in call["dims"]}

    def move(index):
        last = [apply("sub", term_of(size), const(1)) for size in source.shape]
        return tuple(apply("sub", last[a], i) if a in axes else i for a, i in enumerate(index))

    return moved(call, source, move)


@handles("aten.roll.default", symbolic="shifts")
def roll(call: OperatorCall) -> TensorValue:
    source, dims = call["self"], [call["self"].axis(d) for d in call.get("dims") or []]
    if len(dims) != len(call["shifts"]) or len(set(dims)) != len(dims):
        raise call.refuse(messages.ROLL)

    def move(index):
        index = list(index)
        for axis, shift in zip(dims, call["shifts"], strict=True):
            index[axis] = mod(apply("sub", index[axis], term_of(shift)), term_of(source.shape[axis]))
        return tuple(index)

    return moved(call, source, move)


@handles("aten.unfold.default", symbolic="step")
def unfold(call: OperatorCall) -> TensorValue:
    source = call["self"]
    axis, step = source.axis(call["dimension"]), term_of(call["step"])

    def move(index):
        return _replaced(index[:-1], axis, apply("add", apply("mul", index[axis], step), index[-1]))

    return moved(call, source, move)


@handles("aten.index_select.default")
def index_select(call: OperatorCall) -> TensorValue:
    source, positions = call["self"], call["index"]
    axis = source.axis(call["dim"])

    def move(index):
        return _replaced(index, axis, positions.at((index[axis],) * len(positions.shape)))

    return moved(call, source, move)


@handles("aten.gather.default")
def gather(call: OperatorCall) -> TensorValue:
    source, positions = call["self"], call["index"]
    axis = source.axis(call["dim"])
    if call.get("sparse_grad"):
        raise call.refuse(messages.SPARSE_GRADIENT)
    _require_within(call, positions, source.shape[axis], wraps=False)
    binder = call.binder(source.shape[axis])

    def pull(index):
        """One element of a row of products is found among all of them, which a loop computes anyway."""
        row = source.at(_replaced(index, axis, iota(binder))) if positions.shape[axis] == 1 else None
        if row is None or not tensors(positions.at(index)) or not any(binder in r.dims for r in reduces(row)):
            return source.at(_replaced(index, axis, positions.at(index)))
        return picked(row, binder, convert(positions.at(index), "int64"))

    return call.value(pull)


@handles("aten.take_along_dim.default")
def take_along_dim(call: OperatorCall) -> TensorValue:
    """A gather whose tensor and positions are broadcast to each other, but for the axis of the positions."""
    source, positions = call["self"], call["indices"]
    if call["dim"] is None:
        raise call.refuse(messages.FLATTENED_POSITIONS)
    axis = source.axis(call["dim"])
    _require_within(call, positions, source.shape[axis], wraps=False)

    def move(index):
        place = positions.at(spread(positions, index, call.meta.shape))
        return _replaced(spread(source, index, call.meta.shape), axis, place)

    return moved(call, source, move)


@handles("aten.embedding.default")
def embedding(call: OperatorCall) -> TensorValue:
    table, positions = call["weight"], call["indices"]
    if call.get("sparse"):
        raise call.refuse(messages.SPARSE_GRADIENT)
    rank = len(positions.shape)
    _require_within(call, positions, table.shape[0], wraps=False)
    return moved(call, table, lambda index: (positions.at(index[:rank]), *index[rank:]))


@handles("aten.index.Tensor")
def index_tensor(call: OperatorCall) -> TensorValue:
    """x[..., positions, ...] with integer tensors: what they hold becomes the index.

    Their own axes stand where they are, or first if axes between them keep their index, as in x[a, :, b].
    """
    source, lists = call["self"], call["indices"]
    used = [k for k, p in enumerate(lists) if p is not None]
    if any(lists[k].meta.dtype not in INTEGERS for k in used):
        raise call.refuse(messages.SIZE_OF_DATA)
    first = used[0] if used == list(range(used[0], used[-1] + 1)) else 0
    rank = max(len(lists[k].shape) for k in used)
    shape = call.meta.shape[first : first + rank]
    for k in used:
        _require_within(call, lists[k], source.shape[k], wraps=True)

    def move(index):
        middle, others = index[first : first + rank], iter((*index[:first], *index[first + rank :]))
        found = {k: _wrapped(lists[k].at(spread(lists[k], middle, shape)), source.shape[k]) for k in used}
        return tuple(found[k] if k in found else next(others) for k in range(len(source.shape)))

    return moved(call, source, move)


def _require_within(call: OperatorCall, positions: TensorValue, size: Size, wraps: bool) -> None:
    """Raises Refusal for positions made of coordinates that are out of bounds; those that are data, a kernel tests."""
    place = positions.at(tuple(iota(call.binder(n)) for n in positions.shape))
    if not tensors(place):
        call.require_within(place, size, wraps)


def _wrapped(position: Term, size: Size) -> Term:
    """A position that may be negative, counted from the front; one that cannot be stays as it is."""
    low, high = bounds(position)
    if low is not None and low >= 0:
        return position
    behind = apply("add", position, term_of(size))
    return behind if high is not None and high < 0 else choose(apply("le", const(0), position), position, behind)
