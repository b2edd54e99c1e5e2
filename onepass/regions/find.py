"""Finds the parts of a graph worth deriving a kernel for: two contractions with pointwise code and reductions between.

A region ends in its sink, the later contraction; it owns the nodes between and copies what is cheap in front of it. A
region that must stay says why in `refusal`. No value of the graph changes here.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass, replace
from math import prod

import torch
from torch import fx

from ..errors import Refusal
from ..graph.nodes import value_of_node, where_of
from ..graph.op_kinds import Trait, changes_in_place, draws, has_trait, name_of, reshapes_in_place
from ..graph.survey import Nodes, Survey, bodies, first_unknown_call, hinted, in_order, is_lookup, root, shape, survey
from .grow import Growth, grow, opened
from .missed import unfused
from .placement import InsertionPoint, conflicting_writes, insertion_point, write_into_saved_input
from .region import Region


@dataclass
class _Draft:
    """Contractions that belong together, before it is known how far their region reaches."""

    owned: set[fx.Node]
    ends: list[fx.Node]


def find_regions(graph: fx.Graph) -> list[Region]:
    """All regions, in graph order. Regions that are refused are listed too, with the reason."""
    s = survey(graph)
    drafts: list[_Draft] = []
    sinks = [n for n in reversed(s.order) if s.kind[n] in ("contraction", "attention")]
    for with_reduction in (True, False):
        for sink in sinks:
            _draft(sink, s, with_reduction, drafts)
    claimed = frozenset().union(*(draft.owned for draft in drafts))
    regions = [_grown(draft, s, claimed - draft.owned) for draft in drafts]
    regions = _joined(sorted(filter(None, regions), key=lambda r: s.place[r.output]), s)
    regions = [replace(r, refusal=objection(r, s) or r.refusal) for r in regions]
    alone = [sink for sink in sinks if sink not in claimed]
    regions += [_interrupted(sink, s) for sink in alone if _interruption(sink, s)]
    regions += [refused_at(sink, why) for sink in alone if (why := unfused(sink, s))]
    regions += [r for call in s.order for body in bodies(call) for r in _called(call, body)]
    return sorted(regions, key=lambda r: s.place[r.output])


def _draft(sink: fx.Node, s: Survey, with_reduction: bool, drafts: list[_Draft]) -> None:
    """Adds the draft that ends in the sink, or the sink to the draft that it shares a contraction with."""
    if any(sink in draft.owned for draft in drafts):
        return
    if s.kind[sink] == "attention":
        drafts.extend([_Draft({sink}, [sink])] if with_reduction else [])
        return
    carried = s.reduced if with_reduction else s.plain
    operands = [n for n in sink.all_input_nodes if carried[n]]
    if not operands or (not with_reduction and _looks_like_layers(sink, operands, s)):
        return
    owned = opened(_between(sink, operands, s), sink, s)
    met = [draft for draft in drafts if draft.owned & owned]
    if not met:
        drafts.append(_Draft(owned, [sink]))
    elif len(met) == 1 and (with_reduction or _weights(met[0].owned & owned, s)):
        whole = _Draft(met[0].owned | owned, [*met[0].ends, sink])
        if grow(whole.owned, whole.ends, s, frozenset()).circle is None:
            drafts[drafts.index(met[0])] = whole


def _weights(shared: Collection[fx.Node], s: Survey) -> bool:
    """Whether products share what is made of scores, and not a product alone."""
    return any(s.kind[n] == "pointwise" and s.plain[n] for n in shared)


def _looks_like_layers(sink: fx.Node, operands: list[fx.Node], s: Survey) -> bool:
    """Matrices without a batch and a nonlinearity between them: two layers of a network rather than attention."""
    if len(shape(sink) or ()) > 2:
        return False
    return any(s.kind[n] == "pointwise" for n in _between(sink, operands, s) - {sink})


def _between(sink: fx.Node, operands: list[fx.Node], s: Survey) -> set[fx.Node]:
    """The sink, the contractions that feed it, and the nodes on the way."""
    owned, waiting = {sink}, list(operands)
    while waiting:
        node = waiting.pop()
        if node in owned or not (s.plain[node] or s.reduced[node]):
            continue
        owned.add(node)
        if s.kind[node] != "contraction":
            waiting.extend(node.all_input_nodes)
    return owned


def _grown(draft: _Draft, s: Survey, taken: Nodes) -> Region | None:
    """The draft with what meets behind it, the cheap nodes in front, and the casts and splits of axes behind.

    None where nobody uses what it computes.
    """
    growth = grow(draft.owned, draft.ends, s, taken)
    if not growth.outputs:
        return None
    main = next((n for n in draft.ends if n in growth.outputs), growth.outputs[-1])
    chain, output = [], main
    for node in _views_behind(main, s):
        chain.append(node)
        if _keeps_rows(node, main):
            output = node
    behind = chain[: chain.index(output) + 1] if output is not main else []
    outputs = (output, *(n for n in growth.outputs if n is not main))
    region = _completed(growth.owned.union(behind), outputs, draft.ends[0], s)
    return replace(region, refusal=_unwanted(growth, region, s))


def _unwanted(growth: Growth, region: Region, s: Survey) -> Refusal | None:
    """Why the values that are used outside cannot be results of one kernel's region."""
    if len(growth.outputs) == 1 and not growth.wide and growth.circle is None:
        return None
    node = growth.circle or next(iter(growth.wide), region.outputs[-1])
    users = (u for n in (growth.outputs if growth.circle else (node,)) for u in n.users if u not in growth.owned)
    user = growth.circle or next(users, node)
    said = f" at {where_of(user)}" if where_of(user) else ""
    also = "returned" if user.op == "output" else f"used by {name_of(user) or user.op}{said}"
    made = root(node, s)  # a cast or a view tells nobody what it is of
    reason = f"the result of {name_of(made if name_of(made) else node)} is also {also}"
    refusal = Refusal(reason, where_of(node) or where_of(region.anchor), "used outside")
    if growth.circle is not None:
        reader = first_unknown_call(user, growth.owned, s)
        said = f" at {where_of(reader)}" if where_of(reader) else ""
        reason = f"{name_of(reader) or reader.op}{said} reads what the region computes and gives what it needs"
        return Refusal(reason, refusal.where, refusal.kind)
    if growth.wide and not _worth_twice(growth, s):
        said = f"{reason}: written it is anyway, and to compute it again would save no more than to read it costs"
        return Refusal(said, refusal.where, refusal.kind)
    floating = all(value_of_node(n).is_floating_point() for n in region.outputs)
    shared = len({root(n, s) for n in region.outputs}) < len(region.outputs)  # a write into one would be in both
    return None if floating and not (shared and s.in_place) else refusal


