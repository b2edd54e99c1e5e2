"""Producers: what a kernel computes while it loads, namely pointwise code, views and short reductions before an input.

A producer is fused where that pays. A kernel computes what belongs to its rows once per row tile, and what belongs to
its loop again for each row tile. Example: rotating the queries is fused, rotating long keys is not. No node changes.
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass, replace
from math import prod

import torch
from torch import fx

from ..compiler.compiled_region import TracedRegion
from ..egraph.derivation import ledger
from ..egraph.derivation.normalize import Normaliser
from ..egraph.terms.term import Term
from ..egraph.terms.traversal import subterms
from ..errors import OnepassError
from ..graph.nodes import value_of_node, where_of
from ..graph.op_kinds import Trait, changes_in_place, has_trait, kind_of, name_of
from ..graph.random_calls import draws
from ..graph.survey import Nodes, Survey, gathered, shape
from ..graph.value_names import name_for_readers
from ..lowering.plan.device import CPU, Device
from ..lowering.plan.records import Kernel, NotPlannable
from ..lowering.plan.thresholds import MAX_RESIDENT_ELEMENTS
from ..lowering.planning.planner import plan_stores
from ..regions.copies import makes_bytes, with_copies
from ..regions.grow import axis_of
from ..regions.region import Region, signature
from ..rules import NORMAL
from .compare_plans import CANNOT_BE_COMPILED, FusionContext, reason_against
from .epilogues import fused_note
from .estimates import (
    ROWS_OF_A_TILE,
    device_of,
    element_count,
    elements_processed,
    length,
    nominal_count,
    separate_kernel_seconds,
    size_hints,
)

MOVES_ONLY = ("view", "cast", "creation")
ELEMENTS_OF_A_ROW = 64  # that a position names, from which the position costs nothing beside them
# Of a GPU, measured on one H100: 39 million elements of a table of 169 took 0.87 ms.
OPERATIONS_OF_A_LOOKUP = 300


@dataclass(frozen=True)
class Producer:
    """An input of a region and the `nodes` in front of it that the region's kernel could compute itself, in order."""

    source: fx.Node
    nodes: tuple[fx.Node, ...]

    @property
    def inputs(self) -> list[fx.Node]:
        """What the nodes read from outside."""
        inside = set(self.nodes)
        return list(dict.fromkeys(i for n in self.nodes for i in n.all_input_nodes if i not in inside))

    def __str__(self) -> str:
        called = dict.fromkeys("gather" if gathered(n) else name_of(n) for n in self.nodes)
        names = ", ".join(name for name in called if name != "getitem")
        of = ", ".join(name_for_readers(i) for i in self.inputs if shape(i) is not None)
        return f"{names} of {of}" + (f" ({where_of(self.source)})" if where_of(self.source) else "")


def fuse_producers(region: Region, context: FusionContext) -> tuple[Region, list[str]]:
    """The region with the producers that pay, and a note on each producer."""
    reasons = {x: _reason(x, region, context) for x in producers(region, context.survey, context.owned)}
    chosen = [x for x, reason in reasons.items() if not reason]
    if chosen:
        device = device_of(region)
        wide = with_copies(region, (n for x in chosen for n in x.nodes), context.survey)
        saved = sum(separate_kernel_seconds(x.nodes, x.source, device) for x in chosen)
        failed = reason_against(wide, region, context, saved)
        reasons |= dict.fromkeys(chosen, failed)
        region = region if failed else wide
    return region, [f"{x}: " + (f"outside: {why}" if why else fused_note(x.source)) for x, why in reasons.items()]


# What could be computed while loading ---------------------------------------------------------------------------------


def producers(region: Region, s: Survey, taken: Nodes) -> list[Producer]:
    """The producers of the region's floating inputs, and gathers of any type. Code that only moves elements is none."""
    tensors = [n for n in region.inputs if shape(n) is not None]
    sources = (n for n in tensors if value_of_node(n).is_floating_point() or gathered(n))
    found = [Producer(n, _cone(n, s, taken)) for n in sources]
    return [x for x in found if any(s.kind[n] not in MOVES_ONLY for n in x.nodes)]


