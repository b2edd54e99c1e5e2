"""Where a graph records gradients: what Dynamo's switches of the grad mode leave on or off, node by node.

What is made where nothing is recorded gets a detach of its own, so a region may reach across a switch: its original
calls say what a derivative does not pass. Where no region took it, it goes again. Without a tensor that requires grad
all of this is nothing.
"""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import fx

from .nodes import value_of_node
from .op_kinds import changes_in_place, name_of

KEPT_META = ("stack_trace", "nn_module_stack", "source_fn_stack")
MARK = "onepass_unrecorded"


def recording(nodes: Iterable[fx.Node]) -> dict[fx.Node, bool]:
    """Whether gradients are recorded where each node stands; nowhere, if nothing in the graph requires any."""
    nodes = list(nodes)
    if not any(getattr(value_of_node(n), "requires_grad", False) for n in nodes):
        return dict.fromkeys(nodes, False)
    found: dict[fx.Node, bool] = {}
    now = torch.is_grad_enabled()  # Dynamo calls a backend in the mode in which the graph will start
    for node in nodes:
        found[node] = now
        match name_of(node):
            case "_set_grad_enabled":
                now = bool(node.args[0])
            case "_enter_inference_mode":
                now = not node.args[0]
            case "_exit_inference_mode":
                now = found[node.args[0]]
    return found


def records(nodes: Iterable[fx.Node], on: dict[fx.Node, bool]) -> bool:
    """Whether autograd knows how any of the values was made."""
    return any(on[_handed_on(node)] for node in nodes)


def _handed_on(node: fx.Node) -> fx.Node:
    """The node whose tensor this one gives as it is, in whatever mode, as a cast to the tensor's own type does."""
    value = value_of_node(node)
    same = (n for n in node.all_input_nodes if isinstance(value, torch.Tensor) and value_of_node(n) is value)
    source = next(same, None)
    return node if source is None else _handed_on(source)


def detach_unrecorded(graph: fx.Graph) -> None:
    """Puts a detach behind what is made where no gradients are recorded and used where they are, or given out."""
    on = recording(graph.nodes)
    if len(set(on.values())) < 2:
        return
    for node in [n for n in graph.nodes if _unrecorded(n, on) and not changes_in_place(n)]:
        value = value_of_node(node)
        users = [user for user in node.users if on[user] or user.op == "output"]
        if users and isinstance(value, torch.Tensor) and value.is_floating_point():
            with graph.inserting_after(node):
                apart = graph.call_method("detach", (node,))
            apart.meta = {name: node.meta[name] for name in KEPT_META if name in node.meta}
            apart.meta |= {"example_value": value.detach(), MARK: True}
            node.replace_all_uses_with(apart, delete_user_cb=set(users).__contains__)


def attach_unrecorded(graph: fx.Graph) -> None:
    """Takes back each such detach of what still is made where nothing is recorded."""
    on = recording(graph.nodes)
    for apart in [n for n in graph.nodes if MARK in n.meta and not on[n.args[0]]]:
        apart.replace_all_uses_with(apart.args[0])
        graph.erase_node(apart)


def _unrecorded(node: fx.Node, on: dict[fx.Node, bool]) -> bool:
    """A call where nothing is recorded, or an item of what such a call made."""
    source = node.args[0] if name_of(node) == "getitem" else None
    if isinstance(source, fx.Node) and isinstance(value_of_node(source), tuple | list):
        return _unrecorded(source, on)
    return node.op in ("call_function", "call_method") and not on[node] and not records([node], on)
