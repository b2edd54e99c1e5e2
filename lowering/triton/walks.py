"""Programs that walk: each computes every n-th index of a grid dim, and reads once what is the same for all of them.

Example: 4096 windows of 49 rows share a bias of their heads, and every 64th a mask. 256 programs for each head walk
over windows p, p + 256, ..; each reads its tiles of bias and mask once, and only q, k and v for each window.
Invariant: a kernel that walks computes the same, element by element, as one program for each index does.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from math import lcm, prod

import torch

from ...egraph.terms.ops import const, iota, make
from ...egraph.terms.sizes import resolve
from ...egraph.terms.term import Dim, Term
from ...egraph.terms.traversal import substitute, subterms
from ..launch.split_loops import program_count
from ..plan.kernel_config import TritonConfig
from ..plan.kernel_edits import with_terms
from ..plan.queries import nodes, roots, states_of
from ..plan.records import Kernel

Walk = tuple[str, int]  # the dim, and how far apart a program's indices are
PROGRAMS_OF_A_MULTIPROCESSOR = 8  # windows of 49 rows take 1.1 times as long with 16, 1.4 with 32
LEAST_SHARE = 0.5  # 49 rows of 32 numbers take 0.7 of the time, 32 of 64 as long, 16 of 32 1.1 times as long
MOST_HELD = 64  # registers of a thread, that two tiles of 64 x 64 take with four warps; a round takes some 90 more
MOST_BYTES_AHEAD = 40_000  # of all stages: with heads of 64, of bfloat16, two programs would fit a multiprocessor
STAGES = 3  # tiles of an index are loaded while two before it are computed with; with one, 1.3 times as long
LEAST_STEPS = 4  # of a program, from which what it reads once is worth a loop around


def walk_of(kernel: Kernel, config: TritonConfig, sizes: Mapping[str, int], places: int) -> Walk | None:
    """The walk of a kernel on so many multiprocessors; None where one program for each index is as good."""
    programs = program_count(kernel, config.row_tile, config.loop_tile, sizes)
    if not places or not programs or not _is_straight(kernel, config, sizes):
        return None
    found = [walk for dim in kernel.grid if (walk := _walk_along(dim, kernel, config, sizes, places)) is not None]
    return max(found, key=lambda walk: walk[1], default=None)


def walked(kernel: Kernel, walk: Walk, first: str) -> Kernel:
    """The kernel in which what is the same for all indices of a program has the name of the first one in its terms."""
    dim, apart = dim_of(kernel, walk), walk[1]
    alike = {n for n in _remainders(roots(kernel), dim) if apart % _period(n, dim) == 0}
    named = {n: make("mod", (make("var", (), (first, "int64")), n.args[1])) for n in alike}
    return with_terms(kernel, lambda term: substitute(term, named))


def dim_of(kernel: Kernel, walk: Walk) -> Dim:
    return next(dim for dim in kernel.grid if dim.name == walk[0])


def _is_straight(kernel: Kernel, config: TritonConfig, sizes: Mapping[str, int]) -> bool:
    """Whether each program does one tile of rows with one tile of each loop, and writes each result once."""
    if kernel.columns or kernel.around or not kernel.loops or any(s.places or s.adds for s in kernel.stores):
        return False
    if kernel.written_by(None) != [*kernel.stores] or _reads_vectors_of_pairs(kernel):
        return False
    limited = any(loop.part or loop.limits or not loop.tile for loop in kernel.loops)
    return not limited and all(0 < resolve(loop.dim.size, sizes) <= config.loop_tile for loop in kernel.loops)


def _reads_vectors_of_pairs(kernel: Kernel) -> bool:
    """Whether it reads a vector for each row and column: codegen/relative_products.py may have its own way for it."""
    placed = {*kernel.grid, kernel.rows, *(loop.dim for loop in kernel.loops)}
    return any(not tile.dims <= placed for tile in _tiles_of_pairs(kernel))


def _walk_along(
    dim: Dim, kernel: Kernel, config: TritonConfig, sizes: Mapping[str, int], places: int
) -> Walk | None:
    """A walk along a dim by which much is read once; None if there is none, or none that is long enough."""
    if not _saves_much(kernel, dim, sizes) or not _can_hold(kernel, dim, config, sizes):
        return None
    period = lcm(*(_repeats_after(tile, dim) for tile in _repeated_tiles(kernel, dim)))
    indices = resolve(dim.size, sizes)
    others = program_count(kernel, config.row_tile, config.loop_tile, sizes) // indices
    apart = max(period, places * PROGRAMS_OF_A_MULTIPROCESSOR // others // period * period)
    is_long = apart * LEAST_STEPS <= indices
    return (dim.name, apart) if is_long and _differ(walked(kernel, (dim.name, apart), "first"), dim) else None


def _differ(kernel: Kernel, dim: Dim) -> bool:
    """Whether all that it computes depends on the index: a state that does not is no part of a round."""
    return all(dim in result.dims for result in (*states_of(kernel), *(store.term for store in kernel.stores)))


def _saves_much(kernel: Kernel, dim: Dim, sizes: Mapping[str, int]) -> bool:
    """Whether the tiles of rows and columns that repeat are large beside what is read for each index."""
    repeated, each = _repeated_tiles(kernel, dim), _each(kernel, dim)
    elements = lambda reads: sum(_elements(read, kernel, sizes) for read in reads)
    return bool(repeated) and elements(repeated) >= LEAST_SHARE * elements(each)


def _can_hold(kernel: Kernel, dim: Dim, config: TritonConfig, sizes: Mapping[str, int]) -> bool:
    """Whether a thread has registers for the tiles that repeat, and a multiprocessor room for what is loaded ahead."""
    held = sum("float" in tile.dtype or tile.dtype == "bool" for tile in _repeated_tiles(kernel, dim))
    ahead = sum(_elements(r, kernel, sizes) * getattr(torch, r.dtype).itemsize for r in _each(kernel, dim))
    fits = held * config.row_tile * config.loop_tile <= MOST_HELD * 32 * config.warps
    return fits and STAGES * ahead <= MOST_BYTES_AHEAD


def _elements(read: Term, kernel: Kernel, sizes: Mapping[str, int]) -> int:
    """Elements that a program reads for one place of the grid."""
    return prod(resolve(d.size, sizes) for d in read.dims - {*kernel.grid})


def _each(kernel: Kernel, dim: Dim) -> set[Term]:
    """What is read for each index of the dim."""
    repeated = _repeated_tiles(kernel, dim)
    return {n for n in nodes(kernel) if n.op == "load" and dim in n.dims and n not in repeated}


def _repeated_tiles(kernel: Kernel, dim: Dim) -> set[Term]:
    """Tiles of rows and columns that are the same for several indices of the dim."""
    return {tile for tile in _tiles_of_pairs(kernel) if _repeats_after(tile, dim)}


def _tiles_of_pairs(kernel: Kernel) -> set[Term]:
    """What is read for each row and column."""
    columns = {loop.dim for loop in kernel.loops}
    return {n for n in nodes(kernel) if n.op == "load" and kernel.rows in n.dims and n.dims & columns}


def _repeats_after(tile: Term, dim: Dim) -> int:
    """After how many indices of the dim a tile repeats: 1 if it does not depend on the dim, 0 if it never does."""
    if dim not in tile.dims:
        return 1
    found = {n: _period(n, dim) for n in _remainders(tile.args, dim)}
    left = substitute(make("load", tile.args, tile.attrs), dict.fromkeys(found, const(0)))
    return lcm(*found.values()) if found and dim not in left.dims else 0


def _remainders(terms: Iterable[Term], dim: Dim) -> set[Term]:
    """Coordinates along the dim modulo a number, in these terms."""
    return {n for term in terms for n in subterms(term) if _period(n, dim)}


def _period(node: Term, dim: Dim) -> int:
    """n of a coordinate modulo n along the dim; 0 for another term."""
    is_mod = node.op == "mod" and node.args[0] is iota(dim) and node.args[1].op == "const"
    return int(node.args[1].attrs[0]) if is_mod else 0
