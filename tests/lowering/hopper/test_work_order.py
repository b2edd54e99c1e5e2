"""Items whose lengths only the device knows, dealt out to programs: everyone once, evenly, few grid points at a time.

The kernel runs in Triton's interpreter here, and on a GPU where there is one.
"""

from dataclasses import replace
from math import prod

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from onepass.egraph.terms.ops import eq, iota, le, load, logical_and
from onepass.egraph.terms.term import Dim, Tensor
from onepass.lowering.hopper import work_order
from onepass.lowering.hopper.work_order import CACHE, IDLE, OVERHEAD, at_a_time, longest_first
from onepass.lowering.masks.block_map import MapCache, Tiling, WorkDistribution
from onepass.lowering.masks.tile_lists import distributed_items
from onepass.lowering.plan.records import BlockMap
from onepass.lowering.triton.launch import build_map, typical_run, with_items_dealt
from tests.lowering.masks.test_block_map import DEVICE

TILE = 64


def record_of(items, apart, programs, streamed=CACHE):
    """How items are dealt out whose axes have lists of their own where `apart` says so."""
    few, last = at_a_time(prod(items[:-1]), items[-1], programs, streamed)
    listed = tuple(n if own else 1 for n, own in zip(items, apart, strict=True))
    return WorkDistribution(programs, items, listed, few, last, OVERHEAD)


def lengths_of(record, seed):
    return torch.randint(1, 40, record.listed, generator=torch.Generator().manual_seed(seed)).int()


def columns_of(table):
    return [column[1 : 1 + column[0]] for column in table.T.tolist()]


def busy(columns, lengths, items):
    """Columns of a loop that each program runs, with what its items cost beside."""
    every = (lengths.expand(items) * TILE + OVERHEAD).flatten().tolist()
    return [sum(every[n] for n in mine) for mine in columns], max(every)


