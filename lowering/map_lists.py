"""From the classes of tiles to the lists of tiles that kernels follow: one small Triton kernel for each form of list.

A program makes one list: places are running counts, so nothing is sorted. Entries behind a list's end are not written.
Used by triton_launch.py; the forms are those of block_map.py.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl


@triton.jit
def list_of_one(classes, lists, count, BLOCK: tl.constexpr):
    """[count] classes of a tile of rows: how many are partial, how many not empty, then those, partial ones first."""
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
    """`shared_visits` of [.., rows, count] classes: rows are `step` apart, what is before them `outer` apart."""
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
    # where nothing is kept the first tile stands in the list, so that every state begins
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
    """Lists of the tiles to visit from int32 classes [..., (rows,) count], contiguous: as `list_of_one` says, or for
    several tiles of rows together `shared_visits`. Without rows one class holds for all of them."""
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
