"""Missed fusions: why two contractions, or a reduction and a product behind it, are in no region.

It names what stands between or in front: an operation without terms, an input, a layer. Example: "what softmax reduces
is mask, an input of this graph, and no product's result". Nothing is decided here.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from math import prod

import torch
from torch import fx

from .. import messages
from ..errors import Refusal
from ..graph.nodes import value_of_node, where_of
from ..graph.op_kinds import INTERIOR, Trait, has_trait, name_of, operation_named
from ..graph.survey import Survey, hinted
from ..graph.value_names import name_for_readers
from .copies import tensor_inputs
from .refusals import at_line

INPUTS = ("placeholder", "get_attr")
ONE_MATRIX = "a product of a batch of rows with one matrix, which is taken for a layer"
PAIR = "a region is two products with the reduction between them"


def interruption(sink: fx.Node, s: Survey) -> Refusal | None:
    """Names the unknown operation between a contraction and the sink; None if there is none.

    An operation on a path with a reduction comes first. On other paths, an operation does not count if it is ordinary
    between the layers of networks without attention.
    """
    reduced, plain = ([s.broken[n][kind] for n in sink.all_input_nodes] for kind in (True, False))
    found = [n for n in reduced if n] or [n for n in plain if n and not has_trait(n, Trait.ORDINARY)]
    if not found:
        return None
    unknown = found[0]
    where = where_of(unknown) or where_of(sink)
    if any(map(_is_complex, (unknown, *unknown.all_input_nodes))):
        return Refusal(messages.COMPLEX, where)
    message = messages.CHOICE_BETWEEN if has_trait(unknown, Trait.CHOOSES) else messages.UNKNOWN_BETWEEN
    return Refusal(message, where, call=name_of(unknown) or unknown.target)


def written_out_sums(s: Survey) -> Iterator[fx.Node]:
    """Products point by point that a sum follows, (weights[..., None] * values).sum(-2), with weights of fewer axes
    that an unknown operation and a reduction have made of a contraction.
    """
    for total in (n for n in s.order if name_of(n) == "sum" and isinstance(n.args[0], fx.Node)):
        product = total.args[0]
        weights = (n for n in product.all_input_nodes if s.broken[n][1] and not s.reduced[n])
        if name_of(product) in ("mul", "multiply") and any(_elements(n) < _elements(product) for n in weights):
            yield product


def _is_complex(node: fx.Node) -> bool:
    value = value_of_node(node)
    return isinstance(value, torch.Tensor) and value.is_complex()


def missed_fusion(sink: fx.Node, s: Survey) -> Refusal | None:
    """Why the reduction in front of the sink is not fused with it; None without one, or if a product is before it."""
    operands = tensor_inputs(sink)
    if any(s.reduced[n] or s.broken[n][1] for n in operands):
        return None
    reduction = next(filter(None, (_reduction_before(n, s) for n in operands)), None)
    source = _source_of(reduction, s) if reduction is not None else None
    if source is None:
        return None
    folded = _earlier_reduction(reduction, s) if source.op in INPUTS else None
    origin = _origin(source, s) if folded is None else _other_fold(folded)
    where = where_of(reduction) or where_of(sink)
    return Refusal(messages.NO_PRODUCT_BEFORE, where, call=name_of(reduction), origin=origin)


def _reduction_before(operand: fx.Node, s: Survey) -> fx.Node | None:
    """The last reduction before the operand, if it keeps the number of elements: a sum of keys is no weights."""
    found = next((n for n in _behind([operand], s) if s.kind[n] == "reduction"), None)
    return None if found is None or _elements(found.all_input_nodes[0]) > _elements(operand) else found


def _source_of(reduction: fx.Node, s: Survey) -> fx.Node | None:
    """The largest tensor that the reduced values are computed from, by nodes between products; no input if possible."""
    borders = (n for n in _behind(reduction.all_input_nodes, s) if s.kind[n] not in (*INTERIOR, "creation"))
    tensors = [n for n in borders if isinstance(value_of_node(n), torch.Tensor)]
    return max(tensors, key=lambda n: (_elements(n), n.op not in INPUTS), default=None)


def _earlier_reduction(reduction: fx.Node, s: Survey) -> fx.Node | None:
    """A reduction of more elements whose result this one reduces."""
    (scores,) = reduction.all_input_nodes[:1]
    behind = (n for n in _behind([scores], s) if s.kind[n] == "reduction")
    return next((n for n in behind if _elements(n.all_input_nodes[0]) > _elements(scores)), None)


def _elements(node: fx.Node) -> int:
    return prod(hinted(value_of_node(node)))


def _behind(nodes: Iterable[fx.Node], s: Survey) -> Iterator[fx.Node]:
    """The nodes and what they are computed from, nearest first, up to and with the first that is no INTERIOR node."""
    waiting, seen = list(nodes), set()
    for node in waiting:
        if node not in seen:
            seen.add(node)
            yield node
            if s.kind[node] in INTERIOR:
                waiting += node.all_input_nodes


def _other_fold(fold: fx.Node) -> str:
    return f"comes from {name_of(fold)}{at_line(fold)}, which is no sum of products: {PAIR}"


def _origin(source: fx.Node, s: Survey) -> str:
    """What the source is, in words."""
    place = at_line(source)
    if source.op in INPUTS:
        kind = "a parameter" if isinstance(value_of_node(source), torch.nn.Parameter) else "an input of this graph"
        return f"is {name_for_readers(source)}, {kind}, and no product's result: {PAIR}"
    if s.kind[source] == "layer":
        weights = any(isinstance(value_of_node(n), torch.nn.Parameter) for n in source.all_input_nodes)
        what = "a product with weights" if weights or operation_named(name_of(source)).kind == "layer" else ONE_MATRIX
        return f"comes from {name_of(source)}{place}, {what}: layers are left to torch, and {PAIR}"
    if s.kind[source] == "attention":
        return f"comes from {name_of(source)}{place}, which is a region of its own"
    called = name_of(source) or str(source.target)
    return f"comes from {called}{place}, which onepass has no terms for: {PAIR}"