def _cone(source: fx.Node, s: Survey, taken: Nodes) -> tuple[fx.Node, ...]:
    """The nodes in front of the source that a kernel can compute, the source last; none if it cannot compute that."""
    found: list[fx.Node] = []
    inside: set[fx.Node] = set()
    wanted = {source}
    for node in reversed(s.order[: s.place[source] + 1]):
        if node in wanted and node not in taken and _is_computable(node, source, s):
            small = nominal_count(node) < nominal_count(source) and s.kind[node] != "view" and not s.free[node]
            if small and not inside.issuperset(node.users):  # A table that others read too is written anyway.
                continue
            found.append(node)
            inside.add(node)
            wanted.update(node.all_input_nodes)
    return tuple(reversed(found))


def _is_computable(node: fx.Node, source: fx.Node, s: Survey) -> bool:
    """Whether a kernel can compute the node element by element or row by row."""
    kind = s.kind[node]
    if node.op not in ("call_function", "call_method") or changes_in_place(node) or draws(node) or s.scope[node]:
        return False
    if makes_bytes(node, s):
        return False
    if kind == "reduction" or has_trait(node, Trait.NORM):
        return _is_short(node, source)
    if kind == "join" or name_of(node) == "stack":
        return True
    return kind in ("pointwise", "cast", "view") or (kind == "creation" and s.free[node]) or bool(gathered(node))


def _is_short(node: fx.Node, source: fx.Node) -> bool:
    """Whether the node reduces the last axis, which the source has too and which fits into a tile."""
    keeps_shape = has_trait(node, Trait.KEEPS_SHAPE)
    if keeps_shape and not has_trait(node, Trait.NORM):  # a softmax
        return False
    size = (shape(node.all_input_nodes[0]) or (None,))[-1]
    last = keeps_shape or axis_of(node) == -1
    return last and isinstance(size, int) and size <= MAX_RESIDENT_ELEMENTS and size in (shape(source) or ())


# What pays ------------------------------------------------------------------------------------------------------------


def _reason(producer: Producer, region: Region, context: FusionContext) -> str:
    """Why the producer is better left outside; empty if it is not."""
    if context.mode == "always":
        return ""
    if (user := _outside_user(producer.source, region)) is not None:
        at = f" at {where_of(user)}" if where_of(user) else ""
        return f"the result is also used by {name_of(user) or user.op}{at}, so it is written anyway"
    counts = _known_read_counts(region, context)
    if isinstance(counts, Exception):
        return str(counts)
    times, phrase = counts[region.inputs.index(producer.source)]
    once = _seconds_inside(producer, region, context.survey)
    apart = separate_kernel_seconds(producer.nodes, producer.source, device_of(region))
    return f"it would be computed again for {phrase}" if times > 1 and times * once > max(once, apart) else ""


def _seconds_inside(producer: Producer, region: Region, s: Survey) -> float:
    """Seconds to compute the producer once inside the region's kernel. Views and casts take none."""
    device = device_of(region)
    work = sum(_operations(n, s, device) * elements_processed(n) for n in producer.nodes)
    return work / device.pointwise_operations


def _operations(node: fx.Node, s: Survey, device: Device) -> float:
    """Operations that an element of the node takes.

    A gather of rows is index arithmetic, as a view is: each tile reads as many elements of the table as it would of a
    copy, and one position for each row of elements. If elements have positions of their own, each is looked up.
    """
    if read := gathered(node):
        short = element_count(node) < ELEMENTS_OF_A_ROW * max(map(element_count, read[1:]))
        lookup = 1 if device == CPU else OPERATIONS_OF_A_LOOKUP
        return lookup if short and not all(s.free[n] for n in read[1:]) else 0
    if s.kind[node] in ("view", "cast") or _leaves_sums(node):
        return 0
    return device.reduction_cost if s.kind[node] == "reduction" or has_trait(node, Trait.NORM) else 1


