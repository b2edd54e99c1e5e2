"""Finds the parts of a graph that are worth a kernel: two contractions with pointwise code and reductions between them,
or one contraction of which nothing but reductions is read.

A region ends in its sink, the later contraction, or in its reductions. It owns the nodes between, and copies cheap
nodes in front of it. A region that must stay has a refusal, which says why. Examples: q @ k.mT, softmax, @ v; the
log-sum-exp of x @ w.T. No value of the graph changes.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import dataclass, replace
from itertools import permutations

from torch import fx

from .. import messages
from ..errors import Refusal
from ..graph.nodes import where_of
from ..graph.op_kinds import Trait, changes_in_place, gives_positions, has_trait, name_of
from ..graph.random_calls import draws
from ..graph.survey import Nodes, Survey, bodies, reduced, shape, survey
from .copies import with_cheap_inputs
from .exchanges import starts_earlier
from .grow import Growth, grow, records_gradient, with_positions, without_cycles
from .missed import interruption, missed_fusion, written_out_sums
from .refusals import outputs_refusal, refusal_to_move, refused_at
from .region import Region


@dataclass
class _Draft:
    """Contractions that belong together, before it is known how far their region reaches. `ends` are the sinks.

    A product of which only reductions are read has no sink; it is its own anchor.
    """

    owned: set[fx.Node]
    ends: list[fx.Node]
    product: fx.Node | None = None

    @property
    def anchor(self) -> fx.Node:
        return self.product or self.ends[0]


def find_regions(graph: fx.Graph, known: Survey | None = None) -> list[Region]:
    """All regions, in graph order. Regions that are refused are listed too, with the reason.

    known: the survey of the graph, where there is one.
    """
    s = known or survey(graph)
    sinks = [n for n in reversed(s.order) if s.kind[n] in ("contraction", "attention")]
    drafts = _drafts(sinks, s)
    drafts += _drafts_of_one(sinks, s, frozenset().union(*(draft.owned for draft in drafts)))
    claimed = frozenset().union(*(draft.owned for draft in drafts))
    grown = [_grown(draft, s, claimed - draft.owned) for draft in drafts]
    merged = _merged([region for region in grown if region is not None], s)
    regions = [replace(r, refusal=refusal_to_move(r, s) or r.refusal) for r in merged]
    claimed = claimed.union(*(r.owned for r in regions))
    refused = [*_unmatched(sinks, claimed, s), *_in_called_graphs(s)]
    return _in_graph_order([*regions, *refused], s)


def _in_graph_order(regions: list[Region], s: Survey) -> list[Region]:
    return sorted(regions, key=lambda r: s.place[r.output])


def _unmatched(sinks: list[fx.Node], claimed: Nodes, s: Survey) -> Iterator[Region]:
    """Refused regions for contractions that are in no draft or region, where something can be said about them."""
    for reason, ends in ((interruption, [*sinks, *written_out_sums(s)]), (missed_fusion, sinks)):
        for sink in (n for n in ends if n not in claimed):
            if (refusal := reason(sink, s)) is not None:
                yield refused_at(sink, refusal)


def _in_called_graphs(s: Survey) -> Iterator[Region]:
    """Refused regions for what is inside the graphs that a higher-order operation calls, where nothing is replaced.

    A graph that a checkpoint runs has regions of its own.
    """
    for call in (n for n in s.order if not has_trait(n, Trait.RUNS_A_GRAPH)):
        for region in (region for body in bodies(call) for region in find_regions(body)):
            where = where_of(region.anchor) or where_of(call)
            inside = Refusal(messages.HIGHER_ORDER, where, call=name_of(call))
            yield refused_at(call, region.refusal or inside)


# Drafts: which contractions belong together ---------------------------------------------------------------------------


def _drafts(sinks: list[fx.Node], s: Survey) -> list[_Draft]:
    """Pairs with a reduction between the contractions come first; they may claim a contraction from other pairs."""
    drafts: list[_Draft] = []
    for with_reduction in (True, False):
        for sink in sinks:
            if not any(sink in draft.owned for draft in drafts):
                _add_draft(sink, s, with_reduction, drafts)
    return drafts


def _add_draft(sink: fx.Node, s: Survey, with_reduction: bool, drafts: list[_Draft]) -> None:
    """Adds the draft that ends in the sink, or adds the sink to the draft with which it shares a contraction."""
    owned = _draft_nodes(sink, s, with_reduction)
    if not owned:
        return
    met = [draft for draft in drafts if draft.owned & owned]
    if not met:
        drafts.append(_Draft(owned, [sink]))
    elif len(met) == 1 and (with_reduction or _share_weights(met[0].owned & owned, s)):
        whole = _Draft(met[0].owned | owned, [*met[0].ends, sink])
        if grow(whole.owned, whole.ends, s, frozenset()).cycle is None:
            drafts[drafts.index(met[0])] = whole


def _draft_nodes(sink: fx.Node, s: Survey, with_reduction: bool) -> set[fx.Node]:
    """The nodes of the draft that ends in the sink; empty if there is none."""
    if s.kind[sink] == "attention":
        return {sink} if with_reduction else set()
    behind_contractions = s.reduced if with_reduction else s.plain
    operands = [n for n in sink.all_input_nodes if behind_contractions[n]]
    if not operands or (not with_reduction and _looks_like_layers(sink, operands, s)):
        return set()
    return without_cycles(with_positions(_between(sink, operands, s), s), sink, s)


def _drafts_of_one(sinks: list[fx.Node], s: Survey, claimed: Nodes) -> Iterator[_Draft]:
    """Products in no other draft of which only reductions are read, such as log-sum-exps.

    Of two products that are added up, one has the sum's reductions, and reads the other.
    """
    taken = set(claimed)
    found = (reduced(sink, s) for sink in sinks if sink not in claimed and s.kind[sink] == "contraction")
    for one in found:
        if one is not None and taken.isdisjoint(one.nodes):
            taken |= one.nodes
            yield _Draft({*one.nodes}, [], one.product)


def _share_weights(shared: Collection[fx.Node], s: Survey) -> bool:
    """Whether two products share weights that are made of scores, and not only the scores themselves."""
    return any(s.kind[n] == "pointwise" and s.plain[n] for n in shared)


def _looks_like_layers(sink: fx.Node, operands: list[fx.Node], s: Survey) -> bool:
    """Matrices without a batch and a nonlinearity between them: two layers of a network rather than attention."""
    if len(shape(sink) or ()) > 2:
        return False
    return any(s.kind[n] == "pointwise" for n in _between(sink, operands, s) - {sink})


def _between(sink: fx.Node, operands: list[fx.Node], s: Survey) -> set[fx.Node]:
    """The sink, the contractions that feed it, and the nodes between."""
    owned, waiting = {sink}, list(operands)
    while waiting:
        node = waiting.pop()
        if node in owned or not (s.plain[node] or s.reduced[node]):
            continue
        owned.add(node)
        if s.kind[node] != "contraction":
            waiting.extend(node.all_input_nodes)
    return owned


# From a draft to a region ---------------------------------------------------------------------------------------------


def _grown(draft: _Draft, s: Survey, taken: Nodes) -> Region | None:
    """The draft with the nodes behind it, the cheap nodes in front of it, and casts and splits of axes of its result.

    None if nobody uses what it computes.
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
    region = with_cheap_inputs(growth.owned.union(behind), outputs, draft.anchor, s)
    return replace(region, refusal=outputs_refusal(growth, region, s), one_product=draft.product is not None)


