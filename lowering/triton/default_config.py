"""The configuration of a plain Triton kernel that nobody tuned, chosen by what its tiles hold and what it writes.

Every tile is a power of two, no smaller than a product of matrices takes, and fits the registers and the shared memory
of the device. Example: wide heads get fewer rows a tile.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from math import prod

import torch

from ...egraph.terms.ops import const
from ...egraph.terms.sizes import resolve
from ...egraph.terms.term import Dim, Term
from ...egraph.terms.traversal import reduces, subterms
from ..analysis.chunks import chunks
from ..analysis.data_indices import is_block_number, loads_by_data
from ..analysis.dim_roles import compared, is_contraction, leading_dims, several_pairs, stepped
from ..codegen.matrix_products import multiplies_in_parts
from ..codegen.tile_extents import (
    MIN_EXTENT_OF_A_MATRIX,
    columns_of_cubes,
    dims_of_matrices,
    dims_with_relative_factors,
    may_have_rows_last,
    places_outside_of_matrices,
    power_of_two,
    tiles_of_three_dims,
)
from ..plan.device import DEVICES, Gpu
from ..plan.kernel_config import DefaultRow, TritonConfig, at_most, equal_to, first_match
from ..plan.queries import carried_dims, roots, states_of
from ..plan.queries import nodes as nodes_of
from ..plan.records import Kernel, Loop
from ..plan.thresholds import MAX_COLUMNS_OF_TOTALS, MAX_RESIDENT_ELEMENTS, MIN_ROWS_OF_A_PRODUCT

MAX_SPILLED_REGISTERS = 128  # that a thread may keep in memory: good kernels keep about 16, a bad one kept 264
CARRIED_FLOATS = 128  # float32 numbers of accumulators that a thread keeps
TILE_FLOATS = 64  # float32 numbers of a tile of three dims that a thread keeps, without accumulators
PAIR_ELEMENTS = 2048  # elements of accumulators beside scores that are folded one position at a time
ELEMENTS_OF_A_WARP = 1024  # of a tile of rows: measured on one H100, 8 rows with 1 warp took 0.66 of the time of 4
READ_BY_A_WARP = 512  # elements of a tile that is folded as it is read: merging 4 parts of 128 takes one warp
SHARED_ELEMENTS = 65536  # elements of one tensor that a row tile keeps in shared memory
FEWEST_ROWS = 8  # of a tile in which they stand last: as many as a product takes of its last dim
NUMBERS_OF_A_SMALL_TILE = 2048  # of what a loop reads, for programs of one warp
SLOTS_OF_A_PAGE = 64  # of a page that programs of two warps read as one tile
WIDE_ROW = 512  # numbers
BYTES_OF_A_LOAD = 2**15  # of a loop tile where rows are few: more would not be read any faster


@dataclass(frozen=True, kw_only=True)
class TritonDefault(DefaultRow):
    """A default for resident tiles of up to `width` elements of up to `element_bytes`; architecture None: any.

    score_products: the most products of rows by columns that one element of a sum in a loop is made of. loop_products:
    the most that a loop computes for one tile, in all of its sums and states.
    """

    architecture: str | None = equal_to()
    element_bytes: int = at_most()
    width: int = at_most()
    score_products: int = at_most()
    loop_products: int = at_most()
    config: TritonConfig


LEAST_CONFIG = TritonConfig(16, 16, 4, 1)
_SQUARE = TritonConfig(64, 64, 4, 3)
_FEW_ROWS_IN_PIECES, _ROWS_IN_PIECES = TritonConfig(16, 128, 4, 2), TritonConfig(128, 128, 8, 2)
# The first row that matches counts: rows are ordered by architecture, element size, width.
TRITON_DEFAULTS = (
    TritonDefault(
        architecture="sm_90", element_bytes=2, width=128, score_products=1, config=TritonConfig(64, 64, 4, 3)
    ),
    # Measured on one H100 for the gradients of attention, 1.2 to 1.3 times as fast as 64x64 at a width of 128.
    TritonDefault(architecture="sm_90", element_bytes=2, width=64, config=_SQUARE),
    TritonDefault(architecture="sm_90", element_bytes=2, width=128, config=TritonConfig(128, 64, 8, 3)),
    TritonDefault(architecture="sm_90", element_bytes=2, width=256, config=TritonConfig(128, 64, 8, 2)),
    # Measured on one H100 for latents of 576 numbers whose first 512 are values: 0.63 of the time of 32 rows, which are
    # too few for wgmma.
    TritonDefault(architecture="sm_90", element_bytes=2, width=512, config=TritonConfig(64, 64, 8, 2)),
    # Two products for one tile, as in gradients: 64x32 keeps 1000 to 3900 registers in memory, 32x32 none. Measured on
    # one H200 for gradients of 64 numbers a head, full, causal and with a soft cap: 0.95 of the time of 32x16.
    TritonDefault(architecture="sm_90", element_bytes=4, width=64, loop_products=1, config=TritonConfig(64, 32, 8, 2)),
    TritonDefault(architecture="sm_90", element_bytes=4, width=64, config=TritonConfig(32, 32, 8, 2)),
    # Measured on one H100: with a soft cap 0.55 of the time of 32x16 (128) and of 16x16 (192), causal 0.8. Two products
    # for one tile spill, as in gradients.
    TritonDefault(
        architecture="sm_90", element_bytes=4, width=192, loop_products=1, config=TritonConfig(64, 32, 8, 2)
    ),
    # Measured on one H200 for gradients of 128 numbers a head: 0.58 of the time of 16x16 with 8 warps and 2 stages.
    TritonDefault(architecture="sm_90", element_bytes=4, width=128, config=TritonConfig(16, 16, 4, 1)),
    TritonDefault(architecture="sm_90", element_bytes=4, width=256, config=TritonConfig(16, 16, 4, 1)),
    TritonDefault(architecture="sm_100", element_bytes=2, width=64, config=TritonConfig(128, 64, 8, 3)),
    TritonDefault(architecture="sm_100", element_bytes=2, width=128, config=TritonConfig(128, 64, 8, 3)),
    TritonDefault(architecture="sm_100", element_bytes=2, width=256, config=TritonConfig(64, 64, 4, 2)),
    TritonDefault(architecture="gfx942", element_bytes=2, width=64, config=TritonConfig(128, 64, 4, 1)),
    TritonDefault(architecture="gfx942", element_bytes=2, width=128, config=TritonConfig(128, 64, 4, 1)),
    TritonDefault(architecture="gfx942", element_bytes=2, width=256, config=TritonConfig(64, 32, 4, 1)),
    TritonDefault(element_bytes=2, width=64, config=TritonConfig(128, 64, 4, 3)),
    TritonDefault(element_bytes=2, width=128, config=TritonConfig(128, 64, 8, 2)),
    TritonDefault(element_bytes=2, width=256, config=TritonConfig(64, 32, 4, 2)),
    TritonDefault(element_bytes=2, width=512, config=TritonConfig(32, 64, 8, 2)),
    TritonDefault(element_bytes=4, width=64, config=TritonConfig(64, 32, 8, 2)),
    TritonDefault(element_bytes=4, width=128, config=TritonConfig(32, 16, 4, 2)),
    TritonDefault(element_bytes=8, config=TritonConfig(16, 16, 4, 1)),
)
THREE_DIMS = TritonConfig(16, 16, 8, 1)  # for tiles of rows by loop by resident dims
# The same for inputs of half precision and one resident dim of up to so many places, where a thread sums columns alone.
# Measured on one H200 for 64 places, gradients of distances and of additive scores: 0.39 to 0.53 of the time of
# THREE_DIMS. For 128 places twice the warps have as many numbers for each thread.
CUBES_OF_HALVES = {64: TritonConfig(32, 16, 4, 1), 128: TritonConfig(32, 16, 8, 1)}
PRODUCT_IN_HALVES = TritonConfig(64, 16, 4, 1)  # without a loop, where a matrix of up to 64 columns is split in halves


def widest(kernel: Kernel) -> tuple[int, int]:
    """(elements, bytes an element) of the widest held row that a tile keeps of a floating tensor."""
    placed = {*kernel.grid, *kernel.tiled, *kernel.around, *(loop.dim for loop in kernel.loops)}
    loops = {loop.dim for loop in kernel.loops}
    width, size, streamed = 16, 2, 2
    for node in {n for root in roots(kernel) for n in subterms(root) if n.op == "load"}:
        held = [d.size for d in node.dims - placed if isinstance(d.size, int)]
        dtype = getattr(torch, node.dtype)
        if dtype.is_floating_point and held:
            width, size = max(width, *held), max(size, dtype.itemsize)
            streamed = max(streamed, dtype.itemsize if node.dims & loops else 2)
    size = size if width <= MAX_RESIDENT_ELEMENTS else streamed  # what rows have stays in shared memory, by halves
    return width, max(size, 4 if kernel.exact else 2)


def default_for(kernel: Kernel, architecture: str, count: int = 0) -> TritonConfig:
    """The default configuration of a kernel; count: of its rows, 0 where that is not known."""
    few = _tile_of_few(count, architecture)
    width, element_bytes = widest(kernel)
    nodes = nodes_of(kernel)
    if summed := chunks(kernel, nodes):
        places = 0 if dims_of_matrices(kernel, nodes) else places_outside_of_matrices(kernel, roots(kernel), summed)
        return of_chunks(element_bytes, bool(few), places)
    serial = stepped(kernel, nodes)
    if lead := leading_dims(kernel, nodes):
        return cube_config(max(map(power_of_two, lead)), carried_elements(kernel), width)
    one_by_one = {*serial, *(c.places for loop in kernel.loops if (c := compared(kernel, loop)))}
    if cubes := tiles_of_three_dims(kernel, roots(kernel), {*kernel.grid, *kernel.around, *one_by_one}):
        return _of_cubes(kernel, nodes, cubes, element_bytes)
    if element_bytes == 4 and multiplies_in_parts(kernel):
        return PRODUCT_IN_HALVES if width <= 64 else replace(PRODUCT_IN_HALVES, row_tile=128, warps=8)
    if few:
        found = of_few_rows(width, element_bytes)
    elif element_bytes == 2 and width <= MAX_RESIDENT_ELEMENTS and _takes_wide_tiles(kernel, architecture):
        found = _with_stages_that_fit(TritonConfig(128, 128 if width <= 128 else 64, 8, 3), 2 * width, architecture)
    else:
        products = _score_products(kernel), _loop_products(kernel)
        config = default_config(width, element_bytes, architecture, *products)
        found = _of_scores(kernel, nodes, config, width, bool(serial))
    return _with_narrow_tiles(found, kernel, nodes, width, few)


def of_pieces(config: TritonConfig, kernel: Kernel, architecture: str, count: int) -> TritonConfig:
    """A default for a loop in pieces, whose tiles of columns are the same for all sizes. count: of the kernel's rows.

    How many rows share a tile changes no bit of a row. Measured on one H200 for 4096 rows of 128 numbers: 128x128
    takes half the time of 64x128, which spills.
    """
    width, element_bytes = widest(kernel)
    square = (config.row_tile, config.loop_tile) == (_SQUARE.row_tile, _SQUARE.loop_tile)
    summed = [n for n in nodes_of(kernel) if n.op == "reduce" and n.attrs[0] == "sum"]
    by_matrices = element_bytes <= 2 and width <= MAX_COLUMNS_OF_TOTALS and all(map(is_contraction, summed))
    if architecture != "sm_90" or not (square and by_matrices):
        return config
    return _FEW_ROWS_IN_PIECES if 0 < count <= _FEW_ROWS_IN_PIECES.row_tile else _ROWS_IN_PIECES


def _of_cubes(kernel: Kernel, nodes: Collection[Term], cubes: Collection[Collection[Dim]], bytes_: int) -> TritonConfig:
    """For tiles of three dims or more. cubes: the dims of each. bytes_: of an element of the widest input.

    THREE_DIMS is for all that was not measured: with larger tiles, the float32 numbers of a thread could spill. A tile
    that is loaded with all three dims does: it is there at once, while one that is computed is made as it is summed.
    """
    placed = {*kernel.tiled, *(loop.dim for loop in kernel.loops)}
    resident = [[d for d in cube if d not in placed] for cube in cubes]
    if any(len(dims) != 1 for dims in resident) or bytes_ > 2 or _are_loaded(cubes, nodes):
        return THREE_DIMS
    if not columns_of_cubes(kernel, nodes):
        return THREE_DIMS
    places = max(power_of_two(d) for [d] in resident)
    return next((config for most, config in CUBES_OF_HALVES.items() if places <= most), THREE_DIMS)


def _are_loaded(cubes: Collection[Collection[Dim]], nodes: Collection[Term]) -> bool:
    """Whether a tile of one of these is read from memory, and not computed from smaller ones."""
    return any(n.op == "load" and n.dims.issuperset(cube) for n in nodes for cube in cubes)


def _with_stages_that_fit(config: TritonConfig, row_bytes: int, architecture: str) -> TritonConfig:
    """The configuration with fewer stages where the tiles that a loop loads ahead would fill shared memory."""
    device, ahead = DEVICES.get(architecture), (config.stages - 1) * config.loop_tile * row_bytes
    return replace(config, stages=2) if isinstance(device, Gpu) and ahead >= device.shared_bytes else config


def _tile_of_few(count: int, architecture: str) -> int:
    """The rows of a tile for so few rows: 8 where products may have them last, or 16; 0 for more rows."""
    if not 0 < count <= MIN_ROWS_OF_A_PRODUCT:
        return 0
    return FEWEST_ROWS if count <= FEWEST_ROWS and not architecture.startswith("gfx") else MIN_ROWS_OF_A_PRODUCT


def _with_narrow_tiles(
    config: TritonConfig, kernel: Kernel, nodes: Collection[Term], width: int, few: int
) -> TritonConfig:
    """The configuration with fewer columns where what a loop reads, or draws, takes many registers."""
    if few and config.loop_tile > 64 and _widens_bytes(kernel):
        found = of_bytes(config, any(loads_by_data(kernel, loop) for loop in kernel.loops))
        is_tight = few == FEWEST_ROWS and may_have_rows_last(kernel, nodes)
        return with_rows_last(found, width) if is_tight else found
    if few and config.loop_tile == 2 * SLOTS_OF_A_PAGE and _reads_pages(kernel, nodes, SLOTS_OF_A_PAGE):
        return of_pages(config)
    narrower = width > 64 and config.loop_tile > 64 and _compares_wide_data(kernel)
    narrower |= config.loop_tile > 32 and any(n.op == "uniform" for n in nodes)
    return replace(config, loop_tile=config.loop_tile // 2) if narrower else config


def cut_to_sizes(config: TritonConfig, kernel: Kernel, sizes: Mapping[str, int]) -> TritonConfig:
    """The configuration with tiles no larger than the data needs. Raises UnknownSize."""
    rows = min(config.row_tile, tile_for(resolve(kernel.rows.size, sizes))) if kernel.rows else config.row_tile
    streamed = (*kernel.columns, *(loop.dim for loop in kernel.loops))
    longest = max((resolve(d.size, sizes) for d in streamed), default=config.loop_tile)
    columns, stages = min(config.loop_tile, tile_for(longest)), config.stages
    warps = config.warps if rows == config.row_tile else max(1, min(config.warps, 4))
    if kernel.loops and longest <= columns:  # a single step: nothing is loaded ahead, and small tiles leave warps idle
        stages, width = min(stages, 2), widest(kernel)[0]
        if kernel.rows is None:  # nothing is multiplied as a matrix
            columns = min(columns, 1 << (longest - 1).bit_length()) if longest > 1 else 1
        filled = rows * max(columns, width) // ELEMENTS_OF_A_WARP if kernel.rows else columns * width // READ_BY_A_WARP
        filled = max(1, filled)
        warps = min(warps, 1 << (filled.bit_length() - 1))  # Triton takes powers of two
    return TritonConfig(rows, columns, warps, stages, config.chunks)


def tile_for(size: int) -> int:
    """The next power of two, at least 16: the smallest tile that a matrix product takes."""
    return max(16, 1 << (size - 1).bit_length()) if size > 0 else 16


def has_rows_last(kernel: Kernel, config: TritonConfig) -> bool:
    """Whether rows are the last axis of a kernel's tiles with this configuration."""
    return config.row_tile < MIN_EXTENT_OF_A_MATRIX and may_have_rows_last(kernel, nodes_of(kernel))


