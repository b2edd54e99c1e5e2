"""Which tiles of the loop each row tile runs, as far as the host knows it, and which program runs which row tile.

Where the limits of a loop depend on rows alone, their arithmetic is repeated here. Work of unequal length is then
balanced over programs, and tiles that need no guard are known before the kernel is written.
Example: with a causal mask the last row tile runs the longest loop, so a program begins with it.
"""

from __future__ import annotations

import heapq
from dataclasses import dataclass
from itertools import pairwise, zip_longest
from math import prod

import numpy as np

from ...egraph.terms.evaluate import evaluate
from ...egraph.terms.sizes import resolve
from ...egraph.terms.traversal import subterms
from ..hopper.config import HopperConfig, pace
from ..hopper.kernel_form import Binding
from ..masks.block_map import EMPTY, FULL, PARTIAL, WorkDistribution
from ..masks.loop_ranges import tile_range
from ..plan.device import H200
from ..plan.records import Limit

CACHE = 32 << 20  # bytes of streamed operands that should be in the L2 at one time
OVERHEAD = 150  # columns of a loop that the beginning and the end of an item cost as much time as


@dataclass(frozen=True)
class Ranges:
    """By tile of rows: tiles begin..end run, of which full_begin..full_end need no guard."""

    begin: np.ndarray
    end: np.ndarray
    full_begin: np.ndarray
    full_end: np.ndarray