def _worth_twice(growth: Growth, s: Survey) -> bool:
    """Whether a kernel of both products, beside one that writes what is between, saves more than it reads again.

    With a reduction between, it does; else calls on the way read and write all of it, and operands should be smaller.
    """
    if any(s.kind[n] == "reduction" for n in growth.owned):
        return True
    sizes = {shape(n) for n in growth.wide}
    calls = [n for n in growth.owned if s.kind[n] == "pointwise" and shape(n) in sizes and not _is_scalar_multiple(n)]
    operands = {i for n in growth.wide for product in s.plain[n] for i in _tensor_inputs(product)}
    elements = lambda nodes: sum(prod(hinted(value_of_node(n))) for n in nodes)
    return bool(calls) and elements(operands) <= elements(growth.wide)


def _views_behind(node: fx.Node, s: Survey) -> Iterator[fx.Node]:
    """The casts and views that alone use the result, one after another."""
    while len(node.users) == 1:
        node = next(iter(node.users))
        if s.kind[node] not in ("cast", "view") or changes_in_place(node) or shape(node) is None:
            return
        yield node


def _keeps_rows(node: fx.Node, anchor: fx.Node) -> bool:
    """The last two axes are those of the contraction: a flattened batch got its axes back, or nothing moved."""
    old, new = shape(anchor) or (), shape(node)
    return new[-2:] == old[-2:] and len(new) >= len(old) and new.count(1) <= old.count(1)


def _completed(owned: Nodes, outputs: tuple[fx.Node, ...], anchor: fx.Node, s: Survey) -> Region:
    nodes, waiting = set(owned), [i for n in owned for i in n.all_input_nodes]
    end = max(map(s.place.get, outputs))
    while waiting:
        node = waiting.pop()
        if node in nodes or any(conflicting_writes(node, end, s)):  # of the latter the value is an input
            continue
        if _is_cheap(node, s) and (s.kind[node] != "join" or nodes.issuperset(node.users)):
            nodes.add(node)
            waiting.extend(node.all_input_nodes)
    nodes -= {n for n in nodes - owned if nodes.isdisjoint(n.all_input_nodes) and _splits_rows(n)}
    return Region(*in_order(nodes, s), outputs, anchor, frozenset(owned))


