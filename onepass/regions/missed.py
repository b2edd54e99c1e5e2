"""Why a product that reads what a reduction made is in no region: what the reduction reads is no product's result.

Says what that is and where it stands: an input, a layer, an operation without terms. Nothing is decided here.
"""

from __future__ import annotations

from collections.abc import Iterable
from math import prod

import torch
from torch import fx

from ..errors import Refusal
from ..graph.nodes import value_of_node, where_of
from ..graph.op_kinds import INTERIOR, name_of, operation_named
from ..graph.survey import Survey, hinted, shape

GIVEN = ("placeholder", "get_attr")
ONE_MATRIX = "a product of a batch of rows with one matrix, which is taken for a layer"
PAIR = "a region is two products with the reduction between them"


def unfused(sink: fx.Node, s: Survey) -> Refusal | None:
    """Why the reduction in front of the sink is not fused with it; None if there is none, or a product before it."""
    operands = [n for n in sink.all_input_nodes if shape(n) is not None]
    if any(s.reduced[n] or s.broken[n][1] for n in operands):
        return None
    reduction = next(filter(None, (_reduction(n, s) for n in operands)), None)
    if reduction is None:
        return None
    borders = [n for n in _behind(reduction.all_input_nodes, s) if s.kind[n] not in (*INTERIOR, "creation")]
    tensors = [n for n in borders if shape(n) is not None]
    if not tensors:
        return None
    source = max(tensors, key=lambda n: (_elements(n), n.op not in GIVEN))
    folded = _folded(reduction, s) if source.op in GIVEN else None
    reason = f"what {name_of(reduction)} reduces {_origin(source, s) if folded is None else _other_fold(folded)}"
    return Refusal(reason, where_of(reduction) or where_of(sink), "no product before")


def _folded(reduction: fx.Node, s: Survey) -> fx.Node | None:
    """A reduction that makes of more elements what this one reduces."""
    (scores,) = reduction.all_input_nodes[:1]
    behind = (n for n in _behind([scores], s) if s.kind[n] == "reduction")
    return next((n for n in behind if _elements(n.all_input_nodes[0]) > _elements(scores)), None)


def _reduction(operand: fx.Node, s: Survey) -> fx.Node | None:
    """The last reduction before the operand; None where what is reduced is gone: a sum of keys is no weights."""
    found = next((n for n in _behind([operand], s) if s.kind[n] == "reduction"), None)
    return None if found is None or _elements(found.all_input_nodes[0]) > _elements(operand) else found


def _elements(node: fx.Node) -> int:
    return prod(hinted(value_of_node(node)))


def _behind(nodes: Iterable[fx.Node], s: Survey) -> Iterable[fx.Node]:
    """The nodes and what they are made from, nearest first, as far as nodes between products go."""
    waiting, seen = list(nodes), set()
    for node in waiting:
        if node not in seen:
            seen.add(node)
            yield node
            if s.kind[node] in INTERIOR:
                waiting += node.all_input_nodes


def _place(node: fx.Node) -> str:
    return f" at {where_of(node)}" if where_of(node) else ""


def _other_fold(fold: fx.Node) -> str:
    return f"comes from {name_of(fold)}{_place(fold)}, which is no sum of products: {PAIR}"


def _origin(source: fx.Node, s: Survey) -> str:
    place = _place(source)
    if source.op in GIVEN:
        called = source.name.removeprefix("l_").strip("_")
        kind = "a parameter" if isinstance(value_of_node(source), torch.nn.Parameter) else "an input of this graph"
        return f"is {called}, {kind}, and no product's result: {PAIR}"
    if s.kind[source] == "layer":
        weights = any(isinstance(value_of_node(n), torch.nn.Parameter) for n in source.all_input_nodes)
        what = "a product with weights" if weights or operation_named(name_of(source)).kind == "layer" else ONE_MATRIX
        return f"comes from {name_of(source)}{place}, {what}: layers are left to torch, and {PAIR}"
    if s.kind[source] == "attention":
        return f"comes from {name_of(source)}{place}, which is a region of its own"
    called = name_of(source) or str(source.target)
    return f"comes from {called}{place}, which onepass has no terms for: {PAIR}"
