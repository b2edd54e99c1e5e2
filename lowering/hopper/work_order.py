"""Which tiles of the loop each row tile runs, as far as the host knows it, and which program runs which row tile.

Where the limits of a loop depend on rows alone, their arithmetic is repeated here. Work of unequal length is then
balanced over programs, and tiles that need no guard are known before the kernel is written.
Example: with a causal mask the last row tile runs the longest loop, so a program begins with it.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise, zip_longest
from math import prod

import numpy as np

from ...egraph.terms.evaluate import evaluate
from ...egraph.terms.sizes import resolve
from ...egraph.terms.traversal import subterms
from ..masks.block_map import EMPTY, FULL, PARTIAL, WorkDistribution
from ..masks.loop_ranges import tile_range
from ..plan.device import H200
from ..plan.records import Limit
from .config import WarpSettings, pace
from .kernel_form import Binding, WarpBinding

CACHE = 32 << 20  # bytes, of what is read or added to again and again, that should be in the L2 cache at one time
IDLE = 1.03  # the last item may end so many times as late as it would if no program were ever idle
OVERHEAD = 150  # columns of a loop that the beginning and the end of an item cost as much time as


@dataclass(frozen=True)
class Ranges:
    """For each tile of rows: the loop runs the tiles from begin to end; those from full_begin to full_end need no
    guard.
    """

    begin: np.ndarray
    end: np.ndarray
    full_begin: np.ndarray
    full_end: np.ndarray


def ranges(binding: WarpBinding, sizes: dict, height: int, tile: int) -> Ranges | None:
    """The range of every tile of `height` rows, at least one tile long; None if a limit depends on more than the rows.
    """
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
    """The least and the largest value of a bound in each tile of rows."""
    values = evaluate(limit.bound, {}, [rows], sizes).astype(np.int64)
    values = np.broadcast_to(values, resolve(rows.size, sizes))
    return (values[first], values[last]) if limit.rising else (values[last], values[first])


def classes(binding: WarpBinding, sizes: dict, height: int, tile: int) -> np.ndarray | None:
    """The class of every tile of the loop, for each tile of rows: EMPTY, PARTIAL or FULL, as in a block map.

    None if a limit depends on more than the rows.
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
    """Which tiles of a range need the guard: "none", the "first" to run, "some" (tested at run time), or "all"."""
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
    """Whether some warpgroup, which has 64 rows, runs fewer tiles than its program."""
    if own is None or block is None:
        return True
    of = np.arange(len(own.begin)) // consumers
    return bool((own.begin != block.begin[of]).any() or (own.end != block.end[of]).any())


