"""x.size(), and one size of a value, as the sizes themselves: numbers, and the graph's inputs that hold a symbol.

A size says nothing of values, but a call that reads the scores and gives what the scores meet later would tear a region
apart. Invariant: the graph computes what it did.
"""

from __future__ import annotations

import torch
from torch import fx

from ..egraph.terms.sizes import Size
from ..graph.nodes import size_of, value_of_node


def name_sizes(graph: fx.Graph) -> int:
    """How many calls were replaced; one whose sizes no input holds stays."""
    held = held_sizes(graph)
    named = lambda size: size if isinstance(size, int) else held.get(size)
    replaced = 0
    for node in graph.find_nodes(op="call_method", target="size"):
        source = value_of_node(node.args[0])
        if len(node.args) > 1 or node.kwargs or not isinstance(source, torch.Tensor):
            continue
        replaced += _replaced(node, tuple(named(size_of(n)) for n in source.shape))
    for node in graph.find_nodes(op="call_function", target=torch.ops.aten.sym_size.int):
        value = value_of_node(node)
        replaced += isinstance(value, int | torch.SymInt) and _replaced(node, named(size_of(value)))
    return replaced


def held_sizes(graph: fx.Graph) -> dict[Size, fx.Node]:
    """The graph's inputs that hold a symbol, by what it is."""
    inputs = {n: value_of_node(n) for n in graph.find_nodes(op="placeholder")}
    return {size_of(value): n for n, value in inputs.items() if _is_symbol(value)}


def _replaced(node: fx.Node, by) -> bool:
    """Whether every user reads the sizes instead of the call."""
    if by is None or (isinstance(by, tuple) and None in by):
        return False
    read_instead(node, by)
    return True


def read_instead(node: fx.Node, by) -> None:
    """Every user reads `by`, which may be a number, and the node is gone."""
    named = lambda n: by if n is node else n
    for user in list(node.users):
        user.args, user.kwargs = fx.map_arg((user.args, user.kwargs), named)
    node.graph.erase_node(node)


def _is_symbol(value) -> bool:
    return isinstance(value, torch.SymInt) and not value.node.expr.is_Integer