def ranges(binding: Binding, sizes: dict, height: int, tile: int) -> Ranges | None:
    """The ranges of all tiles of `height` rows, without empty ones; None where limits depend on more than rows."""
    loop, rows = binding.loop, binding.kernel.rows
    if any(x.bound.dims - {rows} or _reads(x) for x in (*loop.uppers, *loop.lowers)):
        return None
    length, count = resolve(loop.dim.size, sizes), resolve(rows.size, sizes)
    first = np.arange(0, count, height)
    last = np.minimum(first + height, count) - 1
    stop = full_stop = np.full(len(first), length)
    begin = full_begin = np.zeros(len(first), dtype=np.int64)
    for limit in loop.uppers:
        least, largest = _ends(limit, rows, sizes, first, last)
        stop, full_stop = np.minimum(stop, largest), np.minimum(full_stop, least)
    for limit in loop.lowers:
        least, largest = _ends(limit, rows, sizes, first, last)
        begin, full_begin = np.maximum(begin, least), np.maximum(full_begin, largest)
    begin = np.minimum(begin // tile, -(-length // tile) - 1)
    end = np.maximum(-(-np.maximum(stop, 0) // tile), begin + 1)
    return Ranges(begin, end, -(-full_begin // tile), np.maximum(full_stop, 0) // tile)


def _reads(limit: Limit) -> bool:
    return any(n.op == "load" for n in subterms(limit.bound))


def _ends(limit: Limit, rows, sizes: dict, first: np.ndarray, last: np.ndarray):
    """(least, largest) bound over each tile of rows; one that is the same for all rows is evaluated to one value."""
    values = evaluate(limit.bound, {}, [rows], sizes).astype(np.int64)
    values = np.broadcast_to(values, resolve(rows.size, sizes))
    return (values[first], values[last]) if limit.rising else (values[last], values[first])


def classes(binding: Binding, sizes: dict, height: int, tile: int) -> np.ndarray | None:
    """The class of every tile, by tile of rows (lowering/masks/block_map.py); None where limits depend on more than
    rows.
    """
    loop, rows = binding.loop, binding.kernel.rows
    if any(x.bound.dims - {rows} or _reads(x) for x in loop.limits):
        return None
    length, count = resolve(loop.dim.size, sizes), resolve(rows.size, sizes)
    first = np.arange(0, count, height)
    last = np.minimum(first + height, count) - 1
    found = np.full((len(first), -(-length // tile)), EMPTY)
    for one in loop.ranges:
        uppers, lowers = (
            [np.stack(_ends(limit, rows, sizes, first, last), -1).tolist() for limit in side]
            for side in (one.uppers, one.lowers)
        )
        for n, classed in enumerate(found):
            tiles = tile_range(tile, length, [u[n] for u in uppers], [x[n] for x in lowers])
            classed[tiles.start : tiles.stop] = np.maximum(classed[tiles.start : tiles.stop], PARTIAL)
            if one.exact:
                classed[tiles.full_start : tiles.full_stop] = FULL
    return found


def guarded_tiles(binding: Binding, own: Ranges | None) -> str:
    """Which tiles need the guard, walking down from the end: "none", "first", "some" (a branch decides) or "all"."""
    if binding.loop.guard is None:
        return "none"
    if not binding.loop.limits_only:
        return "all"
    if own is None:
        return "some"
    one = own.end - own.begin == 1
    rest_full = (own.begin >= own.full_begin) & (own.end - 1 <= own.full_end)
    if not bool((one | rest_full).all()):
        return "some"
    return "none" if bool(((own.begin >= own.full_begin) & (own.end <= own.full_end)).all()) else "first"


def skewed(own: Ranges | None, block: Ranges | None, consumers: int) -> bool:
    """Whether some 64 rows run fewer tiles than the program that they belong to."""
    if own is None or block is None:
        return True
    of = np.arange(len(own.begin)) // consumers
    return bool((own.begin != block.begin[of]).any() or (own.end != block.end[of]).any())


def work(lengths: np.ndarray, count: int, consumers: int) -> np.ndarray:
    """The time of each tile of rows, in tiles of the loop: where some warpgroups have no rows, others run faster."""
    live = -(-(count - H200.product_rows * consumers * (len(lengths) - 1)) // H200.product_rows)
    found = lengths.astype(np.float64)
    found[-1] *= pace(live, consumers)
    return found


def chainable(own: Ranges | None, block: Ranges | None, consumers: int, depth: int) -> bool:
    """Whether 64 rows can begin an item before they have handed back the last matrix of the item before: all tiles that
    they leave out come first, and are fewer than there are slots."""
    if own is None or block is None:
        return False
    of = np.arange(len(own.begin)) // consumers
    return bool((own.begin == block.begin[of]).all() and (block.end[of] - own.end < depth).all())


def dealt(lengths: np.ndarray, points: int, bytes_a_point: int, programs: int, tile: int) -> np.ndarray:
    """Who runs what: column p is how many items program p has, then these; an item is point · tiles of rows + tile of
    rows. A program finds its first item without having read anything else.

    lengths: of each tile of rows, as `work` gives them. List scheduling, longest first, among few grid points at
    a time: no more than keep the programs busy, so that memory is read evenly, not in bursts; at the end as many as
    the L2 holds, so that short items fill what is left.
    """
    cost = lengths + OVERHEAD / tile
    order = np.argsort(-cost, kind="stable")
    free: list[tuple[float, int]] = [(0.0, p) for p in range(programs)]
    mine: list[list[int]] = [[] for _ in range(programs)]
    for start, stop in _groups(points, *at_a_time(points, len(cost), programs, bytes_a_point)):
        for rows in order.tolist():
            for point in range(start, stop):
                busy, program = free[0]
                heapq.heapreplace(free, (busy + cost[rows], program))
                mine[program].append(point * len(cost) + rows)
    columns = [[len(items), *items] for items in mine]
    return np.array(list(zip_longest(*columns, fillvalue=-1)), dtype=np.int32)


def at_a_time(points: int, tiles: int, programs: int, bytes_a_point: int) -> tuple[int, int]:
    """How many grid points of so many tiles of rows are dealt out at a time, and at the end."""
    few = -(-programs // tiles)
    return few, min(points, max(few, CACHE // max(bytes_a_point, 1)))


def streamed(binding: Binding, length: int) -> int:
    """Bytes that the items of one grid point stream."""
    return 2 * length * sum(resolve(o.inner.size, {}) for o in binding.streams)


def dealing(binding: Binding, config: HopperConfig, sizes: dict, total: int, places: int) -> WorkDistribution | None:
    """How a table deals out items whose lengths a map in memory says, on `places` multiprocessors; None where each
    program has one, or all have the same list."""
    kernel, record, programs = binding.kernel, binding.loop.map, places * config.residents
    if not config.ordered or total <= programs or not (record.dims or record.rows):
        return None
    lengths = [resolve(d.size, sizes) for d in kernel.grid]
    points, tiles = prod(lengths), total // prod(lengths)
    listed = (*(n if d in record.dims else 1 for d, n in zip(kernel.grid, lengths)), tiles if record.rows else 1)
    bytes_a_point = streamed(binding, resolve(binding.loop.dim.size, sizes))
    few, last = at_a_time(points, tiles, programs, bytes_a_point)
    return WorkDistribution(programs, (*lengths, tiles), listed, few, last, OVERHEAD)


def _groups(points: int, few: int, last: int) -> list[tuple[int, int]]:
    """(start, stop) of grid points: `few` at a time, at the end `last`."""
    starts = [*range(0, points - last, few), points - last]
    return list(pairwise([*dict.fromkeys(starts), points]))
