"""Moves small tensors from the CPU to the GPU of the tensors that they meet: a region then has one device.

For torch, an operand without axes and an index may lie on the CPU; a fused kernel cannot read them there. Example: a
learned temperature, or a table of positions that nobody moved.
"""

from __future__ import annotations

from math import inf

import torch
from torch import fx

from ..graph.nodes import value_of_node
from ..graph.op_kinds import Trait, has_trait, is_aten
from ..graph.survey import Survey, survey

Moved = dict[tuple[fx.Node, torch.device], fx.Node]  # the copy of a node on a device


def move_scalars(graph: fx.Graph) -> None:
    """Copies such operands to the device of the node that reads them. The graph computes what it did."""
    if len({x.device for x in map(value_of_node, graph.nodes) if isinstance(x, torch.Tensor)}) < 2:
        return
    s = survey(graph)
    moved: Moved = {}
    for node in s.order:
        if s.kind[node] == "pointwise" and (s.plain[node] or s.reduced[node]):
            _move_operands(node, s, moved, max_axes=0)
        elif has_trait(node, Trait.GATHERS):
            _move_operands(node, s, moved, max_axes=inf)


def _move_operands(node: fx.Node, s: Survey, moved: Moved, max_axes: float) -> None:
    """Moves operands with at most so many axes. What is made of numbers alone is made on the region's device anyway."""
    device = getattr(value_of_node(node), "device", None)
    for operand in node.all_input_nodes:
        known = value_of_node(operand)
        if not isinstance(known, torch.Tensor) or known.device.type != "cpu" or device in (None, known.device):
            continue
        if s.numbers[operand] or known.dim() > max_axes:
            continue
        if (operand, device) not in moved:
            with node.graph.inserting_before(node):
                moved[operand, device] = _copied(operand, device, is_aten(node))
        node.replace_input_with(operand, moved[operand, device])


def _copied(operand: fx.Node, device: torch.device, aten: bool) -> fx.Node:
    """A new node with the operand on the device, in the spelling of ATen graphs or of Dynamo's."""
    if aten:
        made = operand.graph.call_function(torch.ops.aten._to_copy.default, (operand,), {"device": device})
    else:
        made = operand.graph.call_method("to", (operand, device))
    made.meta = {name: value_of_node(operand).to(device) for name in ("val", "example_value") if name in operand.meta}
    return made
