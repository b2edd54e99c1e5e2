"""Grows a region behind its contractions, and finds its outputs: the values that are used outside.

It takes in the nodes behind a value if that leaves fewer outputs, or fewer that still have the summed axis. A grown
region is convex: no path leaves it and comes back. Example: the division by a sum of weights. No node changes.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from torch import fx

from ..graph.nodes import value_of_node
from ..graph.op_kinds import INTERIOR, changes_in_place, gives_positions, is_call_of, is_extremum, name_of
from ..graph.random_calls import draws
from ..graph.reduced_products import narrows
from ..graph.survey import Nodes, Survey, shape

MAX_NODES_BEHIND_A_DRAFT = 160  # How far, in graph order, growing looks at nodes behind the draft.


@dataclass(frozen=True)
class Growth:
    """`owned` with what was taken in; `outputs` in graph order; `wide` outputs still have the summed axis.

    `cycle` is a node outside on a path that leaves the region and comes back into it.
    """

    owned: Nodes
    outputs: tuple[fx.Node, ...]
    wide: tuple[fx.Node, ...]
    cycle: fx.Node | None = None


def grow(owned: Iterable[fx.Node], ends: Iterable[fx.Node], s: Survey, taken: Nodes) -> Growth:
    """The smallest growth with the fewest wide outputs, then the fewest outputs, then the least work left outside.

    `ends` are the contractions that sum over the wide axis. `taken` nodes belong to others.
    """
    scan = _Scan(set(owned), set(ends), s)
    best, kept = scan.price(), 0
    first, last = min(map(s.place.get, owned)), max(map(s.place.get, owned))
    for node in s.order[first:]:
        if s.place[node] > last and (best[:3] == (0, 0, 1) or s.place[node] > last + MAX_NODES_BEHIND_A_DRAFT):
            break
        if scan.visit(node, taken) and (price := scan.price()) < best:
            best, kept = price, len(scan.added)
    inside = set(owned).union(scan.added[:kept])
    outputs = tuple(sorted(_used_outside(inside), key=s.place.__getitem__))
    wide = tuple(n for n in outputs if n in scan.wide)
    return Growth(frozenset(inside), outputs, wide, scan.cycle)


def with_positions(owned: set[fx.Node], s: Survey) -> set[fx.Node]:
    """The nodes, with the positions of extrema that are read outside for what is read inside, and what is made of them.

    Example: weights, of which each row has a one added at the position of its largest one.
    """
    found = _nodes_on_cycles(owned, s)
    known = all(s.kind[n] in INTERIOR and not changes_in_place(n) and not draws(n) for n in found)
    return owned | found if known else owned


def without_cycles(owned: set[fx.Node], end: fx.Node, s: Survey) -> set[fx.Node]:
    """The nodes, without those from which a path leads outside and back in: these become inputs.

    Example: a mask that keeps the largest of a gate's scores leaves the scores outside. All nodes stay if no product
    would be left before the end, or if nothing is gained.
    """
    rest = set(owned)
    while cycle := _nodes_on_cycles(rest, s):
        read, waiting = set(), [*cycle]
        for node in waiting:
            fresh = [n for n in node.all_input_nodes if n not in read]
            read.update(fresh)
            waiting += fresh
        rest -= read
    products = {n for n in rest if s.kind[n] in ("contraction", "attention")} - {end}
    gained = len(rest) < len(owned) and products and grow(owned, [end], s, frozenset()).cycle is not None
    return rest if gained else owned


def _nodes_on_cycles(inside: set[fx.Node], s: Survey) -> set[fx.Node]:
    """The nodes outside that depend on a node inside, and on which a node inside depends."""
    places = [s.place[n] for n in inside]
    between = s.order[min(places) : max(places) + 1] if places else []
    behind, before = set(inside), set(inside)
    for node in between:
        behind |= set() if behind.isdisjoint(node.all_input_nodes) else {node}
    for node in reversed(between):
        before |= set() if before.isdisjoint(node.users) else {node}
    return (behind & before) - inside


def awaited(nodes: Iterable[fx.Node], s: Survey) -> Nodes:
    """The ends of exchanges between ranks that some nodes wait for."""
    return frozenset().union(*(s.awaited.get(n, frozenset()) for n in nodes)) if s.awaited else frozenset()


class _Scan:
    """One walk in graph order. `blocked` nodes depend on the region but stay outside; `wide` has wide values inside."""

    def __init__(self, inside: set[fx.Node], ends: set[fx.Node], s: Survey):
        self.inside, self.ends, self.s = inside, ends, s
        self.awaited = awaited(inside, s)
        self.blocked: set[fx.Node] = set()
        self.added: list[fx.Node] = []
        self.cycle: fx.Node | None = None
        self.wide: set[fx.Node] = set()
        for node in sorted(inside, key=s.place.__getitem__):
            self._measure(node)

    def _measure(self, node: fx.Node) -> None:
        kind = self.s.kind[node]
        narrow = node in self.ends or narrows(node, kind)
        wide = kind == "contraction" or stacked_axis(node) is not None or self.wide.intersection(node.all_input_nodes)
        if not narrow and wide:
            self.wide.add(node)

    def visit(self, node: fx.Node, taken: Nodes) -> bool:
        """Takes the node in if that is possible; whether it was."""
        inputs = node.all_input_nodes
        stopped = next((n for n in inputs if n in self.blocked), None)
        if node in self.inside:
            self.cycle = self.cycle or stopped
            return False
        if stopped is None and not self.inside.intersection(inputs):
            return False
        if stopped is not None or node in taken or not self._fits(node):
            self.blocked.add(node)
            return False
        self.inside.add(node)
        self.added.append(node)
        self._measure(node)
        return True

    def _fits(self, node: fx.Node) -> bool:
        kind = self.s.kind[node]
        if changes_in_place(node) or self.s.scope[node] or draws(node):
            return False
        if not awaited([node], self.s) <= self.awaited:
            return False  # the region starts before that exchange has ended
        if shape(node) is None and not isinstance(value_of_node(node), tuple | list):  # max(x, -1) gives two
            return False
        if any(gives_positions(n) for n in self.inside.intersection(node.all_input_nodes)):
            return False  # a position stays a result
        if _is_recorded_extremum(node):
            return False  # its derivative asks which element it is; that of the scores is known
        if kind == "reduction":
            return bool(self.wide.intersection(node.all_input_nodes)) and self._same_axis(node)
        if kind == "join" and stacked_axis(node) is None:
            return not self._joins_several(node)
        return kind in ("pointwise", "cast", "view") or stacked_axis(node) is not None

    def _joins_several(self, node: fx.Node) -> bool:
        """Whether the node puts results of several sums side by side: one kernel would compute each for all rows."""
        return len(self.ends) > 1 and len(self.inside.intersection(node.all_input_nodes)) > 1

    def _same_axis(self, node: fx.Node) -> bool:
        """Whether the node reduces only the axis of the region's own reductions or of a stack, or the last one."""
        own = {axis_of(n) for n in self.inside if self.s.kind[n] == "reduction"} | {-1}
        return axis_of(node) in (own | {*map(stacked_axis, self.inside)}) - {None}

    def price(self) -> tuple[int, int, int, int]:
        """Lists that are used outside, wide outputs, outputs, and minus the work on wide values that is inside.

        The smallest price is the best. A list is no result of a kernel, but its items are.
        """
        used = _used_outside(self.inside)
        lists = sum(isinstance(value_of_node(n), tuple | list) for n in used)
        wide = used & self.wide
        work_inside = [n for n in self.wide if self.s.kind[n] in ("pointwise", "reduction")] if wide else []
        return lists, len(wide), len(used), -len(work_inside)


