"""What runs while ranks exchange tensors, in a graph with functional collectives.

An exchange starts by one call, and another call waits for its result. Two regions are not joined if one can start while
the other still waits for an exchange. Exchanges start as early, and are waited for as late, as the graph allows.
Invariant: the same calls on the same values, in an order that is the same on all ranks. Example: in a ring
written by hand, the kernel for a rank's own keys runs while the next keys arrive.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator
from itertools import pairwise, permutations

from torch import fx

from ..graph.op_kinds import changes_in_place, kind_of, starts_exchange, waits_for_exchange
from ..graph.survey import Nodes, Survey
from .grow import awaited
from .region import Region


def starts_earlier(some: Collection[Region], s: Survey) -> bool:
    """Whether one of the regions waits for exchanges that another one need not wait for, and for no others."""
    return any(one < other for one, other in permutations([awaited(r.owned, s) for r in some], 2))


def overlap_exchanges(graph: fx.Graph) -> None:
    """Moves the starts of exchanges up, with the views that they read, and the waits down.

    Nothing moves past a call that writes into a tensor or has another effect.
    """
    nodes = list(graph.nodes)
    if not any(map(starts_exchange, nodes)):
        return
    order: list[fx.Node] = []
    for stretch in _stretches(nodes):
        order += _Order(stretch, {*order}).found
    for before, node in pairwise(order):
        before.append(node)


def _stretches(nodes: Iterable[fx.Node]) -> Iterator[list[fx.Node]]:
    """The nodes between those that nothing moves past, and each of these alone."""
    stretch: list[fx.Node] = []
    for node in nodes:
        if _has_effect(node):
            yield from (stretch, [node])
            stretch = []
        else:
            stretch.append(node)
    yield stretch


def _has_effect(node: fx.Node) -> bool:
    if node.op in ("placeholder", "output"):
        return True
    if starts_exchange(node) or waits_for_exchange(node):
        return False
    level = "functorch" in getattr(node.target, "__module__", "")  # where a vmap or a derivative begins or ends
    return changes_in_place(node) or level or node.is_impure()


class _Order:
    """A new order of some nodes, behind those that are `done`."""

    def __init__(self, nodes: list[fx.Node], done: set[fx.Node]):
        self.found: list[fx.Node] = []
        self._done = done
        self._inside: Nodes = frozenset(nodes)
        self._starts = [n for n in nodes if starts_exchange(n)]
        for node in nodes:
            if not waits_for_exchange(node):
                self._place(node)
        for node in nodes:
            self._place(node)

    def _place(self, node: fx.Node) -> None:
        """The node, behind what it needs, and behind the exchanges that can start by then."""
        if node in self._done:
            return
        for needed in node.all_input_nodes:
            self._place(needed)
        while self._starts and self._starts[0] is not node and self._is_ready(self._starts[0]):
            self._append(self._starts.pop(0))
        self._append(node)

    def _is_ready(self, node: fx.Node) -> bool:
        """Whether nothing but views is missing for the node."""
        if node in self._done:
            return True
        missing = [n for n in node.all_input_nodes if n not in self._done]
        return all(n in self._inside and kind_of(n) == "view" and self._is_ready(n) for n in missing)

    def _append(self, node: fx.Node) -> None:
        if node not in self._done:
            for needed in node.all_input_nodes:
                self._append(needed)
            self._done.add(node)
            self.found.append(node)
