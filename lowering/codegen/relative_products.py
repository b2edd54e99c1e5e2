"""Products with factors that rows and columns choose by their difference alone, as relative positions do.

A tile of rows and columns has `rows + columns - 1` differences. Weights are skewed: moved from columns to differences.
Products with what a difference chooses are skewed back. A skewed tile is 0 where a row has no such difference, and 0
times NaN or infinity is NaN. So, where a sum is not finite, its loops run once more, one column at a time, unskewed.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from ...egraph.terms.term import Dim
from ..analysis.relative_index import relative_scores, relative_values
from ..plan.records import NotPlannable
from .matrix_products import (
    PLAIN_STRATEGIES,
    Contraction,
    Factor,
    MatrixProduct,
    as_matrix_product,
    multiply,
    operand,
    reads_float32,
)
from .ops import TileValue
from .tiles import Tiles


def is_not_finite(writer: Tiles, sums: Sequence[TileValue]) -> str:
    """The test whether one of the sums has a value that is not finite."""
    is_finite = (f'{writer.call("abs", x.text)} < float("inf")' for x in sums)
    return " or ".join(f"{writer.call('max', writer.call('where', test, 0, 1))} > 0" for test in is_finite)


# Strategies


def by_skewed_weights(writer: Tiles, sum_: Contraction) -> TileValue | None:
    """A sum over a loop's columns as a sum over differences, of skewed weights and what differences choose."""
    loop = writer.loop
    if loop is None or writer.lead or sum_.dim != loop:
        return None
    found = relative_values(sum_.factors, writer.kernel.rows, loop, sum_.weight.dims if sum_.weight else ())
    if found is None:
        return None
    others: list[Factor] = [*found.others, *([sum_.weight] if sum_.weight else [])]
    weight = _skew(writer, found.dim, loop, operand(writer, loop, others, sum_.guard))
    with _over_differences(writer, found.dim):
        inner = Contraction(found.dim, found.values, weight, sum_.into, exact=sum_.exact)
        product = as_matrix_product(writer, inner)
        return None if product is None else multiply(writer, product, PLAIN_STRATEGIES)


def by_skewed_products(writer: Tiles, sum_: Contraction) -> TileValue | None:
    """A sum over another dim, with a factor that a difference chooses: a product over differences, skewed back."""
    loop = writer.loop
    if loop is None or writer.lead or sum_.weight is not None or sum_.into is not None or sum_.guard is not None:
        return None
    found = relative_scores(sum_.factors, writer.kernel.rows, loop, sum_.dim)
    if found is None:
        return None
    _declare(writer, found.dim, loop)
    left = operand(writer, sum_.dim, found.others)
    with _over_differences(writer, found.dim):
        right = operand(writer, sum_.dim, found.values)
    if len(left.dims) != 2 or len(right.dims) != 2:
        return None
    left, right = sorted((left, right), key=lambda v: found.dim in v.dims)
    alone = [side[0] for side in (found.others, found.values) if len(side) == 1]
    factors = (*found.others, *found.values)
    product = MatrixProduct(sum_.dim, left, right, factors, any(map(reads_float32, alone)), exact=sum_.exact)
    result = multiply(writer, product, PLAIN_STRATEGIES)
    return result and _skewed_back(writer, found.dim, loop, result)


# Tiles


def _skew(writer: Tiles, dim: Dim, loop: Dim, weights: TileValue) -> TileValue:
    """The weights over rows and the differences `dim`, 0 where a row of the tile has no such difference."""
    rows, width = writer.kernel.rows, writer.extent(loop)
    if weights.dims != (rows, loop):
        raise NotPlannable(f"weights over {len(weights.dims)} dims beside what differences pick are left to torch")
    _declare(writer, dim, loop)
    writer.skewing.used = True
    difference, row = f"{writer.range_of(dim).text}[None, :]", f"{writer.range_of(rows).text}[:, None]"
    place = TileValue(f"{difference} + {row} - ({writer.extent(rows)} - 1)", (rows, dim))
    column = writer.once(("column", dim), (), lambda: writer.assign(f"{dim}_column", place, writer.outer)).text
    inside = writer.call("minimum", writer.call("maximum", column, 0), f"{width} - 1")
    picked = writer.call("gather", weights.text, inside, 1)
    text = writer.call("where", f"({column} >= 0) & ({column} < {width})", picked, "0.0")
    return writer.assign("skewed", TileValue(text, (rows, dim), weights.dtype), writer.inner)


def _skewed_back(writer: Tiles, dim: Dim, loop: Dim, product: TileValue) -> TileValue:
    """A product over differences and either rows or columns, as it is over rows and columns."""
    rows, kept = writer.kernel.rows, product.dims[0]
    place = lambda d: f"{writer.range_of(d).text}{'[:, None]' if d == kept else '[None, :]'}"
    text = f"{place(loop)} - {place(rows)} + ({writer.extent(rows)} - 1)"
    build = lambda: writer.assign(f"{dim}_place", TileValue(text, (rows, loop)), writer.outer)
    index = writer.once(("place", dim, kept), (), build).text
    read = writer.call("gather", product.text, index, 1)
    text = read if kept == rows else writer.call("trans", read)
    return writer.assign("skewed_back", TileValue(text, (rows, loop), product.dtype), writer.inner)


def _declare(writer: Tiles, dim: Dim, loop: Dim) -> None:
    """Gives the dim of differences a place among the tile's dims, and the tile its first difference."""
    rows, height, width = writer.kernel.rows, writer.extent(writer.kernel.rows), writer.extent(loop)
    if dim not in writer.blocks:
        span = writer.names.fresh(f"{dim}_tile")
        type_ = writer.type_name("constexpr")
        writer.outer.lines.append(f"{span}: {type_} = 2 * {height} if {height} > {width} else 2 * {width}")
        writer.blocks[dim], writer.sizes[dim] = span, f"{writer.sizes[rows]} + {writer.sizes[loop]} - 1"
        after = writer.tile_dims.index(loop) + 1
        writer.tile_dims = (*writer.tile_dims[:after], dim, *writer.tile_dims[after:])
    first = TileValue(f"{writer.starts[loop]} - {writer.starts[rows]} - {height} + {writer.sizes[rows]}")
    build = lambda: writer.assign(f"{dim}_start", first, writer.inner)
    writer.starts[dim] = writer.once(("start", dim), (loop,), build).text


@contextmanager
def _over_differences(writer: Tiles, dim: Dim) -> Iterator[None]:
    """What is written inside runs over a tile's differences, those that exist, instead of the loop's columns."""
    before = writer.loop, writer.readable, writer.ragged
    writer.loop, writer.readable, writer.ragged = dim, None, True
    at = writer.coordinate(dim).text
    exists = TileValue(f"({at} >= 0) & ({at} < {writer.sizes[dim]})", (dim,), "bool")
    writer.once(("exists", dim), (dim,), lambda: writer.assign(f"{dim}_exists", exists))
    try:
        yield
    finally:
        writer.loop, writer.readable, writer.ragged = before
