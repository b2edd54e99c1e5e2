"""The order in which programs add to sums over the rows: who waits for whom, and that nobody waits for ever."""

import re
from collections import defaultdict
from dataclasses import replace

import numpy as np
import pytest
import torch

from onepass.lowering.gluon.launch import RefusedLaunch
from onepass.lowering.hopper import work_order
from onepass.lowering.joined.form import bind_joined
from onepass.lowering.joined.join import join
from onepass.lowering.joined.launch import config_of, in_order, last_visitors, prepare_joined
from tests.support.gluon_ahead_of_time import backward_plan_of, joined_source_of, without_memory

KINDS = "full causal window shifted groups alibi".split()
SIZES = [(512, 512, 64), (1000, 1000, 128), (320, 960, 64), (960, 320, 128), (300, 300, 256)]  # rows, columns, width


def call_of(kind, rows, columns, width, places, heads=4, persistent=True):
    binding = bind_joined(join(backward_plan_of(kind, width, rows=rows, columns=columns, batch=2, heads=heads)).main)
    config = replace(config_of(binding), persistent=persistent, in_order=True)
    values = without_memory(binding.kernel)
    return binding, config, prepare_joined(binding, config, values, {}, places)


def programs_of(table):
    return [column[1 : 1 + column[0]].tolist() for column in table.numpy().T]