def _splits_rows(node: fx.Node) -> bool:
    """Gives flattened rows of a batch their axes back: in front it costs nothing, and a tensor says where each ends."""
    if not has_trait(node, Trait.SPLITS_AXES):
        return False
    old, new = shape(node.all_input_nodes[0]), shape(node)
    return None not in (old, new) and len(old) == 2 < len(new) and old[-1] == new[-1]


def without_joins(region: Region, s: Survey) -> tuple[Region, list[fx.Node]]:
    """The region with what is joined in front of it as inputs, and these."""
    joins = {n for n in region.nodes if s.kind[n] == "join" and n not in region.owned}
    kept = {*region.nodes} - joins
    while loose := {n for n in kept - region.owned if kept.isdisjoint(n.users)}:
        kept -= loose
    nodes, inputs = in_order(kept, s)
    return replace(region, nodes=nodes, inputs=inputs), [n for n in inputs if n in joins]


def widened(region: Region, more: Iterable[fx.Node], s: Survey, **changes) -> Region:
    """The region with more nodes as its own copies."""
    nodes, inputs = in_order({*region.nodes, *more}, s)
    return replace(region, nodes=nodes, inputs=inputs, **changes)


def _is_cheap(node: fx.Node, s: Survey) -> bool:
    """May be computed again inside of the region: views, casts, multiples by a number, masks."""
    kind = s.kind[node]
    if kind == "other" or name_of(node) == "embedding":
        return is_lookup(node, s)
    if kind in ("contraction", "attention", "reduction", "layer", "mixture") or changes_in_place(node):
        return False
    if kind == "join":
        return not all(_is_one_wide(n, node) for n in _tensor_inputs(node))
    if kind in ("view", "cast", "creation"):
        return kind == "creation" or _is_tensor_or_parts(node)
    return s.free[node] or _is_predicate(node, s) or _is_scalar_multiple(node)


def _is_scalar_multiple(node: fx.Node) -> bool:
    tensors = _tensor_inputs(node) if has_trait(node, Trait.SCALES) else []
    return len(tensors) == 1 and shape(node) == shape(tensors[0])


def _is_predicate(node: fx.Node, s: Survey) -> bool:
    """Truth values of one mask besides what is free: made anew in each call, they would hide that it is unchanged.

    A mask of all rows and columns is of four bytes at most, which each head reads where no map does.
    """
    own = shape(node)
    if own is None or s.kind[node] != "pointwise" or value_of_node(node).dtype != torch.bool:
        return False
    masks = [n for n in _tensor_inputs(node) if shape(n) == own and not s.free[n]]
    narrow = 1 in own[-2:] or len(own) < 2
    return len(masks) == 1 and (narrow or value_of_node(masks[0]).element_size() <= 4)


def _is_one_wide(part: fx.Node, join: fx.Node) -> bool:
    """One element beside another, as in a stack: not an axis that goes on in another tensor."""
    own, whole = shape(part), shape(join)
    return len(own) == len(whole) and all(a == b or a == 1 for a, b in zip(own, whole, strict=True)) and own != whole


def _is_tensor_or_parts(node: fx.Node) -> bool:
    value = value_of_node(node)
    return isinstance(value, torch.Tensor) or (isinstance(value, tuple | list) and len(value) > 0)


def _tensor_inputs(node: fx.Node) -> list[fx.Node]:
    return [n for n in node.all_input_nodes if shape(n) is not None]


# Two regions whose results meet ---------------------------------------------------------------------------------------


def _joined(regions: list[Region], s: Survey) -> list[Region]:
    """Regions that read a tensor in common and whose results are combined point by point become one."""
    for first, second in ((a, b) for k, b in enumerate(regions) for a in regions[:k]):
        if first.refusal or second.refusal or not set(first.inputs) & set(second.inputs):
            continue
        rest = [r for r in regions if r is not first and r is not second]
        ends = (*first.outputs, *second.outputs)
        growth = grow(first.owned | second.owned, ends, s, frozenset().union(*(r.owned for r in rest)))
        new = growth.owned - first.owned - second.owned
        chained = new.union(first.outputs) & {*second.inputs} or new.union(second.outputs) & {*first.inputs}
        if chained or any(map(draws, new)) or len(growth.outputs) >= len(ends) or growth.wide or growth.circle:
            continue
        whole = _completed(growth.owned, growth.outputs, second.anchor, s)
        if objection(whole, s) is not None:
            continue
        return _joined(sorted([*rest, whole], key=lambda r: s.place[r.output]), s)
    return regions


