"""Replaces x.size() and x.size(k) by the sizes themselves: numbers, and what the graph's inputs hold.

A size does not depend on values. But a call that reads the scores, and whose result the scores meet later, would cut
a region in two, and one that reads a copy of pages would have it written. Example: `scores.view(scores.size(0), -1)`.
Nor does a check of a dtype that `torch.export` wrote: it goes where it holds. The graph computes what it did.
"""

from __future__ import annotations

import operator

import sympy
import torch
from torch import fx
from torch.fx.node import Argument
from torch.utils._sympy.functions import FloorDiv

from ..egraph.terms.sizes import Size
from ..graph.nodes import expression, size_of, value_of_node

CHECKS = ("size", "stride", "dtype", "device", "layout")  # the arguments of such a call, behind the tensor
CHECKED = {"dtype", "device", "layout"}  # which of them are looked at here
OPERATORS = {sympy.Add: operator.add, sympy.Mul: operator.mul, FloorDiv: operator.floordiv}


def replace_size_calls(graph: fx.Graph) -> None:
    """Replaces such calls. A call whose sizes no input holds stays."""
    inputs = size_inputs(graph)
    known = lambda size: size if isinstance(size, int) else inputs.get(size)
    for node in graph.find_nodes(op="call_method", target="size"):
        source = value_of_node(node.args[0])
        if len(node.args) == 1 and not node.kwargs and isinstance(source, torch.Tensor):
            _replace_size(node, tuple(known(size_of(n)) for n in source.shape))
    of_axes = _SizesOfAxes(graph)
    for node in graph.find_nodes(op="call_function", target=torch.ops.aten.sym_size.int):
        value = value_of_node(node)
        if node.args[0].op == "placeholder" or not isinstance(value, int | torch.SymInt):
            continue
        size = known(size_of(value))
        size = of_axes.node(expression(value)) if size is None else size
        if size is not None:
            substitute(node, size)


def remove_checks(graph: fx.Graph) -> None:
    """Removes checks of what is known of a tensor beside its sizes, where they hold."""
    for node in graph.find_nodes(op="call_function", target=torch.ops.aten._assert_tensor_metadata.default):
        asked = dict(zip(CHECKS, node.args[1:])) | node.kwargs
        asked = {name: wanted for name, wanted in asked.items() if wanted is not None}
        value = value_of_node(node.args[0])
        if asked.keys() <= CHECKED and all(getattr(value, name, None) == wanted for name, wanted in asked.items()):
            graph.erase_node(node)


class _SizesOfAxes:
    """Sizes made of those of the axes of the graph's inputs, in front of all other calls, as they are asked for.

    An exported graph holds its symbols nowhere else.
    """

    def __init__(self, graph: fx.Graph):
        self.graph = graph
        self.first = next(n for n in graph.nodes if n.op != "placeholder")
        self.axes: dict[sympy.Expr, tuple[fx.Node, int, torch.SymInt]] = {}
        self.made: dict[sympy.Expr, fx.Node | None] = {}
        for node in graph.find_nodes(op="placeholder"):
            value = value_of_node(node)
            for axis, size in enumerate(value.shape if isinstance(value, torch.Tensor) else ()):
                self.axes.setdefault(expression(size), (node, axis, size))

    def node(self, size: sympy.Expr) -> fx.Node | int | None:
        """A node of this value; None if it is no sum, product or quotient of the sizes of axes."""
        if size.is_Integer:
            return int(size)
        if size not in self.made:
            self.made[size] = self._made(size)
        return self.made[size]

    def _made(self, size: sympy.Expr) -> fx.Node | None:
        if size in self.axes:
            *arguments, value = self.axes[size]
            return self._call(torch.ops.aten.sym_size.int, tuple(arguments), value)
        step = OPERATORS.get(size.func)
        parts = [self.node(part) for part in size.args] if step else []
        if not parts or None in parts:
            return None
        found = parts[0]
        for part in parts[1:]:
            values = (value_of_node(n) if isinstance(n, fx.Node) else n for n in (found, part))
            found = self._call(step, (found, part), step(*values))
        return found

    def _call(self, target, arguments: tuple, value: torch.SymInt) -> fx.Node:
        with self.graph.inserting_before(self.first):
            node = self.graph.call_function(target, arguments)
        node.meta["val"] = value
        return node


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
