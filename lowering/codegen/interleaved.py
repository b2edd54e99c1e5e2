"""Columns of two kinds that alternate, written as two tiles of half the columns and put side by side.

The columns of a tile that reads its data by d // 2 would each be loaded by itself, and computed in both ways.
Invariant: every element is what `tl.where` would choose. Example: two numbers of four bits in a byte,
where(d % 2 <= 0, x[d // 2] % 16, x[d // 2] // 16).
"""

from __future__ import annotations

from ...egraph.terms.affine import affine
from ...egraph.terms.ops import const, iota
from ...egraph.terms.term import Dim, Term
from ...egraph.terms.traversal import subterms
from ..plan.term_edits import replace_from_above
from .dialect import TRITON
from .ops import TileValue
from .tiles import Tiles


def interleaved(writer: Tiles, node: Term) -> TileValue | None:
    """A choice by the parity of the columns, where neither side has them but as d // 2; None for another choice.

    A side that reads every second column of a tensor is another choice: a load would take its elements one by one.
    """
    condition, even, odd = node.args
    dim = _alternating(condition)
    if dim is None or writer.dialect is not TRITON or not _is_whole(writer, dim):
        return None
    half = Dim(f"{dim.name}_half", writer.resident[dim] // 2)
    quotient = {t: iota(half) for side in (even, odd) for t in subterms(side) if _halves(t, dim)}
    sides = [replace_from_above(side, quotient) for side in (even, odd)]
    if any(dim in side.dims or half not in side.dims or not _is_dense(side, half) for side in sides):
        return None
    _place(writer, dim, half)
    values = [writer.value(side) for side in sides]
    dims = writer.union(*values)
    if dims[-1] != half or len({v.dtype for v in values}) > 1:
        return None
    joined = writer.call("join", *(writer.spread(v, dims).text for v in values))
    dims = (*dims[:-1], dim)
    return TileValue(writer.call("reshape", joined, writer.shape(dims)), dims, node.dtype)


def _alternating(condition: Term) -> Dim | None:
    """The dim d of d % 2 <= 0, which holds for even columns."""
    if condition.op != "le" or condition.args[1] is not const(0) or condition.args[0].op != "mod":
        return None
    index, size = condition.args[0].args
    return index.attrs[0] if index.op == "iota" and size is const(2) else None


def _halves(term: Term, dim: Dim) -> bool:
    return term.op == "floordiv" and term.args[0] is iota(dim) and term.args[1] is const(2)


def _is_dense(side: Term, half: Dim) -> bool:
    """Whether all that is loaded for the dim lies in neighbouring places."""
    found = [index for load in subterms(side) if load.op == "load" for index in load.args if half in index.dims]
    return all(affine(index)[0].get(iota(half)) == 1 for index in found)


def _is_whole(writer: Tiles, dim: Dim) -> bool:
    """Whether a tile holds the dim, without padding, in two halves."""
    return dim in writer.resident and writer.resident[dim] == dim.size and dim.size % 2 == 0 and dim.size > 2


def _place(writer: Tiles, dim: Dim, half: Dim) -> None:
    """Makes the half a dim of tiles, at the place of the whole one."""
    if half not in writer.resident:
        writer.resident[half] = writer.resident[dim] // 2
        at = writer.tile_dims.index(dim)
        writer.tile_dims = (*writer.tile_dims[:at], half, *writer.tile_dims[at:])
