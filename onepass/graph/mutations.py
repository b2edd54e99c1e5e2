"""Which inputs an operation writes into: by its schema, its name, or an argument `inplace=True`.

An operation that is not known to write is assumed to write nothing. Example: `add_` writes into its first argument.
"""

from __future__ import annotations

import torch
from torch import fx

from .op_kinds import changes_in_place, inplace_argument, schemas


def writes(node: fx.Node) -> tuple[fx.Node, ...]:
    """The tensors that the operation writes into, also those in a list."""
    if not changes_in_place(node):
        return ()
    if node.kwargs.get("out") is not None:
        return _nodes(node.kwargs["out"])
    mutable = next((schema for schema in schemas(node) if schema.is_mutable), None)
    if mutable is None:
        return _nodes(node.args[:1])
    given = {a.name: x for a, x in zip(mutable.arguments, node.args, strict=False)} | node.kwargs
    return _nodes([given.get(a.name) for a in mutable.arguments if a.alias_info is not None and a.alias_info.is_write])


def _nodes(value) -> tuple[fx.Node, ...]:
    found: list[fx.Node] = []
    fx.map_arg(value, found.append)
    return tuple(found)


def use_in_place_names(graph: fx.Graph) -> None:
    """Replaces F.silu(x, inplace=True) by aten.silu_(x), whose name says that it writes."""
    for node in graph.nodes:
        if (bound := inplace_argument(node)) is None:
            continue
        packet = getattr(torch.ops.aten, f"{node.target.__name__}_", None)
        if packet is not None and "default" in packet.overloads():
            node.target, node.args, node.kwargs = packet.default, tuple(bound.values()), {}