def _is_recorded_extremum(node: fx.Node) -> bool:
    """Whether the node is a largest or least element that has a gradient."""
    return is_extremum(node) and records_gradient(node)


def records_gradient(node: fx.Node) -> bool:
    """Whether the node's value, or its first one, has a gradient."""
    value = value_of_node(node)
    value = value[0] if isinstance(value, tuple | list) and value else value
    return getattr(value, "requires_grad", False)


def _used_outside(inside: set[fx.Node]) -> set[fx.Node]:
    return {n for n in inside if not inside.issuperset(n.users)}


def stacked_axis(node: fx.Node) -> int | None:
    """The axis of a stack, counted from the last (-1); None for other nodes, and where a gradient is recorded.

    So is the axis of tensors that are joined along an axis of one place, or of other stacks, as are those of
    cat([x[None], y[None]]) and of cat([stack([x, y]), z[None]]).
    Merged states have no derivative of their own, and the states apart have one.
    """
    if not (name_of(node) == "stack" or is_call_of(node, "cat")) or shape(node) is None or records_gradient(node):
        return None
    dim = node.kwargs.get("dim", node.args[1] if len(node.args) > 1 else 0)
    dim = dim if dim < 0 else dim - len(shape(node))
    is_place = lambda part: shape(part)[dim] == 1 or stacked_axis(part) == dim
    return dim if name_of(node) == "stack" or all(map(is_place, node.all_input_nodes)) else None


def axis_of(node: fx.Node) -> int | None:
    """The one axis that a reduction reduces, counted from the last (-1); None for several axes or all."""
    dim = node.kwargs.get("dim", node.kwargs.get("axis", node.args[1] if len(node.args) > 1 else None))
    if isinstance(dim, tuple | list) and len(dim) == 1:
        (dim,) = dim
    source = value_of_node(node.all_input_nodes[0])
    if not isinstance(dim, int) or isinstance(dim, bool) or not hasattr(source, "dim"):
        return None
    return dim if dim < 0 else dim - source.dim()
