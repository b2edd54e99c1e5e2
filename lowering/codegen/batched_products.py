"""Products with a tile of three dims: matrices for each place of a batch, and a matrix that mixes such a tile.

The batch is a resident dim that comes first in every tile. A mixture over it is a product of two matrices: the second
has all rows and columns as its columns. Example: talking heads mix the scores of all heads at each row and column.
"""

from __future__ import annotations

from collections.abc import Iterable

from ...egraph.terms.term import Dim
from ..plan.dtypes import HALVES
from ..plan.records import Kernel, NotPlannable
from .matrix_products import MatrixProduct, in_one_type
from .ops import TileValue
from .tile_extents import MIN_EXTENT_OF_A_MATRIX
from .tiles import Tiles


def batched_dot(writer: Tiles, product: MatrixProduct) -> TileValue | None:
    """Σ_dim left · right for each place of a batch; None if there is no batch, or the result has its dims in another
    order."""
    dims = writer.sort(product.dims)
    shared = [d for d in dims if d in product.left.dims and d in product.right.dims]
    if not shared:
        return None
    left, right = _in_one_half_type(writer, product)
    batch, dim = shared[0], product.dim
    row, column = (next(d for d in v.dims if d not in (dim, batch)) for v in (left, right))
    if dims != (batch, row, column):
        return None
    start = [product.into.text] if _is_fused(product, dims) else []
    one, other = _ordered(writer, left, (batch, row, dim)), _ordered(writer, right, (batch, dim, column))
    return TileValue(writer.call("dot", one, other, *start), dims)


def mixed_tile(writer: Tiles, product: MatrixProduct) -> TileValue | None:
    """Σ_dim matrix · tile over the leading dim of a tile of three; None if that dim does not lead, or no dim leads in
    the result."""
    dims = writer.sort(product.dims)
    if len(dims) != 3 or {*product.left.dims} & {*product.right.dims} != {product.dim}:
        return None
    matrix, tile = sorted(_in_one_half_type(writer, product), key=lambda v: len(v.dims))
    (made,) = (d for d in matrix.dims if d != product.dim)
    if tile.dims[0] != product.dim or dims != (made, *tile.dims[1:]):
        return None
    text = _mixture(writer, matrix, tile, product.dim, made)
    start = f"{product.into.text} + " if _is_fused(product, dims) else ""
    return TileValue(f"{start}{writer.call('reshape', text, writer.shape(dims))}", dims)


def _is_fused(product: MatrixProduct, dims: tuple[Dim, ...]) -> bool:
    return product.into is not None and product.into.dims == dims


def _in_one_half_type(writer: Tiles, product: MatrixProduct) -> tuple[TileValue, TileValue]:
    """Both operands in one half type. Raises NotPlannable for a type without a matrix unit: a tile of three dims would
    take too many registers."""
    kind, left, right = in_one_type(writer, product)
    if kind not in HALVES:
        raise NotPlannable(f"a product of {kind} with a batch inside of a tile is left to torch")
    return left, right


def _mixture(writer: Tiles, matrix: TileValue, tile: TileValue, dim: Dim, made: Dim) -> str:
    """The product, still with the columns cut in parts.

    If the next fold is along columns, the matrix is multiplied from the right: rows and columns are the rows then.
    """
    parts = max(1, MIN_EXTENT_OF_A_MATRIX // min(int(writer.extent(d)) for d in (made, dim)))
    summed = str(int(writer.extent(dim)) * parts)
    rows, columns = map(writer.extent, tile.dims[1:])
    few = f"{columns} // {parts}" if parts > 1 else columns
    if _folds_along_columns(writer.kernel):
        small = _block_diagonal(writer, matrix, (dim, made), parts)
        left = _reshaped(writer, _cut(writer, tile, parts, (2, 3, 1, 0)), [f"{rows} * {few}", summed])
        made_parts = [rows, few, str(parts), writer.extent(made)]
        return writer.call("trans", _reshaped(writer, writer.call("dot", left, small), made_parts), 3, 0, 2, 1)
    small = _block_diagonal(writer, matrix, (made, dim), parts)
    right = _reshaped(writer, _cut(writer, tile, parts, (0, 1, 2, 3)), [summed, f"{rows} * {few}"])
    made_parts = [writer.extent(made), str(parts), rows, few]
    return writer.call("trans", _reshaped(writer, writer.call("dot", small, right), made_parts), 0, 2, 1, 3)


def _folds_along_columns(kernel: Kernel) -> bool:
    return any(state.gauge is not None for loop in kernel.loops for state in loop.accumulators)


def _reshaped(writer: Tiles, text: str, shape: Iterable[object]) -> str:
    return writer.call("reshape", text, f"[{', '.join(map(str, shape))}]")


def _cut(writer: Tiles, tile: TileValue, parts: int, order: tuple[int, ...]) -> str:
    """The tile with its columns cut in parts. order: of (its first dim, part, row, column of a part)."""
    first, rows, columns = map(writer.extent, tile.dims)
    cut = _reshaped(writer, tile.text, [first, rows, parts, f"{columns} // {parts}"])
    return writer.call("trans", cut, *((0, 2, 1, 3)[k] for k in order))


def _block_diagonal(writer: Tiles, matrix: TileValue, dims: tuple[Dim, Dim], parts: int) -> str:
    """The matrix for each part of the columns, repeated along a diagonal, written before the loop.

    A product of matrices takes at least 16 places of a dim. It is parts of columns that are put together, so that NaN
    stays in its row.
    """
    text = _ordered(writer, matrix, dims)
    if parts == 1:
        return text
    at, whole = writer.call("arange", 0, parts), [int(writer.extent(d)) * parts for d in dims]
    same = f"({at}[:, None] == {at}[None, :])"
    one, other = ("[None, :, None, :]", "[:, None, :, None]")[:: -1 if _folds_along_columns(writer.kernel) else 1]
    chosen = _reshaped(writer, writer.call("where", f"{same}{one}", f"{text}{other}", "0.0"), whole)
    build = lambda: writer.assign("diagonal", TileValue(chosen, matrix.dims, matrix.dtype))
    return writer.once(("diagonal", text), matrix.dims, build).text


def _ordered(writer: Tiles, value: TileValue, dims: tuple[Dim, ...]) -> str:
    """The value's text with its dims in this order."""
    order = tuple(value.dims.index(d) for d in dims)
    return value.text if order == tuple(range(len(dims))) else writer.call("trans", value.text, *order)
