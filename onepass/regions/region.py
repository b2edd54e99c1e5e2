"""A region of a graph as a record, and its signature, by which equal regions share one search and one plan.

Two regions are equal if they make the same calls on inputs of the same shapes, strides, dtypes and devices. Names and
places in the graph do not count. Example: the 32 equal layers of a model have one signature.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from dataclasses import dataclass

import torch
from torch import fx

from .. import messages
from ..errors import Refusal
from ..graph.nodes import size_of, value_of_node, where_of
from ..graph.op_kinds import is_aten
from ..graph.program import Program
from ..graph.survey import Nodes
from ..graph.trace import from_aten_graph, trace
from ..graph.value_names import NAME, name_for_readers


def signature(region: Region) -> str:
    """A digest that is the same for equal regions. Refused regions are equal if their reasons are."""
    if region.refusal is not None:  # Its nodes may have changed since, when an earlier region was replaced.
        return hashlib.sha256(repr((region.refusal.kind, str(region.refusal))).encode()).hexdigest()
    place = {node: k for k, node in enumerate((*region.inputs, *region.nodes))}
    parts = [[place[n] for n in region.outputs], [_kind(value_of_node(n)) for n in region.inputs]]
    parts += [[n.op, str(n.target), _plain(n.args, place), _plain(n.kwargs, place)] for n in region.nodes]
    return hashlib.sha256(repr(parts).encode()).hexdigest()


def _plain(value, place: dict[fx.Node, int]):
    if isinstance(value, fx.Node):
        return ("node", place[value])
    if isinstance(value, tuple | list):
        return [_plain(v, place) for v in value]
    if isinstance(value, dict):
        return sorted((k, _plain(v, place)) for k, v in value.items())
    if isinstance(value, slice):
        return ["slice", *(_plain(v, place) for v in (value.start, value.stop, value.step))]
    return (type(value).__name__, str(value))


def _kind(value):
    if not isinstance(value, torch.Tensor):
        return str(value)
    return str(value.dtype), str(value.device), _texts(value.shape), _texts(value.stride())


def _texts(sizes: Iterable) -> tuple[str, ...]:
    return tuple(str(size_of(s)) for s in sizes)


@dataclass(frozen=True)
class Region:
    """`nodes` in graph order; `inputs` come from outside; `outputs` are used outside, the main one first.

    `owned` nodes belong to this region alone, and only the outputs among them are used outside; the other nodes are
    copies. `anchor` is the contraction that names the region in reports. `refusal` says why the region must stay.
    `one_product`: nothing but reductions of its product is read, and no second product.
    """

    nodes: tuple[fx.Node, ...]
    inputs: tuple[fx.Node, ...]
    outputs: tuple[fx.Node, ...]
    anchor: fx.Node
    owned: Nodes
    refusal: Refusal | None = None
    one_product: bool = False

    @property
    def output(self) -> fx.Node:
        """The main output."""
        return self.outputs[0]

    def program(self) -> Program:
        """The region as data: traced from Dynamo's graph, or read from an ATen graph. Raises Refusal."""
        if self.refusal is not None:
            raise self.refusal
        for node in self.inputs:
            if value_of_node(node) is None:
                raise Refusal(messages.NO_METADATA, where_of(self.anchor), name=name_for_readers(node))
        if all(map(is_aten, self.nodes)):
            return from_aten_graph(self.nodes, self.inputs, self.outputs)
        return trace(region_module(self), [value_of_node(n) for n in self.inputs])


def region_module(region: Region) -> fx.GraphModule:
    """The region as a module of its own. It takes the inputs in order, and returns a tuple of the outputs."""
    graph = fx.Graph()
    copied: dict[fx.Node, fx.Node] = {}
    for node in region.inputs:
        copied[node] = graph.placeholder(node.name)
        copied[node].meta = {**node.meta, NAME: name_for_readers(node)}
    for node in region.nodes:
        copied[node] = graph.node_copy(node, copied.__getitem__)
    graph.output(tuple(copied[n] for n in region.outputs))
    return fx.GraphModule({}, graph)