def carried_elements(kernel: Kernel) -> int:
    """Elements of the largest accumulator for each row and column. Example: 64, where values have 64 columns."""
    return max((prod(map(power_of_two, dims)) for dims in carried_dims(kernel)), default=0)


def _of_scores(kernel: Kernel, nodes: Collection[Term], config: TritonConfig, width: int, serial: bool) -> TritonConfig:
    """The configuration for scores that are no plain products: serial folds, several pairs, relative indices."""
    if serial:
        config = of_steps(config, width)
    elif several_pairs(nodes):
        config = of_pairs(config)
    relative = dims_with_relative_factors(kernel, nodes)
    return of_differences(config, width, any(loop.dim in relative for loop in kernel.loops)) if relative else config


def _compares_wide_data(kernel: Kernel) -> bool:
    """Whether a guard compares 64-bit data along the loop: a wide loop tile of them takes too many registers."""
    guards = [(loop.dim, n) for loop in kernel.loops if loop.guard is not None for n in subterms(loop.guard)]
    return any(n.op == "load" and dim in n.dims and n.dtype in ("int64", "float64") for dim, n in guards)


def _widens_bytes(kernel: Kernel) -> bool:
    """Whether a loop reads numbers of one byte and makes wider ones of them, which takes registers, as a cache does."""
    loops = {loop.dim for loop in kernel.loops}
    nodes = {n for root in roots(kernel) for n in subterms(root)}
    read = [n for n in nodes if n.op == "load" and n.dims & loops and len(n.dims) > 1]
    return any(n.dtype != "bool" and getattr(torch, n.dtype).itemsize == 1 for n in read)


