"""What an assignment writes: as a mask that is made by calls in the graph, or at places of the tensor behind a view.

For the mask it understands integers, slices, `...` and boolean masks. The mask is broadcast to the tensor. Example:
s[..., :5] on an axis of size 8 gives (arange(8) >= 0) & (arange(8) < 5).
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Collection, Iterator
from functools import reduce

import torch
from torch import fx
from torch.fx.experimental.symbolic_shapes import statically_known_true
from torch.fx.node import Argument

from ..egraph.terms.sizes import Size
from ..graph.nodes import size_of, value_of_node
from .size_calls import size_inputs

IndexedAxis = tuple[int, int | slice | fx.Node]  # An axis, and what picks its elements; a mask may cover more axes.


def indexed_axes(tensor: fx.Node, index: Argument) -> list[IndexedAxis] | None:
    """What the index picks, axis by axis, without the axes of which it picks all. None for another kind of index."""
    value, items = value_of_node(tensor), index if isinstance(index, tuple) else (index,)
    ranks = [_rank(item) for item in items]
    if not isinstance(value, torch.Tensor) or None in ranks or items.count(Ellipsis) > 1:
        return None
    rest, axis, found = value.dim() - sum(ranks), 0, []
    for item, rank in zip(items, ranks, strict=True):
        if item is not Ellipsis and item != slice(None):
            found.append((axis, item))
        axis += rest if item is Ellipsis else rank
    inputs = size_inputs(tensor.graph)
    known = all(_is_known(value.shape[axis], item, inputs) for axis, item in found if not isinstance(item, fx.Node))
    return found if found and rest >= 0 and known else None


def _rank(item) -> int | None:
    """How many axes the item indexes; None for an item of another kind."""
    if item is Ellipsis:
        return 0
    if isinstance(item, fx.Node):
        value = value_of_node(item)
        return value.dim() if isinstance(value, torch.Tensor) and value.dtype == torch.bool and value.dim() else None
    if isinstance(item, slice):
        return 1 if all(n is None or _is_integer(n) for n in (item.start, item.stop, item.step)) else None
    return 1 if _is_integer(item) else None


def _is_integer(value) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _is_known(size: int | torch.SymInt, item: int | slice, inputs: Collection[Size]) -> bool:
    """Whether the elements are known. For a symbolic size, an input holds it and no end counts from the back."""
    ends = (item.start or 0, item.stop or 0) if isinstance(item, slice) else (item,)
    return isinstance(size, int) or (min(ends) >= 0 and size_of(size) in inputs)


def call_with_value(like: fx.Node, function: Callable, *args: Argument, **kwargs: Argument) -> fx.Node:
    """A new call at the graph's insertion point, with its fake value, under the fake mode of the node `like`."""
    node = like.graph.call_function(function, args, kwargs)
    values, named = fx.map_arg((args, kwargs), value_of_node)
    with value_of_node(like).fake_mode, torch.no_grad():
        node.meta["example_value"] = function(*values, **named)
    return node


def index_mask(tensor: fx.Node, axes: list[IndexedAxis]) -> fx.Node:
    """The mask of the elements that are picked, made at the graph's insertion point."""
    value, inputs = value_of_node(tensor), size_inputs(tensor.graph)

    def call(function, *args, **kwargs) -> fx.Node:
        return call_with_value(tensor, function, *args, **kwargs)

    def mask_of(axis: int, item) -> fx.Node:
        last = axis + (value_of_node(item).dim() if isinstance(item, fx.Node) else 1)
        mask = item if isinstance(item, fx.Node) else reduce(lambda a, b: call(operator.and_, a, b), tests(axis, item))
        behind = (None,) * (value.dim() - last)
        return call(operator.getitem, mask, (Ellipsis, *behind)) if behind else mask

    def tests(axis: int, item) -> Iterator[fx.Node]:
        size = value.shape[axis]
        static = isinstance(size, int)
        position = call(torch.arange, size if static else inputs[size_of(size)], device=value.device)
        if isinstance(item, int):
            yield call(operator.eq, position, item % size if static else item)
            return
        start, stop, step = item.indices(size) if static else (item.start or 0, item.stop, item.step or 1)
        yield call(operator.ge, position, start)
        if stop is not None:
            yield call(operator.lt, position, stop)
        if step != 1:
            yield call(operator.eq, call(operator.mod, call(operator.sub, position, start), step), 0)

    return reduce(lambda a, b: call(operator.and_, a, b), [mask_of(*one) for one in axes])


def assign_behind_views(graph: fx.Graph) -> None:
    """Rewrites an assignment to slots, a view of pages, as one to (page, slot): cache.view(-1, heads, width)[slot] = x.

    The numbers are the same, also for negative slots. Inductor of torch 2.11 and 2.12 copies a whole input to write
    to a view of it, and copies it back.
    """
    for node in graph.find_nodes(op="call_function", target=operator.setitem):
        view, index, value = node.args
        first, *rest = index if isinstance(index, tuple) else (index,)
        base = view.args[0] if isinstance(view, fx.Node) and view.args else None
        if not isinstance(base, fx.Node) or not _is_of_integers(first):
            continue
        if (slots := _slots_of_a_page(value_of_node(base), value_of_node(view))) is None:
            continue
        slots = slots if isinstance(slots, int) else size_inputs(graph).get(size_of(slots))
        if slots is not None:
            with graph.inserting_before(node):
                at = [call_with_value(base, function, first, slots) for function in (operator.floordiv, operator.mod)]
            node.args = (base, (*at, *rest), value)


def _is_of_integers(item: Argument) -> bool:
    value = value_of_node(item) if isinstance(item, fx.Node) else None
    return isinstance(value, torch.Tensor) and value.dtype in (torch.int32, torch.int64)


def _slots_of_a_page(base: object, view: object) -> int | torch.SymInt | None:
    """The size of the second axis, where the view joins the first two axes of the base, and is no copy."""
    if not isinstance(base, torch.Tensor) or not isinstance(view, torch.Tensor) or base.dim() != view.dim() + 1:
        return None
    if view.dim() == 0 or view.untyped_storage()._cdata != base.untyped_storage()._cdata:
        return None
    pairs = [(view.storage_offset(), base.storage_offset()), (base.stride(0), base.stride(1) * base.shape[1])]
    pairs += [*zip(view.stride(), base.stride()[1:], strict=True), *zip(view.shape[1:], base.shape[2:], strict=True)]
    return base.shape[1] if all(statically_known_true(a == b) for a, b in pairs) else None