def run(programs, ranges, last, around, tickets=()):
    """Runs programs side by side, a tile each in a round, by the rule of the keeper; who added to each block.

    programs: the items of each at the start. tickets: items that a program takes, one by one, when it has none.
    """
    tiles, added, waiting = len(ranges.begin), defaultdict(list), list(tickets)
    steps = lambda items: [
        (item // tiles, item % tiles, member, tile) for item in items for member in range(around)
        for tile in range(ranges.begin[item % tiles], ranges.end[item % tiles])
    ]  # fmt: skip
    todo = [steps(items) for items in programs]
    while any(todo) or waiting:
        todo = [mine or steps([waiting.pop(0)] if waiting else []) for mine in todo]
        ready = [
            mine for mine in todo
            if mine and len(added[mine[0][0], mine[0][2], mine[0][3]]) >= last[mine[0][3]] - mine[0][1]
        ]  # fmt: skip
        assert ready, "every program waits for another one"
        for mine in ready:
            point, rows, member, tile = mine.pop(0)
            added[point, member, tile].append(rows)
    return added


def check_order(added, binding, config, call):
    """Each block has its adders once, the last rows first."""
    ranges = work_order.ranges(binding, {}, config.row_tile, config.loop_tile)
    around = int(np.prod([d.size for d in binding.loop.outer]))
    visits = sum((ranges.end - ranges.begin).tolist()) * (call.total // len(ranges.begin)) * around
    assert sum(map(len, added.values())) == visits
    for (_, _, tile), rows in added.items():
        wanted = [n for n in range(len(ranges.begin)) if ranges.begin[n] <= tile < ranges.end[n]]
        assert rows == wanted[::-1]


@pytest.mark.sampled(1)
@pytest.mark.parametrize("places", [3, 7, 132])
@pytest.mark.parametrize("size", SIZES, ids=str)
@pytest.mark.parametrize("kind", KINDS)
def test_programs_add_from_the_last_rows_to_the_first_and_all_end(kind, size, places):
    binding, config, call = call_of(kind, *size, places)
    programs = programs_of(call.table)
    assert sorted(item for items in programs for item in items) == list(range(call.total))
    ranges = work_order.ranges(binding, {}, config.row_tile, config.loop_tile)
    around = int(np.prod([d.size for d in binding.loop.outer]))
    check_order(run(programs, ranges, call.listed.tolist(), around), binding, config, call)


@pytest.mark.sampled(4)
@pytest.mark.parametrize("places", [3, 132])
@pytest.mark.parametrize("size", SIZES, ids=str)
@pytest.mark.parametrize("kind", ["causal", "groups"])
def test_programs_that_take_tickets_add_in_the_same_order(kind, size, places):
    binding, config, call = call_of(kind, *size, places, persistent=False)
    assert config.takes_tickets and call.programs == call.total
    items = call.table.tolist()
    assert sorted(items) == list(range(call.total))
    ranges = work_order.ranges(binding, {}, config.row_tile, config.loop_tile)
    around = int(np.prod([d.size for d in binding.loop.outer]))
    added = run([[] for _ in range(places)], ranges, call.listed.tolist(), around, items)
    check_order(added, binding, config, call)
    with pytest.raises(AssertionError, match="waits for another"):
        run([[]], ranges, call.listed.tolist(), around, items[::-1])


def test_a_table_in_another_order_is_found_out():
    """The simulation above is able to fail: first rows first, one program waits for itself."""
    binding, config, call = call_of("full", 512, 512, 64, 1)
    ranges = work_order.ranges(binding, {}, config.row_tile, config.loop_tile)
    with pytest.raises(AssertionError, match="waits for another"):
        run([items[::-1] for items in programs_of(call.table)], ranges, call.listed.tolist(), 1)


def test_items_go_to_the_program_that_is_free_first():
    cost = np.array([1.0, 1.0, 4.0])
    table = work_order.list_scheduled(in_order(2, 2, 3), cost, 2)
    assert programs_of(torch.from_numpy(table)) == [[2, 1, 0], [5, 4, 3]]
    table = work_order.list_scheduled(in_order(2, 1, 3), cost, 2)
    assert programs_of(torch.from_numpy(table)) == [[2, 4, 3], [1, 0, 5]]


def test_ranges_that_do_not_move_with_the_rows_have_no_order():
    ends = lambda begin, end: work_order.Ranges(*map(np.array, (begin, end, begin, end)))
    assert last_visitors(ends([0, 1, 2], [3, 3, 3]), 3).tolist() == [0, 1, 2]
    assert last_visitors(ends([0, 0], [2, 3]), 3).tolist() == [1, 1, 1]
    assert last_visitors(ends([1, 0], [3, 3]), 3) is None
    assert last_visitors(ends([0, 0], [3, 2]), 3) is None


@pytest.mark.sampled(1)
@pytest.mark.parametrize("kind", ["longformer", "boolean"])
def test_where_it_is_not_known_who_adds_kernels_stay_apart(kind):
    with pytest.raises(RefusedLaunch, match="deterministic result is asked for"):
        call_of(kind, 2048, 2048, 64, 132)


@pytest.mark.sampled(2)
@pytest.mark.parametrize("persistent", [False, True])
@pytest.mark.parametrize("width", [64, 128, 256])
@pytest.mark.parametrize("kind", ["causal", "groups"])
def test_a_warp_keeps_the_order_of_each_warpgroup(kind, width, persistent):
    plan = backward_plan_of(kind, width, rows=512, columns=512, batch=1, heads=8)
    config = replace(config_of(bind_joined(join(plan).main)), persistent=persistent, in_order=True)
    _, _, source = joined_source_of(plan, config)
    taken = re.findall(r"gl\.load\(items \+ ticket\)", source.text)
    assert len(taken) == (0 if persistent else 4 if config.by_products else 3)  # by each kind of warp
    keeper = source.text[source.text.index("def keeper(") : source.text.index("def keeper0")]
    places = [
        keeper.index(word) for word in ("wait_for_programs(", "arrive(turn_come", "wait(added_to", "signal_program(")
    ]
    assert places == sorted(places)
    consumer = source.text[source.text.index("def consumer(") : source.text.index("def consumer0")]
    waits, tells = (consumer.count(f"mbarrier.{what}.index(W)") for what in ("wait(turn_come", "arrive(added_to"))
    parts = 2 if config.by_products else 1  # the text has both warpgroups, or one for both
    assert waits == tells == 2 * parts  # in the loop, and behind the last tile
    for body in consumer.split("    else:\n")[:parts]:
        for turn in re.split(r"wait\(turn_come", body)[1:]:
            assert turn.index("add_in_order(") < turn.index("arrive(added_to")
    assert "[4, 1, 1, 1]" in source.text  # a warpgroup beside the first, the warp that copies, and two that keep order


def test_nothing_is_counted_where_the_order_does_not_matter():
    _, _, source = joined_source_of(backward_plan_of("causal", 64, rows=512, columns=512, batch=1, heads=2))
    assert not re.search(r"keeper|turn_come|\bsignal_program\(", source.text.split("@gluon.jit", 1)[1])
