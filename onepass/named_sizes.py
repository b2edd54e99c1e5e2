"""x.size() as the sizes themselves: numbers, and the graph's inputs that hold a symbol.

A size says nothing of values, but a call that reads the scores and gives what the scores meet later would tear a region
apart. Invariant: the graph computes what it did. Called by replace.py before regions are looked for.
"""

from __future__ import annotations

import torch
from torch import fx

from .capture import value_of_node


def name_sizes(graph: fx.Graph) -> int:
    """How many calls were replaced; one whose sizes no input holds stays."""
    inputs = {n: value_of_node(n) for n in graph.find_nodes(op="placeholder")}
    held = {str(value.node.expr): n for n, value in inputs.items() if _is_symbol(value)}
    replaced = 0
    for node in graph.find_nodes(op="call_method", target="size"):
        source = value_of_node(node.args[0])
        if len(node.args) > 1 or node.kwargs or not isinstance(source, torch.Tensor):
            continue
        sizes = tuple(held.get(str(n.node.expr)) if _is_symbol(n) else int(n) for n in source.shape)
        if None in sizes:
            continue
        named = lambda n, old=node, new=sizes: new if n is old else n
        for user in list(node.users):
            user.args, user.kwargs = fx.map_arg((user.args, user.kwargs), named)
        graph.erase_node(node)
        replaced += 1
    return replaced


def _is_symbol(value) -> bool:
    return isinstance(value, torch.SymInt) and not value.node.expr.is_Integer
