"""Which dims a tile of a kernel has, and how long they are there.

Three kinds of dims are in a tile: rows, the columns of a loop, and resident dims, which are whole in every tile.
Example: for attention with 48 values a head, the value dim is resident with an extent of 64.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from math import prod

from ...egraph.terms.term import Dim, Term
from ...egraph.terms.traversal import factors, subterms
from ..analysis.dim_roles import CONTRACTIBLE, leading_dims, sum_factors
from ..analysis.product_terms import operands
from ..analysis.relative_index import relative_factors, relative_scores
from ..plan.dtypes import HALVES, is_integer
from ..plan.records import Kernel, NotPlannable
from .dialect import Dialect

MIN_EXTENT_OF_A_MATRIX = 16  # of every dim of a product of matrices
THREADS_OF_A_WARP = 32
WIDEST_PATTERN = 64  # half-precision numbers in the 128 bytes after which shared memory's widest pattern repeats


def resident_extents(
    kernel: Kernel, nodes: Collection[Term], serial: Collection[Dim], dialect: Dialect
) -> dict[Dim, int]:
    """The extents of resident dims: powers of two, at least 16 for a dim of matrices. serial: dims of serial folds.

    Raises NotPlannable for a resident dim of unknown size.
    """
    lead = leading_dims(kernel, nodes)
    resident = [d for d in _resident_dims(kernel, nodes) if d not in serial]
    multiplied = {*resident} - {*lead} if lead else dims_of_matrices(kernel, nodes)
    extents = {d: max(MIN_EXTENT_OF_A_MATRIX * (d in multiplied), power_of_two(d)) for d in resident}
    if not dialect.pads_matrices:
        return extents
    return extents | matching_extents(operands(kernel, nodes), extents, multiplied - {*lead})


def power_of_two(dim: Dim) -> int:
    """The places that a resident dim has in a tile. Raises NotPlannable if its size is not known."""
    if not isinstance(dim.size, int):
        raise NotPlannable(f"dim {dim} is held in a tile but its size {dim.size} is not known")
    return 1 << (dim.size - 1).bit_length()


def matching_extents(loads: Sequence[Term], extents: dict[Dim, int], multiplied: Collection[Dim]) -> dict[Dim, int]:
    """New extents of the last dims of matrices that are multiplied: none has a narrower pattern in memory than another.

    ptxas of CUDA 12.8 loses half of a matrix's address where a matrix of another pattern was at that address before.
    """
    last = {d for n in loads for index in n.args[-1:] for d in index.dims if n.dtype in HALVES and d in extents}
    last &= set(multiplied)
    widest = min(WIDEST_PATTERN, max((extents[d] for d in last), default=0))
    return {d: max(extents[d], widest) for d in last}


def _resident_dims(kernel: Kernel, nodes: Collection[Term]) -> list[Dim]:
    """The plan's resident dims, and any other dim that a reduction within a tile binds."""
    placed = {*kernel.grid, *kernel.tiled, *kernel.around, *(loop.dim for loop in kernel.loops)}
    bound = {n.attrs[1] for n in nodes if n.op == "reduce"}
    return list(dict.fromkeys([*kernel.held, *sorted(bound - placed - set(kernel.held))]))


def dims_of_matrices(kernel: Kernel, nodes: Collection[Term]) -> set[Dim]:
    """The dims of sums that can be products of two matrices. Only these need a least extent."""
    found: set[Dim] = set()
    for dim, sides in _sums(kernel, nodes):
        if len(sides) == 2 and all(len(key) == 1 for key in sides):
            found |= {dim, *sides[0], *sides[1]}
    return found


def _sums(kernel: Kernel, nodes: Collection[Term]) -> Iterator[tuple[Dim, list[tuple[Dim, ...]]]]:
    """(the dim, the other dims of the factors that have it, by side) of every sum."""
    for dim, parts in _factored(kernel, nodes):
        free = _by_relative_index(kernel, dim, parts)
        others = (p.dims - {dim, *kernel.grid, *kernel.around} - free.get(p, set()) for p in parts if dim in p.dims)
        yield dim, [key for key in merge_contained({tuple(sorted(dims)): [] for dims in others}) if key]


def _factored(kernel: Kernel, nodes: Collection[Term]) -> list[tuple[Dim, list[Term]]]:
    """(the dim, the factors) of every sum. An exponent counts as one factor, its weight."""
    sums = [(n.attrs[1], sum_factors(n)) for n in nodes if n.op == "reduce"]
    for dim, state in ((loop.dim, state) for loop in kernel.loops for state in loop.accumulators):
        weight = [state.gauge] if state.gauge is not None else []
        sums += [(dim, [*weight, *factors(value)]) for value in state.values]
    return sums


def dims_with_relative_factors(kernel: Kernel, nodes: Collection[Term]) -> set[Dim]:
    """The dims of sums in which rows and columns choose a factor by column - row alone (relative_products.py)."""
    sums = [n for n in nodes if n.op == "reduce" and n.attrs[0] in ("sum", "rescaled")]
    return {dim for dim, parts in _factored(kernel, sums) if _by_relative_index(kernel, dim, parts)}


