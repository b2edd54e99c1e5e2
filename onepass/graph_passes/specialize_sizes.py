"""Widths of rows, and numbers of heads that are mixed, which Dynamo left symbolic become numbers, under guards.

A kernel holds them whole in a tile, so it is made for them; lengths, batch and other heads stay symbolic, but one that
is cut in blocks gets a guard that they fill it. Nothing that the user marked as dynamic is fixed: that would raise.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import zip_longest

import sympy
import torch
from torch import fx
from torch.utils._sympy.functions import FloorDiv, Mod

from ..graph.nodes import value_of_node
from ..graph.op_kinds import Trait, has_trait, kind_of
from ..regions.region import Region

WIDEST = 512  # what is longer is no width of a tile


def fix_widths(region: Region, mixed: Mapping[fx.Node, Sequence[int | torch.SymInt]]) -> None:
    """Puts a guard on every symbol that is the last axis of the region's matrices and stands nowhere else in them.

    Not on the places of a table; and on what the region's mixtures sum over or make: `mixed` says it.
    """
    axes: dict[str, set[bool]] = defaultdict(set)
    known: dict[str, torch.SymInt] = {}
    for node in region.inputs:
        value = value_of_node(node)
        for axis, size in enumerate(getattr(value, "shape", ())):
            if isinstance(size, torch.SymInt):
                known[str(size.node.expr)] = size
                axes[str(size.node.expr)].add(axis == value.dim() - 1 > 0)
    for met in _met(region.nodes):
        symbols = {str(symbol) for size in met.values() for symbol in size.node.expr.free_symbols}
        if any(False in axes[symbol] for symbol in symbols):  # as long as (a part of) a length is
            for text in met:
                axes[text].add(False)
    for text, size in known.items():  # what a length is divided into is a length
        if any(False in axes[str(symbol)] for symbol in size.node.expr.free_symbols - {size.node.expr}):
            axes[text].add(False)
    for text in _looked_up(region.nodes):
        axes[text].add(False)
    summed = [size for node in region.nodes for size in mixed.get(node, ())]
    for size in (*(known[text] for text, last in axes.items() if last == {True}), *summed):
        if not isinstance(size, torch.SymInt) or size.node.expr.is_Integer or not size.node.has_hint():
            continue
        if 1 < size.node.hint <= WIDEST and not _marked(size):
            int(size)  # which guards it


def _met(nodes: Iterable[fx.Node]) -> Iterator[dict[str, torch.SymInt]]:
    """Sizes of one axis that pointwise operations show to be equal: a mask's own symbol, and s // 2 of the scores."""
    for node in nodes:
        values = [value_of_node(n) for n in node.all_input_nodes] if kind_of(node) == "pointwise" else []
        shapes = [reversed(value.shape) for value in values if isinstance(value, torch.Tensor)]
        for sizes in zip_longest(*shapes):
            met = {str(n.node.expr): n for n in sizes if isinstance(n, torch.SymInt) and not n.node.expr.is_Integer}
            if len(met) > 1:
                yield met


def _looked_up(nodes: Iterable[fx.Node]) -> Iterator[str]:
    """Sizes that are gone behind what is neither view, fold nor product: places of a table that are looked up."""
    for node in nodes:
        looked_up = kind_of(node) == "other" and not has_trait(node, Trait.NORM)
        if looked_up and isinstance(value_of_node(node), torch.Tensor):
            left = set(map(str, value_of_node(node).shape))
            shapes = [getattr(value_of_node(n), "shape", ()) for n in node.all_input_nodes]
            yield from (str(size) for shape in shapes for size in shape if str(size) not in left)


def fill_blocks(graph: fx.Graph) -> None:
    """Puts a guard on each length that c divides where a shape has s // (s // c): torch's word for blocks of c."""
    seen = set()
    for node in graph.nodes:
        for size in getattr(value_of_node(node), "shape", ()):
            if not isinstance(size, torch.SymInt) or size.node.expr in seen:
                continue
            seen.add(size.node.expr)
            for quotient in size.node.expr.atoms(FloorDiv):
                a, b = quotient.args
                if isinstance(b, FloorDiv) and b.args[0] == a and b.args[1].is_Integer:
                    size.node.shape_env.evaluate_expr(sympy.Eq(Mod(*b.args), 0))


def _marked(size: torch.SymInt) -> bool:
    """Whether one of the size's symbols is of an axis that has to stay dynamic, by torch._dynamo.mark_dynamic."""
    try:
        tracked = size.node.shape_env.tracked_fakes or ()
        strict = [
            axis.node.expr
            for entry in tracked
            if entry.symbolic_context is not None and isinstance(entry.fake, torch.Tensor)
            for axis, constraint in zip(entry.fake.shape, entry.symbolic_context.constraint_sizes, strict=True)
            if constraint is not None and isinstance(axis, torch.SymInt)
        ]
    except AttributeError:  # of another release of torch
        return True
    mine = size.node.expr.free_symbols
    return any(mine & one.free_symbols for one in strict)