# Why a region must stay -----------------------------------------------------------------------------------------------


def objection(region: Region, s: Survey) -> Refusal | None:
    """A scope or a write in place that forbids to compute the region elsewhere than where it stands."""
    where = where_of(region.anchor)
    scope = next((s.scope[n] for n in region.nodes if s.scope[n]), "")
    if scope:
        reason = f"the region is under {scope}: what the graph says of its values is not what runs"
        reason += "; autocast around the whole call is captured" if scope == "autocast" else ""
        return Refusal(reason, where, scope.rpartition(" ")[2])
    own = next((n for n in region.nodes if changes_in_place(n)), None) or _moved(region, s)
    if own is not None:
        return Refusal(f"{name_of(own)} changes a tensor of the region in place", where_of(own) or where, "in-place")
    return _misplaced(insertion_point(region, s), region, s)


def _misplaced(point: InsertionPoint, region: Region, s: Survey) -> Refusal | None:
    """Why no place is right for the region's call, or the one place not for its backward pass."""
    node, saved = point.obstacle, write_into_saved_input(region, s, point.before)
    if node is not None and not changes_in_place(node):
        reason = f"{name_of(node) or node.op} reads the region where no gradients are recorded, and another result is"
        return Refusal(f"{reason} made where they are", where_of(node) or where_of(region.anchor), "no_grad")
    if node is not None:
        reason = f"the region reads what {name_of(node)} changes in place, and also what is there only behind it"
        own = _target(node, region) in region.owned
        reason += "; written as a choice (torch.where, masked_fill) it could be fused" if own else ""
    elif saved is not None:
        reason = f"{name_of(saved)} changes in place what the region's backward pass would read again"
    else:
        return None
    return Refusal(reason, where_of(node or saved) or where_of(region.anchor), "in-place")


def _target(write: fx.Node, region: Region) -> fx.Node:
    """What is written to: a value of the region, or where views of it began."""
    while write not in region.owned and write.args and isinstance(write.args[0], fx.Node):
        write = write.args[0]
    return write


def _moved(region: Region, s: Survey) -> fx.Node | None:
    """An operation that gives a tensor of the region another shape in place: the graph has one shape for both."""
    known = {id(value_of_node(n)) for n in (*region.inputs, *region.nodes)}
    return next((n for n in s.in_place if reshapes_in_place(n) and id(value_of_node(n)) in known), None)


def _interruption(sink: fx.Node, s: Survey) -> fx.Node | None:
    """The unknown operation between a contraction and the sink: on a way with a reduction first, else on any, where
    it is none that stands between the layers of other networks too.
    """
    reduced, plain = ([s.broken[n][kind] for n in sink.all_input_nodes] for kind in (True, False))
    return next((n for n in [*reduced, *plain] if n and (n in reduced or not has_trait(n, Trait.ORDINARY))), None)


def _interrupted(sink: fx.Node, s: Survey) -> Region:
    unknown = _interruption(sink, s)
    reason = f"{name_of(unknown) or unknown.target} stands between two contractions, and no kernel is derived for it"
    return refused_at(sink, Refusal(reason, where_of(unknown) or where_of(sink), "unknown operation"))


def _called(call: fx.Node, body: fx.Graph) -> Iterator[Region]:
    """The regions in what a higher-order operation calls: nothing in there is replaced."""
    for region in find_regions(body):
        where = where_of(region.anchor) or where_of(call)
        reason = f"the region is inside of what {name_of(call)} calls"
        yield refused_at(call, region.refusal or Refusal(reason, where, "higher-order"))


def refused_at(node: fx.Node, refusal: Refusal) -> Region:
    """Nothing but a node that stays, and why."""
    return Region((node,), tuple(node.all_input_nodes), (node,), node, frozenset((node,)), refusal)


# What others need of a region -----------------------------------------------------------------------------------------
