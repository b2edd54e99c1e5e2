"""Stores that add elements along the diagonals of their tiles: each tile's sums go to a slot of its own.

A tile of rows and columns has one sum for each column - row, `rows + columns - 1` of them. No two programs write one
slot, so that nothing is added in memory, and two runs give the same bits. Slots take one number for about 32 pairs of
a row and a column, or fewer. Example: the gradient of a table of relative positions.
"""

from __future__ import annotations

from ...egraph.terms.term import Dim
from ..codegen.ops import TileValue
from ..codegen.tile_writer import TileWriter
from ..plan.queries import diagonal
from ..plan.records import NotPlannable, Store


def slots_name(store: Store) -> str:
    """What the slots of a store are called among the tensors of a launch."""
    return f"{store.output.name} slots"


def write_slot(tiles: TileWriter, store: Store, slots: str) -> list[str]:
    """Lines that write a tile's sums along its diagonals into its slot, 0 for elements that do not exist.

    Raises NotPlannable where a tile does not have both dims.
    """
    found, fresh, call = diagonal(store), tiles.names.fresh, tiles.call
    if not {found.rows, found.columns} <= {*tiles.tile_dims}:
        raise NotPlannable(f"no tile has both {found.rows} and {found.columns}, along whose diagonals {slots} are sums")
    rows, columns = sorted((found.rows, found.columns), key=tiles.tile_dims.index)
    value = tiles.spread(tiles.value(store.term), (rows, columns))
    present = tiles.conjunction(tiles.padding(rows), tiles.padding(columns))
    value = value if present is None else tiles.where(present, value, "0.0")
    tile, sums = fresh(f"{store.output.name}_tile"), fresh(f"{store.output.name}_sums")
    kind = tiles.type_name(store.output.dtype)
    height, width = tiles.extent(rows), tiles.extent(columns)
    column, number = _skewed_places(tiles, rows, columns)
    picked = call("gather", tile, call("minimum", call("maximum", column, 0), f"{width} - 1"), 1)
    skewed = call("where", f"({column} >= 0) & ({column} < {width})", picked, "0.0")
    slot = f"{slots} + {_slot(tiles, store, rows, columns)} * ({height} + {width}) + {number}"
    return [
        f"{tile} = {value.text}.to({kind})",
        f"{sums} = {call('sum', skewed, axis=0)}",
        f"tl.store({slot}, {sums}, mask={number} < {height} + {width})",
    ]


def _skewed_places(tiles: TileWriter, rows: Dim, columns: Dim) -> tuple[str, str]:
    """For a tile of rows and diagonals, each element's column, and the diagonals' numbers: column - row + rows - 1."""
    height, width, outer = tiles.extent(rows), tiles.extent(columns), tiles.outer

    def build() -> tuple[str, str]:
        span = tiles.names.fresh("diagonals")
        longest = f"{height} if {height} > {width} else {width}"
        outer.lines.append(f"{span}: {tiles.type_name('constexpr')} = 2 * ({longest})")
        number = tiles.assign("diagonal", TileValue(tiles.call("arange", 0, span)), outer).text
        place = f"{number}[None, :] + {tiles.range_of(rows).text}[:, None] - ({height} - 1)"
        return tiles.assign("diagonal_column", TileValue(place), outer).text, number

    return tiles.once(("diagonals", rows, columns), (), build)


def _slot(tiles: TileWriter, store: Store, rows: Dim, columns: Dim) -> str:
    """The number of the tile's slot: points of the grid, then tiles of rows, then of columns."""
    number = "0"
    for dim in diagonal(store).points:
        number = f"({number} * {tiles.sizes[dim]} + {tiles.starts[dim]})"
    for dim in (rows, columns):
        if dim in tiles.blocks:
            block = tiles.blocks[dim]
            number = f"({number} * tl.cdiv({tiles.sizes[dim]}, {block}) + {tiles.starts[dim]} // {block})"
    return f"tl.cast({number}, tl.int64)"
