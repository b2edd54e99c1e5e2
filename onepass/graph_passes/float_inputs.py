"""Replaces Python floats that Dynamo made inputs of its graph: attributes of modules by numbers, others by tensors.

Dynamo passes such a float as a float64 tensor on the CPU and reads it by item(), which no region understands. An
attribute of a module becomes a number under a guard, as without dynamic=True. A float that each call passes becomes a
tensor without axes, so that a new value compiles nothing anew. Example: `scale` in `(q @ k.mT) * scale`.
"""

from __future__ import annotations

import torch
from torch import fx

from ..graph.nodes import value_of_node
from ..graph.op_kinds import Trait, has_trait
from .size_calls import substitute


def replace_float_inputs(graph: fx.Graph) -> None:
    """Rewrites the nodes that read such floats. The graph computes what it did."""
    for node in list(graph.nodes):
        if not isinstance(value_of_node(node), torch.SymFloat):
            continue
        source = node.all_input_nodes[0] if node.target == "item" else None
        computed = source is None and not node.all_input_nodes and node.op == "call_function"  # Of numbers alone.
        if computed or (source is not None and _is_attribute(source)):
            substitute(node, float(value_of_node(node)))  # float() adds a guard on the value.
        elif source is not None:
            _read_as_tensor(graph, node, source)


def _is_attribute(node: fx.Node) -> bool:
    source = getattr(node.meta.get("grapharg"), "source", None)
    return node.op == "placeholder" and type(source).__name__ == "AttrSource"


def tensor_of(number: float, device: torch.device) -> torch.Tensor:
    """The number as a tensor without axes. Inductor keeps a product with a tensor for every value of the number."""
    return torch.ones((), dtype=torch.float64, device=device) * number


def _read_as_tensor(graph: fx.Graph, item: fx.Node, source: fx.Node) -> None:
    """Lets arithmetic read the float as a tensor, on the device of its other operand."""
    known = value_of_node(source)
    if not isinstance(known, torch.Tensor) or known.dim() or known.dtype != torch.float64:
        return
    made: dict[torch.device, fx.Node] = {}
    for user in list(item.users):
        if not _takes_a_tensor(user, item):
            continue
        device = next(value_of_node(n) for n in user.all_input_nodes if n is not item).device
        if device not in made:
            with graph.inserting_after(item):
                made[device] = graph.call_function(tensor_of, (item, device))
            made[device].meta["example_value"] = known.to(device)
        user.replace_input_with(item, made[device])


def _takes_a_tensor(user: fx.Node, item: fx.Node) -> bool:
    """Whether the result's dtype is the same for a tensor without axes: it is, beside a floating tensor with axes."""
    if not has_trait(user, Trait.ARITHMETIC) or user.kwargs or len(user.args) != 2:
        return False
    others = [value_of_node(n) for n in user.all_input_nodes if n is not item]
    return bool(others) and all(isinstance(x, torch.Tensor) and x.dim() and x.is_floating_point() for x in others)