def work(lengths: np.ndarray, count: int, consumers: int) -> np.ndarray:
    """The time of each tile of rows, in tiles of the loop.

    The last one is faster if some of its warpgroups have no rows.
    """
    live = -(-(count - H200.product_rows * consumers * (len(lengths) - 1)) // H200.product_rows)
    found = lengths.astype(np.float64)
    found[-1] *= pace(live, consumers)
    return found


def chainable(own: Ranges | None, block: Ranges | None, consumers: int, depth: int) -> bool:
    """Whether a warpgroup may begin an item before it has released the last tile of the item before.

    It may if the tiles that it leaves out are the first ones, and fewer than the slots of the ring.
    """
    if own is None or block is None:
        return False
    of = np.arange(len(own.begin)) // consumers
    return bool((own.begin == block.begin[of]).all() and (block.end[of] - own.end < depth).all())


def dealt(
    lengths: np.ndarray, points: int, bytes_a_point: int, programs: tuple[int, int], tile: int
) -> np.ndarray:
    """The items of each program, as a table: column p holds the number of items of program p, and then the items.

    An item's number is point · (tiles of rows) + tile of rows. lengths: the time of each tile of rows, from `work`.
    programs: how many there are, and how many run at a time. Items are given to the program that is free first, in the
    order of `longest_first`.
    """
    count, at_once = programs
    cost = lengths + OVERHEAD / tile
    return list_scheduled(longest_first(cost, points, bytes_a_point, at_once), cost, count)


def longest_first(cost: np.ndarray, points: int, bytes_a_point: int, programs: int) -> Iterator[int]:
    """Items in the order in which they begin: of a few grid points at a time, the longest first (list scheduling).

    With few points at a time, what is read or added to again is still in the L2 cache. The last points come together,
    as many as the cache holds, so that short items fill the time that is left. If programs would still be idle for
    long, all groups get another size.
    """
    order = np.argsort(-cost, kind="stable").tolist()
    few, last = at_a_time(points, len(cost), programs, bytes_a_point)
    larger = [few << doublings for doublings in range((last // few).bit_length())]
    sizes = dict.fromkeys(evenly(points, size) for size in (*larger, last))
    groupings = [_groups(points, few, last), *(groups_of(points, size) for size in sizes)]
    return in_turn(_evenest(groupings, order, cost, points, programs), order)


def _evenest(
    groupings: Iterable[list[tuple[int, int]]], order: Sequence[int], cost: np.ndarray, points: int, programs: int
) -> list[tuple[int, int]]:
    """The first of the groupings whose items end early enough, else the one whose items end first.

    Example: 8 points of 32 causal tiles, for 132 programs. In groups of 5 and 3 points, the longest items of the second
    group begin late: the last item ends 1.37 times as late as it would if no program were ever idle. In one group it
    does not end later than that.
    """
    enough = IDLE * max(points * float(cost.sum()) / programs, float(cost.max()))
    ends = []
    for groups in groupings:
        ends.append((_end(in_turn(groups, order), cost, programs), groups))
        if ends[-1][0] <= enough:
            break
    return min(ends)[1]


def _end(items: Iterable[int], cost: np.ndarray, programs: int) -> float:
    """When the last item ends, if each is given to the program that is free first."""
    free, costs = [0.0] * programs, cost.tolist()
    for item in items:
        heapq.heapreplace(free, free[0] + costs[item % len(costs)])
    return max(free)


def in_turn(groups: Iterable[tuple[int, int]], order: Sequence[int]) -> Iterator[int]:
    """The items of one group of grid points after the other; within a group, the tiles of rows in this order.

    groups: (first point, the one behind the last). An item's number is point · (tiles of rows) + tile of rows.
    """
    return (point * len(order) + rows for start, stop in groups for rows in order for point in range(start, stop))


def list_scheduled(items: Iterable[int], cost: np.ndarray, programs: int) -> np.ndarray:
    """A table of items, each given to the program that is free first, in this order.

    An item's number is point · (tiles of rows) + tile of rows; cost: the time of each tile of rows.
    """
    free: list[tuple[float, int]] = [(0.0, p) for p in range(programs)]
    mine: list[list[int]] = [[] for _ in range(programs)]
    for item in items:
        busy, program = free[0]
        heapq.heapreplace(free, (busy + cost[item % len(cost)], program))
        mine[program].append(item)
    columns = [[len(items), *items] for items in mine]
    return np.array(list(zip_longest(*columns, fillvalue=-1)), dtype=np.int32)


def at_a_time(points: int, tiles: int, programs: int, bytes_a_point: int) -> tuple[int, int]:
    """How many grid points are given out at a time, and how many together at the end, each with `tiles` tiles of rows.

    At a time these have an item for a quarter of the programs. With an item for every program, backwards of causal
    attention took up to 8 % longer on an H100 (length 1024, head dim 256).
    """
    last = min(points, max(few_at_a_time(tiles, programs), CACHE // max(bytes_a_point, 1)))
    return evenly(points - last, few_at_a_time(tiles, -(-programs // 4))), last


def few_at_a_time(tiles: int, programs: int) -> int:
    """The fewest grid points, each with `tiles` tiles of rows, that have an item for every program."""
    return -(-programs // tiles)


def evenly(points: int, few: int) -> int:
    """How many grid points to give out at a time: at most `few`, and in the last group about as many."""
    return max(1, -(-points // max(1, -(-points // few))))


def groups_of(points: int, few: int) -> list[tuple[int, int]]:
    """Ranges of grid points, as (start, stop): `few` points each; the last one may have fewer."""
    return [(start, min(start + few, points)) for start in range(0, points, few)]


def streamed(binding: WarpBinding, length: int) -> int:
    """Bytes that the loop loads for one grid point."""
    return 2 * length * sum(resolve(o.inner.size, {}) for o in binding.streams)


def dealing(
    binding: WarpBinding, config: WarpSettings, sizes: dict, total: int, places: int, apart: bool = False
) -> WorkDistribution | None:
    """How items with a block map are given to programs, on `places` multiprocessors: their lengths are in memory.

    None if as many programs run at a time as there are items, or if all items have the same list. apart: whether each
    item has a program of its own.
    """
    kernel, record, programs = binding.kernel, binding.loop.map, places * config.residents
    if not config.ordered or total <= programs or not (record.dims or record.rows):
        return None
    lengths = [resolve(d.size, sizes) for d in kernel.grid]
    points, tiles = prod(lengths), total // prod(lengths)
    listed = (*(n if d in record.dims else 1 for d, n in zip(kernel.grid, lengths)), tiles if record.rows else 1)
    bytes_a_point = streamed(binding, resolve(binding.loop.dim.size, sizes))
    few, last = at_a_time(points, tiles, programs, bytes_a_point)
    return WorkDistribution(total if apart else programs, (*lengths, tiles), listed, few, last, OVERHEAD)


def _groups(points: int, few: int, last: int) -> list[tuple[int, int]]:
    """Ranges of grid points, as (start, stop): `few` points each, and `last` points in the last one."""
    starts = [*range(0, points - last, few), points - last]
    return list(pairwise([*dict.fromkeys(starts), points]))