def _views_behind(node: fx.Node, s: Survey) -> Iterator[fx.Node]:
    """The casts and views behind a result, each the only user of the one before; behind a position none."""
    while len(node.users) == 1 and not gives_positions(node):
        node = next(iter(node.users))
        if s.kind[node] not in ("cast", "view") or changes_in_place(node) or shape(node) is None:
            return
        yield node


def _keeps_rows(node: fx.Node, anchor: fx.Node) -> bool:
    """Whether the last two axes are those of the contraction: at most a flattened batch got its axes back."""
    old, new = shape(anchor) or (), shape(node)
    return new[-2:] == old[-2:] and len(new) >= len(old) and new.count(1) <= old.count(1)


# Two regions whose results meet ---------------------------------------------------------------------------------------


def _merged(regions: list[Region], s: Survey) -> list[Region]:
    """The regions in graph order. Some that read a common tensor, and whose results meet in pointwise code, are one."""
    regions = _in_graph_order(regions, s)
    for first, second in ((a, b) for k, b in enumerate(regions) for a in regions[:k]):
        others = [r for r in regions if r is not first and r is not second]
        if (found := _union((first, second), others, s)) is not None:
            whole, apart = found
            return _merged([*apart, whole], s)
    return regions


def _union(some: tuple[Region, ...], others: list[Region], s: Survey) -> tuple[Region, list[Region]] | None:
    """One region of some, with the code in which their results meet, and the regions that are not in it.

    Others whose results meet there, too, are in it, if they can be: states of many sets of keys are merged by one
    kernel. Not where a gradient is recorded: a merge has none of its own. None if it has no advantage or cannot be.
    """
    owned = _owned(some)
    growth = _growth_of(some, owned, others, s)
    if growth is None:
        return None
    meeting = _read_by(growth.owned - owned, others, s)
    if meeting and not any(map(records_gradient, growth.outputs)):
        apart = [r for r in others if r not in meeting]
        if (wider := _union((*some, *meeting), apart, s)) is not None:
            return wider
    anchor = max((r.anchor for r in some), key=s.place.__getitem__)
    whole = with_cheap_inputs(growth.owned, growth.outputs, anchor, s)
    whole = replace(whole, one_product=all(r.one_product for r in some))
    return None if refusal_to_move(whole, s) is not None else (whole, others)


def _growth_of(some: tuple[Region, ...], owned: Nodes, others: list[Region], s: Survey) -> Growth | None:
    """The nodes of some regions with those in which their results meet; None if they are no one region."""
    if any(r.refusal for r in some) or not set.intersection(*(set(r.inputs) for r in some)):
        return None
    if starts_earlier(some, s):
        return None
    ends = [n for r in some for n in r.outputs]
    growth = grow(owned, ends, s, _owned(others))
    if len(growth.outputs) >= len(ends) or growth.wide or growth.cycle:
        return None
    new = growth.owned - owned
    unfit = any(map(draws, new)) or any(_reads_result(a, b, new) for a, b in permutations(some, 2))
    return None if unfit else growth


def _owned(regions: Collection[Region]) -> Nodes:
    return frozenset().union(*(r.owned for r in regions))


def _read_by(nodes: Collection[fx.Node], regions: list[Region], s: Survey) -> list[Region]:
    """The regions of which the nodes read a result, or a view of one."""
    read = {i for n in nodes for i in n.all_input_nodes}
    waiting = [n for n in read if s.kind[n] == "view"]
    while waiting:
        fresh = {*waiting.pop().all_input_nodes} - read
        read |= fresh
        waiting += [n for n in fresh if s.kind[n] == "view"]
    return [r for r in regions if not read.isdisjoint(r.outputs)]


def _reads_result(reader: Region, made: Region, new: Collection[fx.Node]) -> bool:
    """Whether a region reads a result of the other one, or what the new nodes make."""
    return any(n in new or n in made.outputs for n in reader.inputs)
