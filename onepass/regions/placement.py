"""Chooses where to insert the fused call. No in-place write to an input may lie between the call and any original read.

Gradients must be recorded there if they are for anything that is computed there. What the call needs and comes later
moves up to it. Example: `x.add_(1)` behind the scores and before the sum forces the call in front of it, or forbids it.
No node changes.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from torch import fx

from ..graph.grad_modes import records
from ..graph.mutations import writes
from ..graph.op_kinds import changes_in_place, shares_memory
from ..graph.random_calls import draws
from ..graph.survey import Survey, root, shape, storages
from .region import Region

InputPairs = set[tuple[fx.Node, fx.Node]]


@dataclass(frozen=True)
class InsertionPoint:
    """The call goes in front of the node `before`. If there is an `obstacle`, no place in the graph is right."""

    before: fx.Node
    obstacle: fx.Node | None = None


def insertion_point(region: Region, s: Survey) -> InsertionPoint:
    """The first user of a result, the first write that the call must precede, or the end of what records gradients.

    The obstacle is a write that would still lie between, or the point itself if no gradients are recorded before it.
    """
    before = first_user(region, s.place)
    conflicts = list(_all_conflicts(region, s, s.place[before])) if s.in_place else []
    before = min(conflicts, key=s.place.__getitem__, default=before)
    if not s.recorded[before] and records((*region.outputs, *_moving(region, s, before)), s.recorded):
        switch = next((n for n in reversed(s.order[: s.place[before]]) if s.recorded[n]), None)
        if switch is None:
            return InsertionPoint(before, before)
        before = switch
    left = next(_all_conflicts(region, s, s.place[before]), None) if s.in_place else None
    return InsertionPoint(before, left and (*conflicts, left)[0])


def write_into_saved_input(region: Region, s: Survey, before: fx.Node) -> fx.Node | None:
    """A write behind the call into an input, all of which the backward pass reads again; None if there is none."""
    if not s.in_place or not records(region.outputs, s.recorded):
        return None
    saved = set().union(*(_memory(n, s) for n in region.inputs))
    later = (n for n in s.in_place if s.place[n] >= s.place[before])
    return next((n for n in later if not saved.isdisjoint(_written_memory(n, s))), None)


def written_results(region: Region, s: Survey) -> list[fx.Node]:
    """The region's results that an operation of the graph writes into, where a backward pass may read them again."""
    if not s.in_place or not records(region.outputs, s.recorded):
        return []
    written = set().union(*(_written_memory(n, s) for n in s.in_place if n not in region.nodes))
    return [old for old in region.outputs if not written.isdisjoint(_memory(old, s))]


def first_user(region: Region, place: dict[fx.Node, int]) -> fx.Node:
    """The first outside user of a result, or the main result if that comes before. `place`: numbers in graph order."""
    inside = set(region.nodes)
    users = [u for old in region.outputs for u in old.users if u not in inside]
    return min((*users, region.output), key=place.__getitem__)


def needed_after(needed: Iterable[fx.Node], before: fx.Node, place: dict[fx.Node, int]) -> list[fx.Node]:
    """Of what is needed in front of a node, and of what that needs: the nodes that come later, in graph order."""
    found, waiting = set(), list(needed)
    while waiting:
        node = waiting.pop()
        if place[node] > place[before] and node not in found:
            found.add(node)
            waiting.extend(node.all_input_nodes)
    return sorted(found, key=place.__getitem__)


def _all_conflicts(region: Region, s: Survey, place: int) -> Iterator[fx.Node]:
    """Writes between the place and the readers of what they write, and writes that would have to move up."""
    moving = _moving(region, s, s.order[place])
    yield from (node for node in moving if changes_in_place(node))
    for reader in (*region.nodes, *moving):
        yield from conflicting_writes(reader, place, s)


def _moving(region: Region, s: Survey, before: fx.Node) -> list[fx.Node]:
    return needed_after(region.inputs, before, s.place)


def conflicting_writes(reader: fx.Node, place: int, s: Survey) -> Iterator[fx.Node]:
    """Writes between the node and a place in the graph into memory that the node reads or makes."""
    between = list(_writes_between(reader, place, s))
    if between:
        used = set().union(*(_memory(n, s) for n in (reader, *reader.all_input_nodes)))
        yield from (n for n in between if not used.isdisjoint(_written_memory(n, s)))


def _writes_between(reader: fx.Node, place: int, s: Survey) -> Iterator[fx.Node]:
    """All writes between the node and the place. A view reads nothing yet, so none matters to it."""
    low, high = sorted((place, s.place[reader]))
    if not shares_memory(reader):
        yield from (n for n in s.in_place if low <= s.place[n] < high and n is not reader)


def must_not_alias(region: Region, s: Survey, before: fx.Node) -> InputPairs:
    """Pairs (written, read) of the graph's inputs that must not share memory if the call is inserted there.

    One is written between the call and an original read of the other. They did not share memory when the graph was
    traced, but the next call may pass a view of one as the other.
    """
    found: InputPairs = set()
    if not s.in_place:
        return found
    for reader in (*region.nodes, *_moving(region, s, before)):
        for write in _writes_between(reader, s.place[before], s):
            written = {root(target, s) for target in writes(write)}
            read = {root(n, s) for n in reader.all_input_nodes} - written
            pairs = ((a, b) for a in written for b in read if shape(b) is not None)
            found |= {(a, b) for a, b in pairs if {a.op, b.op} == {"placeholder"}}
    return found


def overtaken_random_node(region: Region, s: Survey, before: fx.Node) -> fx.Node | None:
    """A random operation that another one, which moves up to the call, would overtake; None if there is none."""
    moving = _moving(region, s, before)
    last = max((s.place[n] for n in moving if draws(n)), default=-1)
    between = s.order[s.place[before] : max(last, 0)]
    return next((n for n in between if n not in moving and n not in region.nodes and draws(n)), None)


def _memory(node: fx.Node, s: Survey) -> set:
    """What stands for the node's memory. Nodes whose sets meet may share memory, as a cache and a view of it do."""
    return {root(node, s), *storages(node)}


def _written_memory(node: fx.Node, s: Survey) -> set:
    """What stands for the memory that the operation writes into."""
    return set().union(*(_memory(target, s) for target in writes(node)))
