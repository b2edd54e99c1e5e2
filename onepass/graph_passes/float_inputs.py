"""Python floats that Dynamo made inputs of its graph: a module's own become numbers, others stay tensors without axes.

Dynamo gives such a float as a float64 tensor on the CPU and reads it by item(), which no region understands. A module's
attribute is a number under a guard, as all are without dynamic=True; what is given with each call becomes a tensor
without axes, so that no new value compiles anew.
"""

from __future__ import annotations

import torch
from torch import fx

from ..graph.nodes import value_of_node
from ..graph.op_kinds import Trait, has_trait
from .size_calls import read_instead


def settle_floats(graph: fx.Graph) -> None:
    """Rewrites what reads the floats; the graph computes what it did."""
    for node in list(graph.nodes):
        if not isinstance(value_of_node(node), torch.SymFloat):
            continue
        source = node.all_input_nodes[0] if node.target == "item" else None
        if source is None and not node.all_input_nodes and node.op == "call_function":
            read_instead(node, float(value_of_node(node)))  # made of numbers alone, by now
        elif source is not None and _is_attribute(source):
            read_instead(node, float(value_of_node(node)))  # which guards it
        elif source is not None:
            _keep_tensor(graph, node, source)


def _is_attribute(node: fx.Node) -> bool:
    source = getattr(node.meta.get("grapharg"), "source", None)
    return node.op == "placeholder" and type(source).__name__ == "AttrSource"


def tensor_of(number, device: torch.device) -> torch.Tensor:
    """The number as a tensor: a product, which Inductor turns into one of tensors and so keeps for every number."""
    return torch.ones((), dtype=torch.float64, device=device) * number


def _keep_tensor(graph: fx.Graph, item: fx.Node, source: fx.Node) -> None:
    """A tensor without axes has no say in the type of a product with floats, as a number has none."""
    known = value_of_node(source)
    if not isinstance(known, torch.Tensor) or known.dim() or known.dtype != torch.float64:
        return
    given: dict[torch.device, fx.Node] = {}
    for user in list(item.users):
        others = [value_of_node(n) for n in user.all_input_nodes if n is not item]
        tensors = all(isinstance(x, torch.Tensor) and x.dim() and x.is_floating_point() for x in others)
        if not has_trait(user, Trait.ARITHMETIC) or user.kwargs or len(user.args) != 2 or not others or not tensors:
            continue
        device = others[0].device
        if device not in given:
            with graph.inserting_after(item):
                given[device] = graph.call_function(tensor_of, (item, device))
            given[device].meta["example_value"] = known.to(device)
        user.replace_input_with(item, given[device])
