"""Widths of rows that Dynamo left symbolic become numbers, under a guard of the graph's own.

A kernel holds a width whole in a tile, so it is made for one; lengths, batch and heads stay symbolic. Nothing that the
user marked as dynamic is fixed: that would raise. Called by replace.py before a region is traced.
"""

from __future__ import annotations

from collections import defaultdict

import torch

from .capture import value_of_node
from .regions import Region

WIDEST = 512  # what is longer is no width of a tile


def fix_widths(region: Region) -> None:
    """Puts a guard on every symbol that is the last axis of the region's matrices and stands nowhere else in them."""
    axes: dict[str, set[bool]] = defaultdict(set)
    known: dict[str, torch.SymInt] = {}
    for node in region.inputs:
        value = value_of_node(node)
        for axis, size in enumerate(getattr(value, "shape", ())):
            if isinstance(size, torch.SymInt):
                known[str(size.node.expr)] = size
                axes[str(size.node.expr)].add(axis == value.dim() - 1 > 0)
    for text, last in axes.items():
        size = known[text]
        if last == {True} and size.node.has_hint() and 1 < size.node.hint <= WIDEST and not _marked(size):
            int(size)  # which guards it


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
