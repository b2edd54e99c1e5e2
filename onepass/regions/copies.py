"""Copies: cheap nodes in front of a region that its kernel computes again, so that they are not read from memory.

The originals stay in the graph for other users. Example: a causal mask made of arange, or a transpose of the keys. No
node changes.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

import torch
from torch import fx

from ..graph.nodes import value_of_node
from ..graph.op_kinds import MOVES_ONLY_AXES, Trait, changes_in_place, has_trait, name_of
from ..graph.survey import Nodes, Survey, in_order, is_lookup, shape
from .placement import conflicting_writes
from .region import Region

MAX_BYTES_OF_A_MASK_ELEMENT = 4  # Of a mask with all rows and columns: each head reads it again.
EXPENSIVE = ("contraction", "attention", "reduction", "layer", "mixture")


def with_cheap_inputs(owned: Nodes, outputs: tuple[fx.Node, ...], anchor: fx.Node, s: Survey) -> Region:
    """The region that owns these nodes, with copies of the cheap nodes in front of them."""
    nodes, waiting = set(owned), [i for n in owned for i in n.all_input_nodes]
    end = max(map(s.place.get, outputs))
    while waiting:
        node = waiting.pop()
        if node in nodes or any(conflicting_writes(node, end, s)):  # What is overwritten before the end is an input.
            continue
        if is_cheap(node, s) and (s.kind[node] != "join" or nodes.issuperset(node.users)):
            nodes.add(node)
            waiting.extend(node.all_input_nodes)
    nodes -= {n for n in nodes - owned if nodes.isdisjoint(n.all_input_nodes) and (_splits_rows(n) or _splits_all(n))}
    return Region(*in_order(nodes, s), outputs, anchor, frozenset(owned))


def _splits_rows(node: fx.Node) -> bool:
    """Whether the node splits the flattened rows of a batch. In front of a region that costs nothing.

    An input with all its axes tells the kernel where each row of the batch ends.
    """
    if not has_trait(node, Trait.SPLITS_AXES):
        return False
    old, new = shape(node.all_input_nodes[0]), shape(node)
    return None not in (old, new) and len(old) == 2 < len(new) and old[-1] == new[-1]


def _splits_all(node: fx.Node) -> bool:
    """Whether the node gives the elements of a vector their axes, as behind an exchange of flat tensors.

    In front of a region that costs nothing, and a kernel's tiles are rows of an axis instead of stretches of a vector.
    """
    if not has_trait(node, Trait.KEEPS_ORDER):
        return False
    old, new = shape(node.all_input_nodes[0]), shape(node)
    return None not in (old, new) and len(old) == 1 and sum(size != 1 for size in new) > 1


def without_joins(region: Region, s: Survey) -> tuple[Region, list[fx.Node]]:
    """The region with the concatenations in front of it as inputs, and these inputs."""
    joins = {n for n in region.nodes if s.kind[n] == "join" and n not in region.owned}
    kept = {*region.nodes} - joins
    while unused := {n for n in kept - region.owned if kept.isdisjoint(n.users)}:
        kept -= unused
    nodes, inputs = in_order(kept, s)
    return replace(region, nodes=nodes, inputs=inputs), [n for n in inputs if n in joins]


def without_views(region: Region, s: Survey) -> Region:
    """The region with views of its inputs as inputs. Their gradients are then those of views, which autograd knows.

    Views of what is computed, cast or expanded inside stay inside, and so do those that only move axes in front of the
    last one: a kernel names the axes in another order, and autograd has one node less. Example: queries, keys and
    values that are parts of one tensor are three inputs; `x.transpose(1, 2)` is read as x.
    """
    outside: set[fx.Node] = set()
    for node in region.nodes:
        inside = [n for n in node.all_input_nodes if n in region.nodes]
        is_plain = s.kind[node] == "view" and not has_trait(node, Trait.EXPANDS | Trait.REPEATS)
        if is_plain and node not in region.owned and outside.issuperset(inside):
            outside.add(node)
    for node in reversed(region.nodes):
        if node in outside and _keeps_last_axis(node) and _is_read_alone(node, region, outside):
            outside.remove(node)
    nodes, inputs = in_order({*region.nodes} - outside, s)
    return replace(region, nodes=nodes, inputs=inputs)


def _keeps_last_axis(node: fx.Node) -> bool:
    """Whether a view only moves axes, and not the last one.

    Keys stay as a product takes them, as k.mT. With the gradient of k in another order, planning would store all
    weights of a softmax that is normalised again over rows.
    """
    if not has_trait(node, MOVES_ONLY_AXES) or len(node.all_input_nodes) != 1 or not shape(node):
        return False
    value, source = (value_of_node(n) for n in (node, *node.all_input_nodes))
    same = lambda one, other: str(one) == str(other)  # of symbols, too, without a guard on their values
    return same(value.shape[-1], source.shape[-1]) and same(value.stride(-1), source.stride(-1))


def _is_read_alone(view: fx.Node, region: Region, outside: set[fx.Node]) -> bool:
    """Whether a region alone reads the view, and reads nothing else of the tensor that it is a view of: then the tensor
    is one input, whose gradient is that of the view. What is outside reads neither."""
    (source,) = view.all_input_nodes
    inside = {*region.nodes} - outside
    return inside.issuperset(view.users) and {n for n in source.users if n in region.nodes} == {view}


def with_copies(region: Region, more: Iterable[fx.Node], s: Survey) -> Region:
    """The region with copies of more nodes."""
    nodes, inputs = in_order({*region.nodes, *more}, s)
    return replace(region, nodes=nodes, inputs=inputs)


def is_cheap(node: fx.Node, s: Survey) -> bool:
    """Whether a kernel may compute the node again: views, casts, multiples by a number, masks."""
    kind = s.kind[node]
    if makes_bytes(node, s):
        return False
    if kind == "other" or name_of(node) == "embedding":
        return is_lookup(node, s)
    if kind in EXPENSIVE or changes_in_place(node):
        return False
    if kind == "join":
        return not all(_is_one_wide(n, node) for n in tensor_inputs(node))
    if kind in ("view", "cast", "creation"):
        return kind == "creation" or _is_tensor_or_parts(node)
    return s.free[node] or _is_predicate(node, s) or is_scalar_multiple(node)


def makes_bytes(node: fx.Node, s: Survey) -> bool:
    """Whether the node rounds floats to bytes: those are read in less time, and products take them as they are."""
    values = [value_of_node(n) for n in (*tensor_inputs(node)[:1], node)] if s.kind[node] == "cast" else []
    if len(values) < 2 or not all(isinstance(value, torch.Tensor) for value in values):
        return False
    wide, narrow = values
    return wide.is_floating_point() and narrow.dtype != torch.bool and narrow.element_size() == 1 < wide.element_size()


def is_scalar_multiple(node: fx.Node) -> bool:
    """Whether the node only multiplies a tensor by a number."""
    tensors = tensor_inputs(node) if has_trait(node, Trait.SCALES) else []
    return len(tensors) == 1 and shape(node) == shape(tensors[0])


def _is_predicate(node: fx.Node, s: Survey) -> bool:
    """Whether the node makes a boolean mask of one mask that is an input and of what is free.

    The mask that is an input is then seen to be the same in each call. A result would be a new tensor in each call.
    """
    own = shape(node)
    if own is None or s.kind[node] != "pointwise" or value_of_node(node).dtype != torch.bool:
        return False
    masks = [n for n in tensor_inputs(node) if shape(n) == own and not s.free[n]]
    narrow = 1 in own[-2:] or len(own) < 2
    return len(masks) == 1 and (narrow or value_of_node(masks[0]).element_size() <= MAX_BYTES_OF_A_MASK_ELEMENT)


def _is_one_wide(part: fx.Node, join: fx.Node) -> bool:
    """Whether the part has one element of the joined axis, as in a stack; else the axis goes on in another tensor."""
    own, whole = shape(part), shape(join)
    return len(own) == len(whole) and all(a == b or a == 1 for a, b in zip(own, whole, strict=True)) and own != whole


def _is_tensor_or_parts(node: fx.Node) -> bool:
    value = value_of_node(node)
    return isinstance(value, torch.Tensor) or (isinstance(value, tuple | list) and len(value) > 0)


def tensor_inputs(node: fx.Node) -> list[fx.Node]:
    """The operands that are tensors."""
    return [n for n in node.all_input_nodes if shape(n) is not None]
