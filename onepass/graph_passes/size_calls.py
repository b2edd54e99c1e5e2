"""Replaces x.size() and x.size(k) by the sizes themselves: numbers, and the graph's inputs that hold a symbol.

A size does not depend on values. But a call that reads the scores, and whose result the scores meet later, would cut
a region in two. Example: `scores.view(scores.size(0), -1)`. The graph computes what it did.
"""

from __future__ import annotations

import operator

import torch
from torch import fx
from torch.fx.node import Argument

from ..egraph.terms.sizes import Size
from ..graph.nodes import size_of, value_of_node


def replace_size_calls(graph: fx.Graph) -> None:
    """Replaces such calls. A call whose sizes no input holds stays."""
    inputs = size_inputs(graph)
    known = lambda size: size if isinstance(size, int) else inputs.get(size)
    for node in graph.find_nodes(op="call_method", target="size"):
        source = value_of_node(node.args[0])
        if len(node.args) == 1 and not node.kwargs and isinstance(source, torch.Tensor):
            _replace_size(node, tuple(known(size_of(n)) for n in source.shape))
    for node in graph.find_nodes(op="call_function", target=torch.ops.aten.sym_size.int):
        value = value_of_node(node)
        if isinstance(value, int | torch.SymInt) and (size := known(size_of(value))) is not None:
            substitute(node, size)


def _replace_size(node: fx.Node, sizes: tuple) -> None:
    """Replaces single items of a size that are known, and the size itself if all are. None is an unknown size."""
    for item in [n for n in node.users if n.target is operator.getitem and isinstance(n.args[1], int)]:
        if (size := sizes[item.args[1]]) is not None:
            substitute(item, size)
    if None not in sizes or not node.users:
        substitute(node, sizes)


def size_inputs(graph: fx.Graph) -> dict[Size, fx.Node]:
    """The graph's inputs that hold a symbolic size, by the symbol's text."""
    inputs = {n: value_of_node(n) for n in graph.find_nodes(op="placeholder")}
    return {size_of(value): n for n, value in inputs.items() if _is_symbol(value)}


def substitute(node: fx.Node, value: Argument) -> None:
    """Lets every user read the value, which may be a number, instead of the node, and erases the node."""
    replaced = lambda n: value if n is node else n
    for user in list(node.users):
        user.args, user.kwargs = fx.map_arg((user.args, user.kwargs), replaced)
    node.graph.erase_node(node)


def _is_symbol(value) -> bool:
    return isinstance(value, torch.SymInt) and not value.node.expr.is_Integer