@pytest.mark.slow
@settings(max_examples=10)
@given(
    st.lists(st.integers(1, 5), min_size=1, max_size=3).map(tuple),
    st.lists(st.booleans(), min_size=3, max_size=3),
    st.integers(1, 9),
    st.sampled_from([CACHE, CACHE // 3]),
    st.integers(0, 99),
)
def test_every_item_is_dealt_out_once_and_evenly(items, apart, programs, streamed, seed):
    record = record_of(items, apart[: len(items)], programs, streamed)
    lengths = lengths_of(record, seed)
    lists = torch.stack([lengths, torch.full_like(lengths, -5)], -1).to(DEVICE)
    columns = columns_of(distributed_items(lists, record, TILE).cpu())
    assert len(columns) == programs
    assert sorted(n for mine in columns for n in mine) == list(range(prod(items)))
    loads, longest = busy(columns, lengths, items)
    assert max(loads) <= sum(loads) / programs + 2 * longest


@pytest.mark.sampled(1)
@pytest.mark.parametrize("points,tiles,programs", [(6, 16, 24), (3, 20, 16)])
def test_the_host_and_the_device_deal_alike(points, tiles, programs):
    record = record_of((points, tiles), (False, True), programs, CACHE // 2)
    lengths = lengths_of(record, 7)
    there = columns_of(distributed_items(torch.stack([lengths, lengths], -1).to(DEVICE), record, TILE).cpu())
    cost = lengths.flatten().numpy() + OVERHEAD / TILE
    groups = work_order._groups(points, record.few, record.last)
    order = np.argsort(-cost, kind="stable").tolist()
    here = work_order.list_scheduled(work_order.in_turn(groups, order), cost, programs)
    loads, known = (max(busy(c, lengths, record.items)[0]) for c in (there, columns_of(torch.from_numpy(here))))
    assert loads <= 1.05 * known
    first = [mine[0] // tiles for mine in there]
    assert max(first) < work_order.few_at_a_time(tiles, programs), "programs begin with the first grid points"


def test_items_that_are_alike_begin_with_those_of_one_grid_point():
    record = record_of((6, 8), (False, True), 8, streamed=1)
    lists = torch.full((1, 8, 2), 5).int().to(DEVICE)
    columns = columns_of(distributed_items(lists, record, TILE).cpu())
    assert record.last == 6 and {mine[0] // 8 for mine in columns} == {0}


def test_a_program_with_one_long_item_gets_no_other_and_no_column_overflows():
    record = record_of((1, 30), (False, True), 3)
    lengths = torch.ones(1, 30).int()
    lengths[0, 17] = 30000
    lists = torch.stack([lengths, lengths], -1).to(DEVICE)
    columns = columns_of(distributed_items(lists, record, TILE).cpu())
    assert [17] in columns and sorted(map(len, columns)) == [1, 14, 15]


@pytest.mark.parametrize("own", [(False, False, True), (True, False, True), (True, True, True)], ids=str)
@pytest.mark.parametrize("items, at_once", [((2, 5, 7), 4), ((3, 2, 16), 40), ((1, 1, 9), 2)], ids=str)
def test_items_apart_begin_with_the_longest_of_a_few_grid_points(items, at_once, own):
    found = record_of(items, own, at_once, CACHE // 3)
    record = replace(found, programs=prod(items))
    lengths = lengths_of(record, 3)
    columns = columns_of(distributed_items(torch.stack([lengths, lengths], -1), record, TILE))
    order = [item for (item,) in columns]
    assert sorted(order) == list(range(prod(items)))
    tiles, every = items[-1], lengths.expand(items).flatten().tolist()
    groups = work_order._groups(prod(items[:-1]), record.few, record.last)
    begun = 0
    for start, stop in groups:
        mine = order[begun : begun + (stop - start) * tiles]
        begun += len(mine)
        assert {item // tiles for item in mine} == set(range(start, stop))
        for point in range(start, stop):
            taken = [every[item] for item in mine if item // tiles == point]
            assert taken == sorted(taken, reverse=True)


def documents(rows):
    i, j = Dim("i", rows), Dim("j", rows)
    ids = [load(Tensor("ids", "int64", (rows,)), iota(d)) for d in (i, j)]
    return BlockMap(logical_and(eq(*ids), le(iota(j), iota(i))), j, (), (i,))


@pytest.mark.slow
def test_a_map_brings_its_table_and_says_what_tiles_of_rows_run():
    rows = 16 * TILE
    ids = (torch.arange(rows) >= 4 * TILE).long().to(DEVICE)
    record = record_of((1, 2, 16), (False, False, True), 4)
    tiling = Tiling(documents(rows), TILE, TILE, (), together=1, dealt=record)
    found = build_map(tiling, {"ids": ids})
    kept = torch.tensor([1, 2, 3, 4, *range(1, 13)])
    assert torch.equal(found[0][:, 0].cpu(), kept.int())
    assert columns_of(found[1].cpu()) == [list(range(p, 32, 4)) for p in range(4)]
    lists, table = with_items_dealt(tiling, found)
    loads, longest = busy(columns_of(table.cpu()), kept.expand(1, 2, 16), (1, 2, 16))
    assert lists is found[0] and max(loads) <= sum(loads) / 4 + longest
    assert typical_run(Tiling(documents(rows), TILE, TILE, ()), {"ids": ids}) == TILE * kept.double().quantile(0.9)


@pytest.mark.parametrize("items,programs", [((2, 3, 5), 7), ((1, 8), 4), ((1, 3), 3), ((9,), 2)])
def test_in_turn_programs_take_every_item_once(items, programs):
    columns = columns_of(record_of(items, (True,) * len(items), programs).in_turn(torch.device(DEVICE)).cpu())
    assert columns == [list(range(p, prod(items), programs)) for p in range(programs)]


def test_items_are_dealt_by_length_when_a_mask_is_read_again():
    calls = []
    build = lambda tiling, values: calls.append("built") or ("lists", "in turn")
    again = lambda tiling, found: calls.append("dealt") or (found[0], "by length")
    ids, tiling = torch.zeros(64), Tiling(documents(64), TILE, TILE, ())
    cache = MapCache()
    read = lambda: cache.get(tiling, {"ids": ids}, build, again)
    assert [read(), read(), read()] == [("lists", "in turn"), ("lists", "by length"), ("lists", "by length")]
    ids.add_(1)
    assert [read()[1], read()[1]] == ["in turn", "by length"] and calls == ["built", "dealt"] * 2


def end_of(items, cost, programs):
    """When the last item ends, if each is given to the program that is free first."""
    free = [0.0] * programs
    for item in items:
        free[free.index(min(free))] += cost[item % len(cost)]
    return max(free)


@settings(max_examples=50)
@given(st.integers(1, 20), st.integers(1, 12), st.integers(1, 30), st.sampled_from([1, CACHE // 8, CACHE]))
def test_the_longest_items_begin_first(points, tiles, programs, streamed):
    cost = np.arange(tiles, 0, -1) + 0.5
    items = list(longest_first(cost, points, streamed, programs))
    assert sorted(items) == list(range(points * tiles))
    assert end_of(items, cost, programs) <= points * cost.sum() / programs + cost.max()


@pytest.mark.parametrize("points,heads", [(8, 8), (16, 8), (16, 4)])
def test_programs_are_not_idle_at_the_end_where_heads_share_keys(points, heads):
    """In groups of 5 and 3 of 8 points, the longest items of the second begin late: all ended 1.37 times as late."""
    cost = (np.arange(64, 0, -2) + 0.0) * heads
    found, last = (end_of(items, cost, 132) for items in (
        longest_first(cost, points, heads << 21, 132),
        work_order.in_turn(work_order.groups_of(points, 5), range(32)),
    ))  # fmt: skip
    fair = points * cost.sum() / 132
    assert found <= IDLE * fair and last > 1.3 * fair
