"""Random calls of a graph as functions of a seed that is drawn in front of them, so that regions may contain them.

A pass gives each call a seed, drawn by an ordinary operation of torch at the call's place: random calls keep their
order, and seeds come from torch's generator, as the calls' own numbers would. Calls that no region takes in become
again what they were. Example: F.dropout(x, 0.1) is onepass::dropout(x, 0.1, seed) while regions are looked for.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import fx
from torch.fx.node import Argument

from .grad_modes import KEPT_META
from .nodes import VALUE_META, value_of_node
from .op_kinds import changes_in_place, is_aten, is_random, name_of
from .random_operators import SEED_NUMBERS

MARK = "onepass_unseeded"  # of a call with a seed: what it was
END_OF_SEEDS = 2**63 - 1
REQUIRED = object()

Given = dict[str, Any]


@dataclass(frozen=True)
class SeededCall:
    """A random call that has a form with a seed, an operation of onepass.

    parameters: of the call, in order, with their defaults. arguments: those of the operation, of which the seed is the
    last and left out; None for a call that it cannot say. in_dynamo: in Dynamo's graphs too, and not only in ATen's.
    """

    operation: torch._ops.OpOverload
    parameters: Mapping[str, Any]
    arguments: Callable[[Given, torch.Tensor], tuple | None]
    in_dynamo: bool = True


@dataclass(frozen=True)
class _Place:
    """Stands for the node at this position among those that a call reads."""

    position: int


def draw_seeds(graph: fx.Graph) -> None:
    """Draws a seed in front of each random call that has a form with one, and gives the call that form."""
    for node in list(graph.nodes):
        row = CALLS.get(name_of(node)) if node.op == "call_function" and not changes_in_place(node) else None
        value = value_of_node(node)
        arguments = None if row is None or not isinstance(value, torch.Tensor) else _arguments(node, row, value)
        if row is None or arguments is None:
            continue
        seed = _drawn(graph, node, value)
        places = {n: _Place(k) for k, n in enumerate(_nodes_of(arguments))}
        node.meta[MARK] = node.target, *_with(places.get, (node.args, node.kwargs))
        node.target, node.args, node.kwargs = row.operation, (*arguments, seed), {}


def remove_seeds(graph: fx.Graph) -> None:
    """Makes each call with a seed what it was, where nothing else reads the seed."""
    for node in [n for n in graph.nodes if MARK in n.meta]:
        *arguments, seed = node.args
        if set(seed.users) == {node}:
            nodes = _nodes_of(tuple(arguments))
            target, args, kwargs = node.meta.pop(MARK)
            restored = lambda x, nodes=nodes: nodes[x.position] if isinstance(x, _Place) else x
            node.target = target
            node.args, node.kwargs = fx.node.map_aggregate((args, kwargs), restored)
            graph.erase_node(seed)


def draws(node: fx.Node) -> bool:
    """Whether a call is random, or would be outside of a region: where no region needs it, torch draws for it."""
    return MARK in node.meta or is_random(node)


def _nodes_of(arguments: tuple) -> list[fx.Node]:
    """The nodes among arguments, in order, and as often as they occur."""
    found: list[fx.Node] = []
    fx.map_arg(arguments, found.append)
    return found


def _with(place: Callable[[fx.Node], _Place | None], arguments: tuple) -> Argument:
    """The arguments with places instead of nodes."""
    return fx.node.map_aggregate(arguments, lambda x: place(x) if isinstance(x, fx.Node) else x)


def _arguments(node: fx.Node, row: SeededCall, value: torch.Tensor) -> tuple | None:
    """The arguments of the form with a seed; None where the call has none."""
    by_name = {"training" if name == "train" else name: given for name, given in node.kwargs.items()}
    given = {**row.parameters, **dict(zip(row.parameters, node.args)), **by_name}
    known = given.keys() == row.parameters.keys() and not any(x is REQUIRED for x in given.values())
    if not known or len(node.args) > len(row.parameters) or not (row.in_dynamo or is_aten(node)):
        return None
    return row.arguments(given, value)


def _drawn(graph: fx.Graph, node: fx.Node, value: torch.Tensor) -> fx.Node:
    """A node that draws a seed in front of a call, in the spelling of ATen graphs or of Dynamo's."""
    keywords = {"dtype": torch.int64, "device": value.device}
    target = torch.ops.aten.randint.low if is_aten(node) else torch.randint
    with graph.inserting_before(node):
        seed = graph.call_function(target, (0, END_OF_SEEDS, [SEED_NUMBERS]), keywords)
    seed.meta = {name: node.meta[name] for name in KEPT_META if name in node.meta}
    drawn = value.detach().new_empty((SEED_NUMBERS,), dtype=torch.int64)
    seed.meta |= {name: drawn for name in VALUE_META if name in node.meta}
    return seed


# The calls ------------------------------------------------------------------------------------------------------------


def _is_share(p: object) -> bool:
    """Whether a probability is a number that drops something."""
    return isinstance(p, int | float) and 0 < p <= 1


def _of_dropout(given: Given, value: torch.Tensor) -> tuple | None:
    active = given["training"] is True and _is_share(given["p"])
    return (given["input"], float(given["p"])) if active and value.is_floating_point() else None


def _of_attention(given: Given, value: torch.Tensor) -> tuple | None:
    scale = given["scale"]
    if not _is_share(given["dropout_p"]) or not (scale is None or isinstance(scale, int | float)):
        return None
    names = ("query", "key", "value", "attn_mask", "dropout_p", "is_causal", "scale", "enable_gqa")
    return tuple(given[name] for name in names)


def _of_numbers(given: Given, value: torch.Tensor) -> tuple | None:
    """Of ATen, where dropout is made of random numbers. In Dynamo's graphs they are the user's own, so they stay."""
    return (list(given["size"]),) if value.dtype == torch.float32 and value.layout == torch.strided else None


_WITH_SEED = torch.ops.onepass
_DROPOUT = {"input": REQUIRED, "p": 0.5, "training": True, "inplace": False}
_ATTENTION = {"query": REQUIRED, "key": REQUIRED, "value": REQUIRED, "attn_mask": None, "dropout_p": 0.0}
_ATTENTION |= {"is_causal": False, "scale": None, "enable_gqa": False}
_NUMBERS = {"size": REQUIRED, "dtype": None, "layout": None, "device": None, "pin_memory": None}
CALLS = {
    "dropout": SeededCall(_WITH_SEED.dropout.default, _DROPOUT, _of_dropout),
    "scaled_dot_product_attention": SeededCall(
        _WITH_SEED.scaled_dot_product_attention.default, _ATTENTION, _of_attention
    ),
    "rand": SeededCall(_WITH_SEED.uniform_numbers.default, _NUMBERS, _of_numbers, in_dynamo=False),
}
