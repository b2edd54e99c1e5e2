"""Small Triton kernels that turn the classes of tiles into lists of tiles, and distribute lists over programs.

One program makes one list. A tile's place in it is a running count, so nothing is sorted. Entries after a list's end
are not written. Lengths stay on the device, so that the host does not wait. Example: classes 0 2 1 2 give the list 2,
1, 3.
"""

from __future__ import annotations

from math import prod

import torch
import triton
import triton.language as tl

from .block_map import WorkDistribution

NUMBERS = ["tiles", "head", "few", "last", "apart", "programs", "total", "most", "tile", "overhead"]
MAX_IMBALANCE = 4  # a program has at most this many times the average number of items, and this many more


@triton.jit
def list_of_one(classes, lists, count, BLOCK: tl.constexpr):
    """Of [count] classes of a tile of rows: how many are partial, how many not empty, then these, partial first."""
    program = tl.program_id(0).to(tl.int64)
    numbers = tl.arange(0, BLOCK)
    found = tl.load(classes + program * count + numbers, mask=numbers < count, other=0)
    partial, full = (found == 1).to(tl.int32), (found == 2).to(tl.int32)
    partial_count = tl.sum(partial, axis=0)
    mine = lists + program * (count + 3)
    tl.store(mine, partial_count)
    tl.store(mine + 1, partial_count + tl.sum(full, axis=0))
    place = tl.where(partial == 1, tl.cumsum(partial, axis=0), partial_count + tl.cumsum(full, axis=0))
    tl.store(mine + 1 + place, numbers, mask=found != 0)


@triton.jit
def list_of_several(classes, lists, count, rows, groups, outer, step, TOGETHER: tl.constexpr, BLOCK: tl.constexpr):
    """`shared_visits` of classes [.., rows, count], with strides `step` of rows and `outer` of what is before them."""
    program = tl.program_id(0).to(tl.int64)
    first = program % groups * TOGETHER
    mine = lists + program * (count + 1 + 2 * TOGETHER)
    base = classes + program // groups * outer
    numbers = tl.arange(0, BLOCK)
    visited = tl.zeros([BLOCK], tl.int32)
    entries = numbers << TOGETHER
    for w in tl.static_range(TOGETHER):
        exists = numbers < tl.where(first + w < rows, count, 0)
        found = tl.load(base + (first + w) * step + numbers, mask=exists, other=0)
        visited = visited | (found != 0).to(tl.int32)
        entries += (found != 2).to(tl.int32) << w
    # where nothing is kept the first tile is in the list, so that every state gets its start value
    visited = tl.where(numbers == 0, tl.maximum(visited, 1 - tl.max(visited, axis=0)), visited)
    place = tl.cumsum(visited, axis=0) - 1
    tl.store(mine, tl.sum(visited, axis=0))
    for w in tl.static_range(TOGETHER):
        exists = numbers < tl.where(first + w < rows, count, 0)
        kept = tl.load(base + (first + w) * step + numbers, mask=exists, other=0) != 0
        last = tl.max(tl.where(kept, place + 1, 0), axis=0)
        begin = tl.min(tl.where(kept, place, count), axis=0)
        tl.store(mine + 1 + 2 * w, tl.where(last > 0, begin, 0))
        tl.store(mine + 2 + 2 * w, tl.maximum(last, 1))
    tl.store(mine + 1 + 2 * TOGETHER + place, entries, mask=visited != 0)


