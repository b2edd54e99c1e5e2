"""Names of a graph's values for readers: those of the user's arguments, variables and modules, as far as there are any.

A node's own name says what the program calls, where the user gave the value no name. Example: `getattr_1`, which is
k.mT, is `k_mT` for readers. Names need not be unique; a Program makes them so.
"""

from __future__ import annotations

import re

from torch import fx

from .nodes import layer_of
from .op_kinds import kind_of, name_of, shares_memory

NAME = "onepass_name"  # where a copy of a node keeps the name for readers of the original


def plain_name(name: str) -> str:
    """Dynamo's name of an input as q for l_q_; a module's tensor by the last two of its names."""
    stem = re.sub(r"^[lL]_(self_)?(?=\w)", "", name)
    stem = re.sub(r"^(?:.*modules_(\w+?_))?(?:parameters|buffers)_(?=\w)", r"\1", stem)
    return re.sub(r"\W", "_", stem).strip("_") or "x"


def name_for_readers(node: fx.Node) -> str:
    """The user's name of a value; of a view without one, the name of what it views and the last operation."""
    base, operation = node, ""
    while shares_memory(base) and not _is_named(base) and base.all_input_nodes:
        operation = operation or _operation(base)
        base = base.all_input_nodes[0]
    named = _without_number(base) if _is_named(base) else _layer(base) or base.name
    return "_".join(filter(None, (plain_name(named), operation)))


def _is_named(node: fx.Node) -> bool:
    """Whether the node's name says more than what it calls, so that it is the user's."""
    return not re.fullmatch(rf"_*{re.escape(name_of(node)).strip('_')}(_default)?(_\d+)?", node.name)


def _without_number(node: fx.Node) -> str:
    """The node's name without the number that tells the values of one variable apart."""
    stem = re.sub(r"_\d+$", "", node.name)
    is_variable = stem != node.name and any(other.name == stem for other in node.graph.nodes)
    return stem if is_variable and node.op != "placeholder" else node.name


def _operation(node: fx.Node) -> str:
    """What the view does, in a word: mT of k.mT. Of an index and of a part, nothing short says it."""
    name = name_of(node)
    return "" if name == "getitem" else node.args[1] if name == "getattr" else name


def _layer(node: fx.Node) -> str:
    """The name of the module that a layer is of, as q_proj; empty for other nodes."""
    return layer_of(node).rpartition(".")[2] if kind_of(node) == "layer" else ""
