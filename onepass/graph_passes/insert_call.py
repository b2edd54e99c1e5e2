"""Inserts the call of a region into its graph, and erases the nodes that it replaces.

What the call needs and comes later in the graph moves up in front of it. Only the region's own nodes are erased: fx
would take an in-place operation whose result is unused for dead code.
"""

from __future__ import annotations

import operator
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, field, replace

import torch
from torch import fx

from .. import messages
from ..compiler.compiled_region import Fused
from ..compiler.options import Options
from ..errors import Refusal
from ..graph.grad_modes import recording, records
from ..graph.nodes import VALUE_META, value_of_node, where_of
from ..graph.survey import Survey, source_name
from ..regions.placement import first_user, needed_after
from ..regions.region import Region
from ..runtime import operator as _operator  # noqa: F401  (registers the operation)
from .output_strides import strided_value

ORIGIN_META = ("stack_trace", "from_node", "nn_module_stack", "source_fn_stack")
RESULT_META = (*VALUE_META, "tensor_meta", *ORIGIN_META)


@dataclass
class CallInserter:
    """Inserts calls into one graph, from the last region to the first.

    survey: of the graph as it was. inside: what the names of the graph's own values begin with. results: for each
    output of a replaced region the node that gives it now; it may be an input of an earlier region.
    """

    graph: fx.Graph
    options: Options
    survey: Survey
    inside: str = ""
    results: dict[fx.Node, fx.Node] = field(default_factory=dict)

    def insert(
        self, region: Region, answer: Fused, insertion_point: fx.Node, written: Collection[fx.Node] = ()
    ) -> None:
        """Inserts the region's call where a result is used first, or at the insertion point if that comes before.

        written: results that the graph writes into, which are copied first: a backward reads what the call gave.
        Raises Refusal.
        """
        region = replace(region, inputs=tuple(self.results.get(n, n) for n in region.inputs))
        tensors = [n for n in region.inputs if isinstance(value_of_node(n), torch.Tensor)]
        sizes = [_size_node(self.graph, symbol, region) for symbol in answer.free_symbols]
        before = self._move_up(region, (*region.inputs, *sizes), insertion_point)
        with self.graph.inserting_before(before):
            arguments = (tensors, answer.text, sizes, self._source_names(tensors))
            call = self.graph.call_function(self._operation(region), arguments)
            results = [self.graph.call_function(operator.getitem, (call, k)) for k in range(len(region.outputs))]
            copies = [
                self.graph.call_method("clone", (r,)) if old in written else r
                for old, r in zip(region.outputs, results)
            ]
        call.meta = _call_meta(region)
        for old, given, result in zip(region.outputs, results, copies, strict=True):
            given.meta = _result_meta(old)
            result.meta = dict(given.meta)
            old.replace_all_uses_with(result)
            self.results[old] = result
        for node in reversed(region.nodes):
            if not node.users:
                self.graph.erase_node(node)

    def _operation(self, region: Region) -> torch._ops.OpOverload:
        """The operation, or the one that looks for tangents in every call, where the graph opens a level of them."""
        is_dual = any(self.survey.duals[node] for node in region.nodes)
        return torch.ops.onepass.region.dual if is_dual else torch.ops.onepass.region.default

    def _move_up(self, region: Region, needed: Iterable[fx.Node], insertion_point: fx.Node) -> fx.Node:
        """The node in front of which the call goes; what is needed there is moved there. Raises Refusal.

        Calls of other regions may use this one's results earlier than its own nodes were used.
        """
        place = {node: k for k, node in enumerate(self.graph.nodes)}
        first = min((first_user(region, place), insertion_point), key=lambda node: place.get(node, len(place)))
        moving = needed_after(needed, first, place)
        recorded = recording(place) if self.survey.switched else {}
        if recorded and not recorded[first] and records((*moving, *region.outputs), recorded):
            raise Refusal(messages.FIRST_USE_WITHOUT_GRADIENTS, where_of(region.anchor))
        for node in moving:
            first.prepend(node)
        return first

    def _source_names(self, tensors: Sequence[fx.Node]) -> str:
        """What the tensors are, for each one.

        Inductor may write one value into the memory of another and counts no version then, except for what comes from
        outside. Empty where eager runs the calls, because eager counts versions.
        """
        if self.options.inner == "eager":
            return ""
        return ",".join(source_name(n, self.inside) for n in tensors)


def _call_meta(region: Region) -> dict[str, object]:
    """Where the region is from, and the list of its values if every output has one."""
    meta = {name: value for name, value in region.output.meta.items() if name in ORIGIN_META}
    for name in VALUE_META:
        values = [old.meta[name] for old in region.outputs if name in old.meta]
        if len(values) == len(region.outputs):
            meta[name] = values
    return meta


def _result_meta(output: fx.Node) -> dict[str, object]:
    """The output's own, with a value that has the strides of the kernel's result."""
    meta = {name: output.meta[name] for name in RESULT_META if name in output.meta}
    return meta | {name: strided_value(output) for name in VALUE_META if name in output.meta}


def _size_node(graph: fx.Graph, symbol: str, region: Region) -> fx.Node:
    """A node in front of the region's result whose value is the symbolic size. Raises Refusal."""
    for node in graph.nodes:
        if node is region.output:
            break
        value = value_of_node(node)
        if isinstance(value, torch.SymInt) and str(value.node.expr) == symbol:
            return node
    if any(isinstance(v := value_of_node(n), torch.SymFloat) and symbol in str(v.node.expr) for n in graph.nodes):
        raise Refusal(messages.FLOAT_AT_RUN_TIME, where_of(region.anchor))
    raise Refusal(messages.NO_METADATA, where_of(region.anchor), name=symbol)
