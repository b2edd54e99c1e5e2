"""Why a region must stay as it is: scopes, in-place writes, and values that are used outside of it.

Each function gives a Refusal, or None where nothing forbids the region. Example: scores that a second function returns
with all their rows and columns are written anyway. No node changes.
"""

from __future__ import annotations

from math import prod

import torch
from torch import fx

from .. import messages
from ..errors import Refusal
from ..graph.nodes import value_of_node, where_of
from ..graph.op_kinds import INTERIOR, changes_in_place, gives_positions, name_of, reshapes_in_place
from ..graph.survey import Survey, first_unknown_call, hinted, root, shape
from ..graph.value_names import name_for_readers
from .copies import is_scalar_multiple, tensor_inputs
from .grow import Growth
from .placement import InsertionPoint, insertion_point, write_into_saved_input
from .region import Region


def refused_at(node: fx.Node, refusal: Refusal) -> Region:
    """A region of one node that stays, with the reason."""
    return Region((node,), tuple(node.all_input_nodes), (node,), node, frozenset((node,)), refusal)


def at_line(node: fx.Node) -> str:
    """ " at model.py:12", or nothing where the line is unknown."""
    return f" at {where_of(node)}" if where_of(node) else ""


# Values that are used outside -----------------------------------------------------------------------------------------


def outputs_refusal(growth: Growth, region: Region, s: Survey) -> Refusal | None:
    """Why the values that are used outside cannot be results of one kernel."""
    if growth.cycle is not None:
        return _cycle_refusal(growth, region, s)
    if growth.wide and not _recomputing_pays(growth, s):
        refusal = _use_refusal(growth, region, s)
        return Refusal(messages.USED_AND_WRITTEN, refusal.where, reason=refusal.reason)
    if not growth.wide and len(growth.outputs) == 1:
        return None
    storable = all(gives_positions(n) or _is_floating(value_of_node(n)) for n in region.outputs)
    shared = len({root(n, s) for n in region.outputs}) < len(region.outputs)
    # A write into one of two results that share memory would have to be seen in the other.
    return None if storable and not (shared and s.in_place) else _use_refusal(growth, region, s)


def _is_floating(value: object) -> bool:
    """Whether it is a floating tensor; a list of tensors is none."""
    return isinstance(value, torch.Tensor) and value.is_floating_point()


def _use_refusal(growth: Growth, region: Region, s: Survey) -> Refusal:
    """Names a value that is used outside, and its user."""
    node = next(iter(growth.wide), region.outputs[-1])
    user = next((u for u in node.users if u not in growth.owned), node)
    also = "returned" if user.op == "output" else f"used by {name_of(user) or user.op}{at_line(user)}"
    made = root(node, s)  # The name of a cast or a view would not tell users which value it is.
    where, call = where_of(node) or where_of(region.anchor), name_of(made if name_of(made) else node)
    return Refusal(messages.USED_OUTSIDE, where, call=call, user=also)


def _cycle_refusal(growth: Growth, region: Region, s: Survey) -> Refusal:
    """Names a call outside that reads a value of the region, and on which a later value of the region depends."""
    reader = first_unknown_call(growth.cycle, growth.owned, s)
    where = where_of(growth.cycle) or where_of(region.anchor)
    unknown = "" if s.kind[reader] in INTERIOR else ", for which no kernel is derived,"
    return Refusal(messages.CYCLE, where, call=f"{name_of(reader) or reader.op}{at_line(reader)}{unknown}")


def _recomputing_pays(growth: Growth, s: Survey) -> bool:
    """Whether a kernel of both products pays although another kernel writes the values between them.

    With a reduction between, it does. Without one it saves the pointwise calls between, which read and write all
    values; it reads the operands of the first product, which should be smaller.
    """
    if any(s.kind[n] == "reduction" for n in growth.owned):
        return True
    sizes = {shape(n) for n in growth.wide}
    calls = [n for n in growth.owned if s.kind[n] == "pointwise" and shape(n) in sizes and not is_scalar_multiple(n)]
    operands = {i for n in growth.wide for product in s.plain[n] for i in tensor_inputs(product)}
    elements = lambda nodes: sum(prod(hinted(value_of_node(n))) for n in nodes)
    return bool(calls) and elements(operands) <= elements(growth.wide)


# Moving ---------------------------------------------------------------------------------------------------------------


def refusal_to_move(region: Region, s: Survey) -> Refusal | None:
    """A scope or an in-place write that forbids to compute the region in one place of the graph."""
    where = where_of(region.anchor)
    unknown = next((n for n in (*region.inputs, *region.outputs) if value_of_node(n) is None), None)
    if unknown is not None:
        return Refusal(messages.NO_METADATA, where, name=name_for_readers(unknown))
    scope = next((s.scope[n] for n in region.nodes if s.scope[n]), "")
    if scope:
        inside = messages.AUTOCAST_INSIDE if scope == "autocast" else messages.TRANSFORM_INSIDE
        return Refusal(inside, where, scope=scope)
    written = next((n for n in region.nodes if changes_in_place(n)), None) or _reshaped_in_place(region, s)
    if written is not None:
        return Refusal(messages.REGION_IN_PLACE, where_of(written) or where, call=name_of(written))
    point = insertion_point(region, s)
    return _level_refusal(point, region, s) or _placement_refusal(point, region, s)


def _level_refusal(point: InsertionPoint, region: Region, s: Survey) -> Refusal | None:
    """Why a level of dual numbers that the graph opens does not hold the region's call."""
    levels = {s.duals[n] for n in region.nodes} - {0}
    if not levels or levels == {s.duals[point.before]}:
        return None
    return Refusal(messages.PARTLY_FORWARD_MODE, where_of(region.anchor))


def _placement_refusal(point: InsertionPoint, region: Region, s: Survey) -> Refusal | None:
    """Why no place is right for the region's call, or why the only place is wrong for its backward pass."""
    node, saved = point.obstacle, write_into_saved_input(region, s, point.before)
    if node is not None and not changes_in_place(node):
        where = where_of(node) or where_of(region.anchor)
        return Refusal(messages.READ_WITHOUT_GRADIENTS, where, call=name_of(node) or node.op)
    if node is not None:
        own = _written(node, region) in region.owned
        message = messages.SCORES_WRITTEN if own else messages.READ_BEFORE_AND_BEHIND
    elif saved is not None:
        message = messages.SAVED_INPUT_WRITTEN
    else:
        return None
    write = node or saved
    return Refusal(message, where_of(write) or where_of(region.anchor), call=name_of(write))


def _written(write: fx.Node, region: Region) -> fx.Node:
    """The value that is written: one of the region, or the first of a chain of views."""
    while write not in region.owned and write.args and isinstance(write.args[0], fx.Node):
        write = write.args[0]
    return write


def _reshaped_in_place(region: Region, s: Survey) -> fx.Node | None:
    """A node that reshapes a tensor of the region in place: Dynamo keeps one shape for before and after."""
    known = {id(value_of_node(n)) for n in (*region.inputs, *region.nodes)}
    return next((n for n in s.in_place if reshapes_in_place(n) and id(value_of_node(n)) in known), None)
