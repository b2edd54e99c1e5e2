"""Where a region's call may stand among a graph's writes in place: it reads all at once what the region read in turn.

A place is right if no write lies between it and any node of the region that reads what is written, and gradients are
recorded there if they are for anything that is computed there; what comes later and is needed moves up to it. No node
changes.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from torch import fx

from ..graph.grad_modes import records
from ..graph.mutations import writes
from ..graph.op_kinds import changes_in_place, draws, only_looks
from ..graph.survey import Survey, root, shape, storages

if TYPE_CHECKING:
    from .region import Region

Pairs = set[tuple[fx.Node, fx.Node]]


@dataclass(frozen=True)
class Standing:
    """A call stands in front of `place`; `obstacle` forbids that, as no place would be right."""

    place: fx.Node
    obstacle: fx.Node | None = None


def standing(region: Region, s: Survey) -> Standing:
    """The call's place is its first user; else the first write in the way, or the switch that ends what is recorded.

    An obstacle is a write that would still lie between, or the place itself where no gradients are recorded before.
    """
    place = first_user(region, s.place)
    writes = list(_between(region, s, s.place[place])) if s.in_place else []
    place = min(writes, key=s.place.__getitem__, default=place)
    if not s.recorded[place] and records((*region.outputs, *_moving(region, s, s.place[place])), s.recorded):
        switch = next((n for n in reversed(s.order[: s.place[place]]) if s.recorded[n]), None)
        if switch is None:
            return Standing(place, place)
        place = switch
    left = next(_between(region, s, s.place[place]), None) if s.in_place else None
    return Standing(place, left and (*writes, left)[0])


def overwriting_saved(region: Region, s: Survey, place: fx.Node) -> fx.Node | None:
    """A write behind the call into an input, which a backward pass will read after that; it reads all inputs."""
    if not s.in_place or not records(region.outputs, s.recorded):
        return None
    saved = set().union(*(_memory(n, s) for n in region.inputs))
    later = (n for n in s.in_place if s.place[n] >= s.place[place])
    return next((n for n in later if not saved.isdisjoint(_touched(n, s))), None)


def first_user(region: Region, place: dict[fx.Node, int]) -> fx.Node:
    """The first that uses a result outside; the main result where that comes before."""
    inside = set(region.nodes)
    users = [u for old in region.outputs for u in old.users if u not in inside]
    return min((*users, region.output), key=place.__getitem__)


def late(needed: Iterable[fx.Node], first: fx.Node, place: dict[fx.Node, int]) -> list[fx.Node]:
    """What comes behind a place of what is needed there, in order: it has to move up."""
    found, waiting = set(), list(needed)
    while waiting:
        node = waiting.pop()
        if place[node] > place[first] and node not in found:
            found.add(node)
            waiting.extend(node.all_input_nodes)
    return sorted(found, key=place.__getitem__)


def _between(region: Region, s: Survey, place: int) -> Iterator[fx.Node]:
    """The writes between the place and the readers of what they write; what would move up and writes itself."""
    moving = _moving(region, s, place)
    yield from (node for node in moving if changes_in_place(node))
    for reader in (*region.nodes, *moving):
        yield from overwriting(reader, place, s)


def _moving(region: Region, s: Survey, place: int) -> list[fx.Node]:
    return late(region.inputs, s.order[place], s.place)


def overwriting(reader: fx.Node, place: int, s: Survey) -> Iterator[fx.Node]:
    """Writes between the node and in front of a place into memory that it reads or makes; a view reads nothing yet."""
    between = list(_crossed(reader, place, s))
    if between:
        used = set().union(*(_memory(n, s) for n in (reader, *reader.all_input_nodes)))
        yield from (n for n in between if not used.isdisjoint(_touched(n, s)))


def _crossed(reader: fx.Node, place: int, s: Survey) -> Iterator[fx.Node]:
    low, high = sorted((place, s.place[reader]))
    if not only_looks(reader):
        yield from (n for n in s.in_place if low <= s.place[n] < high and n is not reader)


def kept_apart(region: Region, s: Survey, stands: fx.Node) -> Pairs:
    """Pairs of the graph's inputs that must not share memory: one is written between where the other is read and the
    call. They did not when the graph was traced, but the next call may give a view of one as the other.
    """
    found: Pairs = set()
    if not s.in_place:
        return found
    place = s.place[stands]
    for reader in (*region.nodes, *_moving(region, s, place)):
        for write in _crossed(reader, place, s):
            into = {root(target, s) for target in writes(write)}
            read = {root(n, s) for n in reader.all_input_nodes} - into
            pairs = ((a, b) for a in into for b in read if shape(b) is not None)
            found |= {(a, b) for a, b in pairs if {a.op, b.op} == {"placeholder"}}
    return found


def overtaken(region: Region, s: Survey, stands: fx.Node) -> fx.Node | None:
    """What draws random numbers in front of something that does too and would move up past it."""
    moving = _moving(region, s, s.place[stands])
    last = max((s.place[n] for n in moving if draws(n)), default=-1)
    between = s.order[s.place[stands] : max(last, 0)]
    return next((n for n in between if n not in moving and draws(n)), None)


def _memory(node: fx.Node, s: Survey) -> set:
    """Equal members of two nodes' sets: they may share memory, as a cache and a view of it that are both inputs do."""
    return {root(node, s), *storages(node)}


def _touched(node: fx.Node, s: Survey) -> set:
    """The memory that the operation writes into."""
    return set().union(*(_memory(target, s) for target in writes(node)))