def _reads_pages(kernel: Kernel, nodes: Collection[Term], slots: int) -> bool:
    """Whether a loop reads pages of so many slots, which a table names, up to a length that is data."""
    by_data = {loop.dim for loop in kernel.loops if loop.length_is_data and loads_by_data(kernel, loop)}
    return any(is_block_number(n) and n.args[1] is const(slots) and n.args[0].attrs[0] in by_data for n in nodes)


def _takes_wide_tiles(kernel: Kernel, architecture: str) -> bool:
    """Whether a loop's numbers leave registers for them.

    A sum that is a tile of rows and columns itself leaves none. It has wide tiles only where its programs are few: then
    it may be done in parts.
    """
    return _keeps_numbers_of_products(kernel) and not (kernel.columns and _fills_a_device(kernel, 128, architecture))


def _fills_a_device(kernel: Kernel, tile: int, architecture: str) -> bool:
    """Whether programs with square tiles of rows and columns fill a device; not where a size is unknown.

    Then smaller ones do, too. Measured on one H200 for gradients of biases that a batch shares, whose tiles of 128x128
    keep 100 registers of a thread in memory: with 64x64 0.72 to 0.93 of the time.
    """
    device, dims = DEVICES.get(architecture), [*filter(None, (*kernel.grid, kernel.rows, *kernel.columns))]
    sizes = [d.size for d in dims if isinstance(d.size, int)]
    if not isinstance(device, Gpu) or len(sizes) < len(dims):
        return False
    counts = [n if d in kernel.grid else -(-n // tile) for d, n in zip(dims, sizes, strict=True)]
    return prod(counts) >= device.multiprocessors


def _keeps_numbers_of_products(kernel: Kernel) -> bool:
    """Whether loops keep numbers of each row, of products of rows and columns: registers are left for wide tiles."""
    rows = {*kernel.grid, *kernel.tiled}
    states = [(loop.dim, r) for loop in kernel.loops for r in states_of(kernel) if r.attrs[1] == loop.dim]
    is_of_pairs = lambda n, dim: is_contraction(n) and {kernel.rows, dim} <= n.dims
    of_products = all(any(is_of_pairs(n, dim) for n in reduces(r.args[0])) for dim, r in states)
    return bool(states) and of_products and all(r.dims <= rows for _, r in states)


def _score_products(kernel: Kernel) -> int:
    """The most products of rows by columns in one sum of a loop; 1 for states, whose scores are one product."""
    sums = [(loop, a) for loop in kernel.loops for a in loop.accumulators if a.monoid == "sum"]
    return max((len(_products_of(kernel, loop, a.values)) for loop, a in sums), default=1)


def _loop_products(kernel: Kernel) -> int:
    """The most products of rows by columns in all sums and states of a loop."""
    parts = lambda loop: [t for a in loop.accumulators for t in (*a.values, *filter(None, (a.gauge,)))]
    return max((len(_products_of(kernel, loop, parts(loop))) for loop in kernel.loops), default=1)


def _products_of(kernel: Kernel, loop: Loop, terms: Collection[Term]) -> set[Term]:
    """The products of rows by columns in terms of a loop's body."""
    tile = {kernel.rows, *(kernel.columns or (loop.dim,))}  # with columns, a loop goes over a batch
    return {r for term in terms for r in reduces(term) if is_contraction(r) and tile <= r.dims}


def default_config(
    width: int, element_bytes: int, architecture: str = "", score_products: int = 1, loop_products: int = 1
) -> TritonConfig:
    """The default for the widest resident tile and the widest element that a kernel loads."""
    facts = {"architecture": architecture, "element_bytes": element_bytes, "width": width}
    facts |= {"score_products": score_products, "loop_products": loop_products}
    row = first_match(TRITON_DEFAULTS, facts)
    return LEAST_CONFIG if row is None else row.config


def of_few_rows(width: int, element_bytes: int) -> TritonConfig:
    """The default where rows are fewer than a tile has: reading the loop's tiles is all the work, 32 KiB at a time.

    Of wide rows, such as latents of 512 numbers, one tile more is under way, and half as many programs run.
    """
    fitting = BYTES_OF_A_LOAD // (element_bytes << (width - 1).bit_length())
    return TritonConfig(16, max(16, min(128, fitting)), 4, 2 if fitting <= 128 and width < WIDE_ROW else 3)


def of_bytes(config: TritonConfig, by_data: bool) -> TritonConfig:
    """Where bytes are read and widened, which takes registers: small programs, of which more run side by side.

    by_data: a place is read from memory first, as from a table of pages, and two tiles are to be under way behind it.
    Measured on one H100, pages of int8 take 0.88 of the time that they take by 4 warps and 128 columns.
    """
    return replace(config, loop_tile=64, warps=2, stages=5 if by_data else 3)


def with_rows_last(config: TritonConfig, width: int) -> TritonConfig:
    """Where up to 8 rows are the last axis of tiles: programs of one warp, many of which run side by side.

    width: numbers of a row that a loop reads. Measured on one H100 as parts of the speed of a copy, 128 numbers a row:
    pages of int8 reach 0.82 with one warp and 16 keys, 0.77 with two warps and 64 keys, and 0.70 with the latter where
    rows are the first axis. Pages of int4 reach 0.56 with one warp and 16 keys, 0.50 with 32.
    """
    keys = max(16, min(64, NUMBERS_OF_A_SMALL_TILE >> (width - 1).bit_length()))
    return replace(config, row_tile=FEWEST_ROWS, loop_tile=keys, warps=1)


def of_pages(config: TritonConfig) -> TritonConfig:
    """Where a tile would be two pages: tiles of one page, whose place is read from the table as one number.

    Measured on one H100 as parts of the speed of a copy: pages of 64 slots in bfloat16 reach 0.887 and with tiles of
    128 0.881, a window of 2048 keys 0.80 and 0.71. Chosen blocks, which are no parts of a loop then, 0.902 and 0.914.
    """
    return replace(config, loop_tile=SLOTS_OF_A_PAGE, warps=2, stages=3)


def of_chunks(element_bytes: int, few: bool, places: int = 0) -> TritonConfig:
    """For products that a tile sums chunk by chunk: tiles as of a product of matrices that is stored.

    places: of a row and column, where they are folded number by number and no matrix is multiplied.
    """
    if places:
        return of_folded_chunks(places)
    if few:
        return TritonConfig(16, 128 if element_bytes == 2 else 64, 4, 4)
    return TritonConfig(128, 256, 8, 3) if element_bytes == 2 else TritonConfig(64, 64, 4, 2)


def of_folded_chunks(places: int) -> TritonConfig:
    """For chunks that are folded number by number, such as Σ_d a[i, d] · b[i, d], with so many places a row and column.

    No matrix asks for 16 rows. A thread has 16 numbers of each tensor, whose addresses take twice as many registers.
    Example: with 32 places, 64 columns of one row.
    """
    pairs = max(1, 16 * 32 * 4 // places)
    columns = min(64, 1 << (pairs.bit_length() - 1))
    return TritonConfig(max(1, pairs // columns), columns, 4, 2)


def of_pairs(config: TritonConfig) -> TritonConfig:
    """For scores of several operations on pairs, whose operands fill registers: a thread has 16 of them."""
    return replace(config, row_tile=min(config.row_tile, 64), loop_tile=min(config.loop_tile, 64), warps=8)


def of_differences(config: TritonConfig, width: int, weights: bool) -> TritonConfig:
    """Where a tile has twice as many differences as columns. weights: they are skewed, beside a wider accumulator."""
    warps, stages = (8 if width > 64 else 4, 1) if weights else (4, 1 if width > 64 else 2)
    return replace(
        config, row_tile=min(config.row_tile, 64), loop_tile=min(config.loop_tile, 64), warps=warps, stages=stages
    )


def of_steps(config: TritonConfig, width: int) -> TritonConfig:
    """For scores that are folded place by place: a thread keeps 16 elements of a held row, or of 16 of them."""
    rows, stages = min(config.row_tile, max(16, PAIR_ELEMENTS >> (width - 1).bit_length())), min(config.stages, 2)
    return replace(config, row_tile=rows, loop_tile=min(config.loop_tile, 64), warps=4, stages=stages)


def cube_config(lead: int, carried: int, width: int) -> TritonConfig:
    """For tiles of three dims: places of the leading one, elements of accumulators for each row, and of a held row.

    Rows are a power of two, whatever a held row's width is, and the least tile where not even one row would fit.
    """
    warps = 8 if CARRIED_FLOATS * 128 < 16 * carried or (carried <= lead and lead >= 8) else 4
    loop = 32 if carried <= lead < 16 else 16
    rows = CARRIED_FLOATS * 32 * warps // carried if carried > lead else TILE_FLOATS * 32 * warps // (lead * loop)
    rows = max(1, min(128, rows, SHARED_ELEMENTS // (lead * width)))
    return TritonConfig(max(16, 1 << (rows.bit_length() - 1)), loop, warps, 2)
