"""Tensors that lie on the CPU beside a GPU's: torch reads numbers without axes and indices there, a kernel cannot.

A learned temperature or a table of places that nobody moved. Such an operand, of what comes from a contraction or of a
lookup, is moved in front of it, so that a region has one device.
"""

from __future__ import annotations

from math import inf

import torch
from torch import fx

from ..graph.nodes import value_of_node
from ..graph.op_kinds import Trait, has_trait, is_aten
from ..graph.survey import Survey, survey


def settle_devices(graph: fx.Graph) -> None:
    """Rewrites what reads such tensors; the graph computes what it did."""
    if len({x.device for x in map(value_of_node, graph.nodes) if isinstance(x, torch.Tensor)}) < 2:
        return
    s = survey(graph)
    moved: dict[tuple[fx.Node, torch.device], fx.Node] = {}
    for node in s.order:
        if s.kind[node] == "pointwise" and (s.plain[node] or s.reduced[node]):
            _move_operands(graph, node, s, moved, axes=0)
        elif has_trait(node, Trait.GATHERS):
            _move_operands(graph, node, s, moved, axes=inf)


def _move_operands(graph: fx.Graph, node: fx.Node, s: Survey, moved: dict, axes: float) -> None:
    """Moves what has so many axes at most; numbers that no tensor is needed for a region makes where it runs."""
    device = getattr(value_of_node(node), "device", None)
    for operand in node.all_input_nodes:
        known = value_of_node(operand)
        if not isinstance(known, torch.Tensor) or known.device.type != "cpu" or device in (None, known.device):
            continue
        if s.numbers[operand] or known.dim() > axes:
            continue
        if (operand, device) not in moved:
            with graph.inserting_before(node):
                moved[operand, device] = _moved(graph, operand, device, is_aten(node))
        node.replace_input_with(operand, moved[operand, device])


def _moved(graph: fx.Graph, operand: fx.Node, device: torch.device, aten: bool) -> fx.Node:
    if aten:
        made = graph.call_function(torch.ops.aten._to_copy.default, (operand,), {"device": device})
    else:
        made = graph.call_method("to", (operand, device))
    made.meta = {name: value_of_node(operand).to(device) for name in ("val", "example_value") if name in operand.meta}
    return made