def _by_relative_index(kernel: Kernel, dim: Dim, parts: Sequence[Term]) -> dict[Term, frozenset[Dim]]:
    """The factors of a sum that column - row chooses. With each: which of rows and columns the other factors have."""
    rows, loops = kernel.rows, [loop.dim for loop in kernel.loops]
    if dim in loops:
        return dict.fromkeys(relative_factors(parts, rows, dim), frozenset({rows}))
    found = next(filter(None, (relative_scores(parts, rows, loop, dim) for loop in loops)), None)
    if found is None:
        return {}
    others = frozenset().union(*(p.dims for p in found.others)) & {rows, *loops}
    return {p: others for p in parts if p not in found.others}


def merge_contained(groups: dict[tuple[Dim, ...], list]) -> dict[tuple[Dim, ...], list]:
    """Factors by their dims. A group whose dims lie in those of exactly one other joins it, for that stays a matrix."""
    found: dict[tuple[Dim, ...], list] = {}
    for key, parts in groups.items():
        around = [k for k in groups if {*key} < {*k}]
        found.setdefault(around[0] if len(around) == 1 and key else key, []).extend(parts)
    return found


def may_have_rows_last(kernel: Kernel, nodes: Collection[Term]) -> bool:
    """Whether products of matrices have the rows, in tiles whose order of axes nothing else asks for.

    Such a product takes at least 16 places of its first dim, and 8 of its last, so that fewer rows than 16 stand last.
    """
    if len(kernel.tiled) != 1 or leading_dims(kernel, nodes) or dims_with_relative_factors(kernel, nodes):
        return False
    return kernel.rows in dims_of_matrices(kernel, nodes) and not any(store.places for store in kernel.stores)


def tiles_of_three_dims(kernel: Kernel, roots: Sequence[Term], placed: set[Dim]) -> list[frozenset[Dim]]:
    """The dims of tiles of three dims or more that are computed at once by anything but a product of matrices.

    Examples: a difference of vectors for each row and column, or a product with a factor that has the summed dim, rows
    and columns. placed: dims with one place in a tile.
    """
    found = (frozenset(dims - placed) for dims in _dims_outside_of_matrices(kernel, roots))
    return [dims for dims in found if len(dims) > 2]


def columns_of_cubes(kernel: Kernel, nodes: Collection[Term]) -> frozenset[Dim]:
    """The loops' dims over which tiles of rows, columns and resident dims are summed; they become the first axis.

    Triton lays the last axes of a tile over threads and warps. The first axis is then in the registers of one thread,
    which sums it alone; as the middle axis it crossed warps. The set is empty where the resident dims have fewer places
    than a warp has threads (this order took twice the time there, on one H200), and where a tile has leading dims.
    """
    placed = {*kernel.grid, *kernel.around}
    loops = {loop.dim for loop in kernel.loops if loop.tile}
    sums = ((dim, {dim}.union(*sides)) for dim, sides in _sums(kernel, nodes) if any(len(key) > 1 for key in sides))
    cubes = [(dim, cube - placed) for dim, cube in sums if dim in loops and len(cube - placed) > 2]
    placed |= {*kernel.tiled, *loops}
    wide = all(prod(map(power_of_two, cube - placed)) >= THREADS_OF_A_WARP for _, cube in cubes)
    return frozenset(dim for dim, _ in cubes) if wide and not leading_dims(kernel, nodes) else frozenset()


def places_outside_of_matrices(kernel: Kernel, roots: Sequence[Term], chunks: Mapping[Dim, int]) -> int:
    """The most places, for one row and column, of a tile that is folded over a chunk and is no product of matrices.

    0 where each chunk is summed by a product of matrices. Raises NotPlannable for a resident dim of unknown size.
    """
    placed = {*kernel.grid, *kernel.tiled, *kernel.around, *(loop.dim for loop in kernel.loops)}
    folded = (dims - placed for dims in _dims_outside_of_matrices(kernel, roots) if not dims.isdisjoint(chunks))
    return max((prod(chunks.get(d) or power_of_two(d) for d in dims) for dims in folded), default=0)


def _dims_outside_of_matrices(kernel: Kernel, roots: Sequence[Term]) -> Iterator[frozenset[Dim] | set[Dim]]:
    states = {r for loop in kernel.loops for state in loop.accumulators for r in state.reductions}  # made of the roots
    nodes = {n for root in roots for n in subterms(root, states.__contains__)}
    for node in nodes:
        integer_product = node.op == "mul" and is_integer(node.dtype)  # no matrix unit makes it
        if kernel.rows in node.dims and (node.op not in CONTRACTIBLE or integer_product):
            yield node.dims
    for dim, sides in _sums(kernel, nodes):
        if any(len(key) > 1 for key in sides):
            yield {dim}.union(*sides)
