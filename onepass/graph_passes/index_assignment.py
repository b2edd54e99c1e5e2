"""The places that an assignment to items writes, s[..., :5] = number, as a mask of the tensor's axes, made by calls.

Integers, slices, None for none of both, and one mask.
"""

from __future__ import annotations

import operator
from collections.abc import Iterator
from functools import reduce

import torch
from torch import fx

from ..graph.nodes import size_of, value_of_node
from .size_calls import held_sizes

Part = tuple[int, slice | int | fx.Node]  # the first axis, and what picks its places


def parts_of(tensor: fx.Node, index) -> list[Part] | None:
    """What the index picks by axis, whole axes left out; None if it is another index."""
    value, given = value_of_node(tensor), index if isinstance(index, tuple) else (index,)
    ranks = [_rank(item) for item in given]
    if not isinstance(value, torch.Tensor) or None in ranks or given.count(Ellipsis) > 1:
        return None
    rest, axis, found = value.dim() - sum(ranks), 0, []
    for item, rank in zip(given, ranks, strict=True):
        if item is not Ellipsis and item != slice(None):
            found.append((axis, item))
        axis += rest if item is Ellipsis else rank
    held = held_sizes(tensor.graph)
    known = all(_is_known(value.shape[axis], item, held) for axis, item in found if not isinstance(item, fx.Node))
    return found if found and rest >= 0 and known else None


def _rank(item) -> int | None:
    """How many axes the item stands for; None for what is not understood."""
    if item is Ellipsis:
        return 0
    if isinstance(item, fx.Node):
        value = value_of_node(item)
        return value.dim() if isinstance(value, torch.Tensor) and value.dtype == torch.bool and value.dim() else None
    ends = (item.start, item.stop, item.step) if isinstance(item, slice) else (item,)
    whole = all((isinstance(n, int) and not isinstance(n, bool)) or (n is None and len(ends) > 1) for n in ends)
    return 1 if whole else None


def _is_known(size, item, held) -> bool:
    """Whether the places are known: of a symbol that an input holds, those that are counted from the front."""
    ends = (item.start or 0, item.stop or 0) if isinstance(item, slice) else (item,)
    return isinstance(size, int) or (min(ends) >= 0 and size_of(size) in held)


def called(like: fx.Node, function, *args, **kwargs) -> fx.Node:
    """A new call where the graph inserts, with its value, under the mode of another node's."""
    node = like.graph.call_function(function, args, kwargs)
    given, named = fx.map_arg((args, kwargs), value_of_node)
    with value_of_node(like).fake_mode, torch.no_grad():
        node.meta["example_value"] = function(*given, **named)
    return node


def mask_of(tensor: fx.Node, parts: list[Part]) -> fx.Node:
    """A mask that is broadcast to the tensor, made where the graph inserts."""
    value, held = value_of_node(tensor), held_sizes(tensor.graph)

    def call(function, *args, **kwargs) -> fx.Node:
        return called(tensor, function, *args, **kwargs)

    def one(axis: int, item) -> fx.Node:
        last = axis + (value_of_node(item).dim() if isinstance(item, fx.Node) else 1)
        mask = item if isinstance(item, fx.Node) else reduce(lambda a, b: call(operator.and_, a, b), tests(axis, item))
        behind = (None,) * (value.dim() - last)
        return call(operator.getitem, mask, (Ellipsis, *behind)) if behind else mask

    def tests(axis: int, item) -> Iterator[fx.Node]:
        size = value.shape[axis]
        whole = isinstance(size, int)
        place = call(torch.arange, size if whole else held[size_of(size)], device=value.device)
        if isinstance(item, int):
            yield call(operator.eq, place, item % size if whole else item)
            return
        start, stop, step = item.indices(size) if whole else (item.start or 0, item.stop, item.step or 1)
        yield call(operator.ge, place, start)
        if stop is not None:
            yield call(operator.lt, place, stop)
        if step != 1:
            yield call(operator.eq, call(operator.mod, call(operator.sub, place, start), step), 0)

    return reduce(lambda a, b: call(operator.and_, a, b), [one(*part) for part in parts])
