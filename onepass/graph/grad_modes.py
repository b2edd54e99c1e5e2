"""Where a graph records gradients: Dynamo writes torch.no_grad() into a graph as calls that switch the grad mode.

A value made where nothing is recorded gets a detach of its own, so that a region may contain a switch: its calls then
say what a derivative does not pass. Detaches that no region takes in are removed again. Without a tensor that requires
grad nothing happens.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable

import torch
from torch import fx

from .nodes import value_of_node
from .op_kinds import changes_in_place, name_of

KEPT_META = ("stack_trace", "nn_module_stack", "source_fn_stack")
MARK = "onepass_unrecorded"
GRAD = "_grad_increment_nesting"


def recording(nodes: Iterable[fx.Node]) -> dict[fx.Node, bool]:
    """Whether gradients are recorded at each node; nowhere, if no tensor of the graph requires any.

    What torch.func.grad differentiates in the graph does, though no value says so.
    """
    nodes = list(nodes)
    if not any(getattr(value_of_node(n), "requires_grad", False) or name_of(n) == GRAD for n in nodes):
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
    """Whether autograd knows how any of the values was computed. on: what `recording` gives."""
    return any(on[_source_of_tensor(node)] for node in nodes)


def _source_of_tensor(node: fx.Node) -> fx.Node:
    """The node whose tensor this one returns unchanged, as a cast to the tensor's own dtype does; else the node."""
    value = value_of_node(node)
    same = (n for n in node.all_input_nodes if isinstance(value, torch.Tensor) and value_of_node(n) is value)
    source = next(same, None)
    return node if source is None else _source_of_tensor(source)


def detach_unrecorded(graph: fx.Graph) -> None:
    """Adds a detach behind values made without gradients that are returned, or used where gradients are recorded."""
    on = recording(graph.nodes)
    if len(set(on.values())) < 2:
        return
    for node in [n for n in graph.nodes if _unrecorded(n, on) and not changes_in_place(n)]:
        value = value_of_node(node)
        users = [user for user in node.users if on[user] or user.op == "output"]
        if users and isinstance(value, torch.Tensor) and value.is_floating_point():
            _detach(graph, node, users)


def _detach(graph: fx.Graph, node: fx.Node, users: Collection[fx.Node]) -> None:
    """Lets the users read a detach of the node."""
    with graph.inserting_after(node):
        detached = graph.call_method("detach", (node,))
    detached.meta = {name: node.meta[name] for name in KEPT_META if name in node.meta}
    detached.meta |= {"example_value": value_of_node(node).detach(), MARK: True}
    node.replace_all_uses_with(detached, delete_user_cb=set(users).__contains__)


def attach_unrecorded(graph: fx.Graph) -> None:
    """Removes each detach of `detach_unrecorded` whose value is still made without gradients."""
    on = recording(graph.nodes)
    for detached in [n for n in graph.nodes if MARK in n.meta and not on[n.args[0]]]:
        detached.replace_all_uses_with(detached.args[0])
        graph.erase_node(detached)


def _unrecorded(node: fx.Node, on: dict[fx.Node, bool]) -> bool:
    """Whether the node is a call made without gradients, or an item of the result of one."""
    source = node.args[0] if name_of(node) == "getitem" else None
    if isinstance(source, fx.Node) and isinstance(value_of_node(source), tuple | list):
        return _unrecorded(source, on)
    return node.op in ("call_function", "call_method") and not on[node] and not records([node], on)