def visit_lists(classes: torch.Tensor, together: int, by_rows: bool) -> torch.Tensor:
    """Lists of the tiles to visit, from contiguous int32 classes [..., (rows,) count].

    A list is as in `list_of_one`, or for several tiles of rows together as in `shared_visits`. by_rows: whether there
    is an axis of rows; without it, one class holds for all rows.
    """
    count, outer = classes.shape[-1], classes.shape[:-1]
    block = triton.next_power_of_2(count)
    if not together:
        lists = classes.new_empty((*outer, count + 3))
        list_of_one[(outer.numel(),)](classes, lists, count, BLOCK=block)
        return lists
    rows, step = (outer[-1], count) if by_rows else (together, 0)
    groups = -(-rows // together)
    lists = classes.new_empty((*(outer[:-1] if by_rows else outer), groups, count + 1 + 2 * together))
    sizes = (count, rows, groups, max(step * rows, count), step)
    list_of_several[(lists.shape[:-1].numel(),)](classes, lists, *sizes, TOGETHER=together, BLOCK=block)
    return lists


@triton.jit(do_not_specialize=NUMBERS)
def table_of_items(
    lengths, places, firsts, ends, table, tiles, head, few, last, apart, programs, total, most, tile, overhead,
    STEP: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """List scheduling by one program, which makes the table of items.

    A lane holds a key of one program of the kernel: the columns that it has so far, its number of items, its number. In
    each round the STEP least busy programs take the next items, the least busy one the longest. Lengths and places are
    sorted by falling length. Among equal lengths, from firsts to ends, items of one grid point come first, as they read
    the same memory.
    """
    lane = tl.arange(0, BLOCK)
    key = tl.where(lane < programs, lane.to(tl.int64), (1 << 62) + 0xFFF)
    for first in range(0, total, STEP):
        key = tl.sort(key)
        at = first + lane
        takes = (lane < STEP) & (at < total)
        early = at < head * tiles
        start = tl.where(early, at // (few * tiles) * few, head)
        size = tl.where(early, tl.minimum(few, head - start), last)
        within = at - start * tiles
        begin = tl.load(firsts + within // size, mask=takes, other=0).to(tl.int32)
        alike = tl.load(ends + within // size, mask=takes, other=1).to(tl.int32) - begin
        within -= begin * size
        point, rank = start + within // alike, begin + within % alike
        length = tl.load(lengths + point * apart + rank, mask=takes, other=0)
        place = tl.load(places + point * apart + rank, mask=takes, other=0)
        count, program = (key >> 12) & 0xFFFFF, key & 0xFFF
        tl.store(table + (count + 1) * programs + program, point * tiles + place.to(tl.int32), mask=takes)
        taken = ((length * tile + overhead).to(tl.int64) << 32) + (1 << 12)
        key = tl.where(takes, key + taken, key)
        key = tl.where(takes & (count + 1 == most), key | (1 << 62), key)
    tl.store(table + (key & 0xFFF), (key >> 12) & 0xFFFFF, mask=(key & 0xFFF) < programs)


def distributed_items(lists: torch.Tensor, dealt: WorkDistribution, tile: int) -> torch.Tensor:
    """The table of items, from lists of tiles that are `tile` wide: int32 [1 + the most items of a program, programs].

    Row 0 has each program's number of items, the rows below have the items. Entries after a program's last item are not
    written. lowering/hopper/work_order.py makes the same table on the host.
    """
    *grid, tiles = dealt.items
    points, total = prod(grid), prod(dealt.items)
    lengths, places = lists[..., 0].reshape(dealt.listed).expand(*dealt.listed[:-1], tiles).sort(descending=True)
    apart = 0 if lengths.numel() == tiles else tiles
    if dealt.apart:
        return _longest_first(places.expand(dealt.items).reshape(points, tiles), dealt)
    if apart:
        firsts = torch.arange(tiles, device=lists.device)
        ends = firsts + 1
        lengths, places = (x.expand(dealt.items).contiguous() for x in (lengths, places))
    else:
        rising = -lengths.flatten()
        firsts, ends = (torch.searchsorted(rising, rising, right=after) for after in (False, True))
    most = MAX_IMBALANCE * -(-total // dealt.programs) + MAX_IMBALANCE
    table = lists.new_empty((1 + most, dealt.programs))
    sizes = (tiles, points - dealt.last, dealt.few, dealt.last, apart, dealt.programs, total, most)
    step, block = max(1, dealt.programs // 2), triton.next_power_of_2(dealt.programs)
    table_of_items[(1,)](lengths, places, firsts, ends, table, *sizes, tile, dealt.overhead, STEP=step, BLOCK=block)
    return table


def _longest_first(places: torch.Tensor, dealt: WorkDistribution) -> torch.Tensor:
    """The table where each item has a program of its own: of a few grid points at a time, the longest items first.

    places: [grid points, tiles of rows], of each point the tiles by falling length.
    """
    points, tiles = places.shape
    total = points * tiles
    head = points - dealt.last
    number = torch.arange(total, device=places.device)
    early = number < head * tiles
    start = torch.where(early, number // (dealt.few * tiles) * dealt.few, head)
    size = torch.where(early, (head - start).clamp(max=dealt.few), dealt.last)
    within = number - start * tiles
    point = start + within % size
    row = places[point, within // size]
    return torch.stack([torch.ones_like(number), point * tiles + row]).int()
