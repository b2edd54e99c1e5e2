"""The tensors that masks read, in the one call that `explain` makes: for the pictures of masks in a report's page.

They are computed from the graph's inputs before the graph runs, by the operations that lead to them. Nothing is taken
where that would draw random numbers, repeat much, or read what the graph writes. Example: the documents' numbers that
the caller gave, or `lengths.cumsum(0)`.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import replace

import torch
from torch import fx

from ..graph.mutations import writes
from ..graph.op_kinds import changes_in_place
from ..graph.random_calls import draws
from ..report.records import RegionReport, Report

log = logging.getLogger(__name__)
MAX_NODES = 64  # operations that are run for it


def wanted(report: Report) -> frozenset[str]:
    """Names of the graph's values that masks of the report's regions read."""
    return frozenset(name for region in report.regions if region.data for name in region.data.inputs.values())


def taking(gm: fx.GraphModule, names: Collection[str]) -> Callable[[Sequence], dict[str, torch.Tensor]]:
    """A function that gives the values with these names, as far as they can be had, from the graph's arguments."""
    nodes = [node for node in gm.graph.nodes if node.name in names]
    known = [node for node in nodes if _can_be_had(gm.graph, _leading_to(node))]
    module = _computing(gm, known)

    def take(arguments: Sequence) -> dict[str, torch.Tensor]:
        try:
            with torch.no_grad():
                found = module(*arguments)
        except Exception as error:  # of the user's operations: the graph itself, which runs next, says it
            log.debug("onepass: what masks read is not known: %s", error)
            return {}
        return {n.name: x.detach() for n, x in zip(known, found, strict=True) if isinstance(x, torch.Tensor)}

    return take


def with_tensors(report: Report, values: Mapping[str, torch.Tensor]) -> Report:
    """The report whose regions have the tensors that their masks read. values: by the graph's names."""
    return replace(report, regions=tuple(_with_tensors(region, values) for region in report.regions))


def _with_tensors(region: RegionReport, values: Mapping[str, torch.Tensor]) -> RegionReport:
    if region.data is None:
        return region
    mine = {name: values[value] for name, value in region.data.inputs.items() if value in values}
    return replace(region, data=replace(region.data, tensors=mine))


def _leading_to(node: fx.Node) -> set[fx.Node]:
    """The node and all that it is computed from."""
    found, waiting = set(), [node]
    while waiting:
        one = waiting.pop()
        if one not in found:
            found.add(one)
            waiting.extend(one.all_input_nodes)
    return found


def _can_be_had(graph: fx.Graph, nodes: set[fx.Node]) -> bool:
    written = {target for node in graph.nodes if changes_in_place(node) for target in writes(node)}
    return len(nodes) <= MAX_NODES and not any(draws(node) for node in nodes) and nodes.isdisjoint(written)


def _computing(gm: fx.GraphModule, results: Iterable[fx.Node]) -> fx.GraphModule:
    """A module that takes the graph's arguments and gives these values."""
    results = [*results]
    needed = set().union(*map(_leading_to, results))
    graph = fx.Graph()
    copied: dict[fx.Node, fx.Node] = {}
    for node in gm.graph.nodes:
        if node.op == "placeholder" or node in needed:
            copied[node] = graph.node_copy(node, copied.__getitem__)
    graph.output(tuple(copied[node] for node in results))
    return fx.GraphModule(gm, graph)