def _leaves_sums(node: fx.Node) -> bool:
    """Whether the node multiplies rows by a number each, in full precision: laws move such a factor out of a product.

    Example: a scale for each head, or for each token, of keys in one byte.
    """
    width = (shape(node) or (1,))[-1]  # a product of sizes has no shape, and no dtype
    factors = [shape(n) for n in node.all_input_nodes if shape(n) is not None]
    if width == 1 or name_of(node) not in ("mul", "div") or value_of_node(node).dtype != torch.float32:
        return False
    return any(not f or f[-1] == 1 for f in factors[1:])


def _outside_user(node: fx.Node, region: Region) -> fx.Node | None:
    """A user that is left when the region is one call; of a gather, also one that reads a view of it.

    Other code is computed again where only a view of it is used: that may cost less than to read it.
    """
    for user in node.users:
        copied = user in region.nodes and user not in region.owned and _views_a_gather(node)
        left = user if user not in region.nodes else _outside_user(user, region) if copied else None
        if left is not None:
            return left
    return None


def _views_a_gather(node: fx.Node) -> bool:
    """Whether the node is a gather, or a view of one."""
    return bool(gathered(node)) or (kind_of(node) == "view" and any(map(_views_a_gather, node.all_input_nodes[:1])))


def _known_read_counts(region: Region, context: FusionContext) -> tuple[tuple[float, str], ...] | Exception:
    """The read counts, computed once for equal regions."""
    if size_hints(region):
        with suppress(*CANNOT_BE_COMPILED):
            context.make(region)  # fixes the sizes that a kernel needs as numbers
    name = signature(region)
    if name not in context.read_counts:
        try:
            context.read_counts[name] = _read_counts(region, context.traced(region))
        except (OnepassError, NotPlannable) as error:
            context.read_counts[name] = error
    return context.read_counts[name]


def _read_counts(region: Region, traced: TracedRegion) -> tuple[tuple[float, str], ...]:
    """For every input, how often a fused kernel would compute an element of it, and a phrase for that."""
    program = traced.program
    normaliser = Normaliser(ledger.proved(NORMAL))
    stores = [replace(r, term=normaliser.normal(r.term)) for r in traced.captured.results]
    sizes, worst = size_hints(region), {entry.name: (1.0, "") for entry in program.inputs}
    tensors = [n for n in region.inputs if shape(n) is not None]
    elements = {entry.name: element_count(n) for entry, n in zip(program.inputs, tensors, strict=True)}
    for kernel in plan_stores(stores).kernels:
        for term in {t for store in kernel.stores for t in subterms(store.term)}:
            name = term.attrs[0].name if term.op == "load" else ""
            if name in worst:
                count = _read_count(term, kernel, sizes, elements[name])
                worst[name] = max(worst[name], count, key=lambda pair: pair[0])
    found = dict(zip(tensors, worst.values(), strict=True))
    return tuple(found.get(n, (1.0, "")) for n in region.inputs)


def _read_count(load: Term, kernel: Kernel, sizes: dict[str, int], elements: int) -> tuple[float, str]:
    """In how many programs of the kernel one element is read. Each row tile is a program."""
    spread = prod(length(d, sizes) for d in {*load.dims, *kernel.grid}) / elements
    times, phrases = max(spread, 1.0), [f"each of {spread:g} points of the grid"] if spread > 1 else []
    for dim in kernel.tiled:
        if dim not in load.dims:
            tiles, what = -(-length(dim, sizes) // ROWS_OF_A_TILE), "rows" if dim == kernel.rows else "columns"
            text = str(tiles) if isinstance(dim.size, int) else f"ceil({dim.size}/{ROWS_OF_A_TILE})"
            phrases, times = [f"each of the {text} tiles of {ROWS_OF_A_TILE} {what}", *phrases], times * tiles
    return times, " and ".join(phrases)
