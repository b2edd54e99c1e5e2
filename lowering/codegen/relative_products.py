"""Tiles over rows and differences of columns to rows: weights are skewed, and products with what a difference picks are
skewed back.

A tile of rows and columns has as many differences as both together, less one. A skewed tile is 0 where a row has no
such difference, and 0 times NaN or infinity is NaN: where a sum is not finite, its loops run once more, one column at a
time and without skewing.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field

from ...egraph.terms.term import Dim
from ..plan.records import NotPlannable
from .ops import Value


@dataclass
class Doubt:
    """Of a kernel's text: whether it multiplies skewed weights, and whether it is the text that runs once more.

    scores: by its weight, what weighs; -∞ where an element is absent. tiles: extents of the tiles of loops that run
    column by column.
    """

    arisen: bool = False
    exact: bool = False
    scores: dict[str, Value] = field(default_factory=dict)
    tiles: dict[Dim, str] = field(default_factory=dict)


def spreads(sums: Sequence[Value]) -> str:
    """Whether one of them has a value that is not finite."""
    unusual = (f'tl.where(tl.abs({x.text}) < float("inf"), 0, 1)' for x in sums)
    return " or ".join(f"tl.max({text}) > 0" for text in unusual)


def skew(writer, dim: Dim, loop: Dim, weights: Value) -> Value:
    """The weights over rows and the differences `dim`, 0 where a row of the tile has no such difference."""
    rows, width = writer.kernel.rows, writer.extent(loop)
    if weights.dims != (rows, loop):
        raise NotPlannable(f"weights over {len(weights.dims)} dims beside what differences pick are left to torch")
    declare(writer, dim, loop)
    writer.doubt.arisen = True
    one, other = f"{writer.range_of(dim).text}[None, :]", f"{writer.range_of(rows).text}[:, None]"
    place = Value(f"{one} + {other} - ({writer.extent(rows)} - 1)", (rows, dim))
    column = writer.once(("column", dim), (), lambda: writer.assign(f"{dim}_column", place, writer.outer)).text
    picked = f"tl.gather({weights.text}, tl.minimum(tl.maximum({column}, 0), {width} - 1), 1)"
    text = f"tl.where(({column} >= 0) & ({column} < {width}), {picked}, 0.0)"
    return writer.assign("skewed", Value(text, (rows, dim), weights.dtype), writer.inner)


def unskew(writer, dim: Dim, loop: Dim, product: Value) -> Value:
    """Over rows and columns what is over one of both and the differences."""
    rows, kept = writer.kernel.rows, product.dims[0]
    place = lambda d: f"{writer.range_of(d).text}{'[:, None]' if d == kept else '[None, :]'}"
    text = f"{place(loop)} - {place(rows)} + ({writer.extent(rows)} - 1)"
    build = lambda: writer.assign(f"{dim}_place", Value(text, (rows, loop)), writer.outer)
    index = writer.once(("place", dim, kept), (), build).text
    read = f"tl.gather({product.text}, {index}, 1)"
    text = read if kept == rows else f"tl.trans({read})"
    return writer.assign("skewed_back", Value(text, (rows, loop), product.dtype), writer.inner)


def declare(writer, dim: Dim, loop: Dim) -> None:
    """Gives the dim a place among the tile's, and the tile its first difference."""
    rows, height, width = writer.kernel.rows, writer.extent(writer.kernel.rows), writer.extent(loop)
    if dim not in writer.blocks:
        span = writer.names.fresh(f"{dim}_tile")
        writer.outer.lines.append(f"{span}: tl.constexpr = 2 * {height} if {height} > {width} else 2 * {width}")
        writer.blocks[dim], writer.sizes[dim] = span, f"{writer.sizes[rows]} + {writer.sizes[loop]} - 1"
        after = writer.tile_dims.index(loop) + 1
        writer.tile_dims = (*writer.tile_dims[:after], dim, *writer.tile_dims[after:])
    first = Value(f"{writer.starts[loop]} - {writer.starts[rows]} - {height} + {writer.sizes[rows]}")
    build = lambda: writer.assign(f"{dim}_start", first, writer.inner)
    writer.starts[dim] = writer.once(("start", dim), (loop,), build).text


@contextmanager
def across(writer, dim: Dim) -> Iterator[None]:
    """What is written runs over a tile's differences, those that exist, instead of the loop's dim."""
    given = writer.loop, writer.kept, writer.ragged
    writer.loop, writer.kept, writer.ragged = dim, None, True
    at = writer.coordinate(dim).text
    exists = Value(f"({at} >= 0) & ({at} < {writer.sizes[dim]})", (dim,), "bool")
    writer.once(("exists", dim), (dim,), lambda: writer.assign(f"{dim}_exists", exists))
    try:
        yield
    finally:
        writer.loop, writer.kept, writer.ragged = given
