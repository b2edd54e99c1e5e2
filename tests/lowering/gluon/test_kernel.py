"""Gluon kernels of derived plans: what binds, what does not and why, and what ptxas says of the compiled kernels.

Nothing here needs a GPU. Compiling needs a Triton release that the emitter is written for, in a process of its own;
where another one is installed only binding, schedules and the text are tested.
"""

import ast
import math
from dataclasses import replace

import numpy as np
import pytest
import torch

from onepass.compiler.optimize import optimize_all
from onepass.graph.trace import program_of
from onepass.lowering.gluon.launch import fitting, prepare
from onepass.lowering.hopper import work_order
from onepass.lowering.hopper.config import HOPPER_DEFAULTS, HopperConfig, duration
from onepass.lowering.hopper.form_facts import accumulated
from onepass.lowering.hopper.kernel_form import bind, chunks
from onepass.lowering.hopper.shared_size import shared_bytes
from onepass.lowering.launch.triton_compat import RELEASE, gluon_missing
from onepass.lowering.masks.block_map import EMPTY, FULL
from onepass.lowering.plan.device import H200
from onepass.translate.translate import translate
from tests.support.gluon_ahead_of_time import plain, plan_of, said_apart, source_of

KINDS = "full causal window strided shifted alibi softcap groups bias vector documents difference narrow".split()
KINDS += "logarithm peak evoformer prefix longformer dilated slanted".split()
KINDS += ["relative", "backwards", "gate", "boolean", "joined", "capped"]
WIDTHS = (64, 80, 96, 128, 192, 256)
MEASURED = (3, 6)  # the release of Triton that schedules were chosen with
COMPILED = [["full", 64], ["gated", 64], ["causal", 128], ["window", 128], ["softcap", 128]]
COMPILED += [["alibi", 64], ["groups", 128], ["difference", 64], ["bias", 128], ["causal", 256], ["full", 96]]
COMPILED += [["longformer", 64], ["documents", 64], ["slanted", 128], ["relative", 64], ["difference", 128]]
COMPILED += [["gate", 64], ["gate", 128], ["boolean", 64], ["evoformer", 64], ["capped", 64], ["sigmoid", 64]]
COMPILED += [["padded", 64], ["padded", 128], ["drawn", 64], ["nearest", 64], ["nearest", 128], ["shared", 512]]
COMPILED += [["bytes", 128], ["bytes", 256], ["causal bytes", 64], ["keys of bytes", 64]]
# The other releases compile the same text; half a minute is enough for them.
FEW = [["causal", 128], ["gate", 128], ["difference", 64], ["drawn", 64], ["bytes", 128]]
COMPILED = COMPILED if RELEASE == MEASURED else FEW
# Bytes, 128 elsewhere: registers of items' first and last instructions, none in the loop.
MOST_SPILLED = {"gate": 192, "drawn": 192, "shared": 192}


@pytest.fixture(scope="module")
def plans():
    found = {}

    def plan(kind, width=64, rows=256, columns=256):
        if (kind, width, rows, columns) not in found:
            found[kind, width, rows, columns] = plan_of(kind, width, rows=rows, columns=columns)
        return found[kind, width, rows, columns]

    return plan


@pytest.mark.sampled(2)
@pytest.mark.parametrize("kind", KINDS)
def test_every_variant_binds_and_its_text_is_python(kind, plans):
    _, _, source = source_of(plans(kind))
    tree = ast.parse(source.text)
    names = [node.name for node in tree.body if isinstance(node, ast.FunctionDef)]
    assert {"producer", "consumer", source.function} <= set(names)
    assert len(source.maps) >= 3


@pytest.mark.sampled(5)
@pytest.mark.parametrize("width", WIDTHS)
def test_default_schedules_fit_every_width(width, plans):
    binding = bind(plans("full", width).kernels[0])
    s = fitting(binding, {})
    assert shared_bytes(binding, (), s) < H200.shared_bytes
    registers = (
        accumulated(binding) // 2 + s.loop_tile // 2 + s.loop_tile // 4
    )  # accumulators, scores, weights of a thread
    assert registers <= {1: 208, 2: 208, 3: 144, 4: 96}[s.consumers]


def test_the_rows_of_defaults_all_can_be_reached():
    keys = [replace(row, config=HopperConfig(), slower=0.0) for row in HOPPER_DEFAULTS]
    assert len(set(keys)) == len(keys)


@pytest.mark.sampled(242)
@pytest.mark.parametrize("size", range(1, 257))
def test_chunks_cover_their_columns_with_tiles_of_products(size):
    found = chunks(size)
    ends = [start + extent for start, extent in found]
    assert [start for start, _ in found] == [0, *ends[:-1]] and size <= ends[-1] < size + max(16, size)
    assert all(extent in (16, 32, 64, 128, 256) for _, extent in found)


@pytest.mark.parametrize("residents,consumers", [(1, 1), (1, 2), (1, 3), (2, 1), (3, 1), (4, 1), (2, 2)])
def test_registers_and_shared_memory_of_residents_fit_a_multiprocessor(residents, consumers):
    s = HopperConfig(consumers=consumers, residents=residents)
    compiled, consumer, producer = s.registers
    assert residents * compiled * 128 * (consumers + 1) <= H200.registers
    assert consumers * consumer + producer <= (consumers + 1) * compiled or consumer <= 240
    assert all(n % 8 == 0 for n in s.registers) and residents * (s.shared + 1024) <= H200.shared_bytes + 1024


@pytest.mark.sampled(15)
@pytest.mark.parametrize("consumers", [1, 2, 3])
@pytest.mark.parametrize("kind", ["full", "window", "difference"])
@pytest.mark.parametrize(
    "change", [{"send": 0}, {"lazy": False, "late": True}, {"stages": 3, "row_buffers": 2}, {"residents": 3}]
)
def test_any_schedule_gives_a_text(kind, change, consumers, plans):
    config = HopperConfig(consumers=consumers, loop_tile=64, turns=consumers > 1, **change)
    _, _, source = source_of(plans(kind), config)
    ast.parse(source.text)
    assert source.text.count("def consumer") == consumers + 1
    assert ("copy_out(" in source.text) == ("send" not in change)
    assert ("rescaled(" in source.text.split("import", 5)[-1].split(")", 1)[1]) == ("lazy" not in change)


def test_single_precision_does_not_bind():
    (kernel,) = plan_of("full", 64, "float32", rows=256, columns=256).kernels
    assert "half precision" in bind(kernel)


def test_the_report_says_the_form_and_why_not():
    import onepass

    q = torch.empty(1, 2, 64, 64, dtype=torch.bfloat16)
    said = str(onepass.explain(plain("full"), q, q, q))
    assert "elsewhere   on a Hopper GPU, warp-specialised Gluon" in said
    q = q.float()
    said = str(onepass.explain(plain("full"), q, q, q))
    assert "elsewhere   on a Hopper GPU, plain Triton" in said and "half precision" in said


def test_a_kernel_with_an_offset_that_no_tensor_map_describes_does_not_bind():
    def reversed_keys(q, k, v):
        return torch.softmax(q @ k.flip(2).mT, -1) @ v

    q = torch.empty(1, 2, 64, 64, dtype=torch.bfloat16)
    captured = translate(program_of(reversed_keys, q, q, q))
    (kernel,) = optimize_all(captured.results).plan.kernels
    assert "no start plus a coordinate" in bind(kernel)


# The order of work


def _kept(kind, rows, length):
    i, j = np.arange(rows)[:, None], np.arange(length)
    return {
        "full": np.ones((rows, length), bool),
        "causal": j <= i,
        "window": (j <= i) & (i - j < 256),
        "shifted": j <= i - 200,
        "prefix": (j <= i) | (j < 1024),
        "longformer": (abs(i - j) <= 256) | (j < 64) | (i < 64),
        "dilated": (abs(i - j) <= 512) & ((i - j) % 2 == 0),
    }[kind]


@pytest.mark.sampled(2)
@pytest.mark.parametrize("kind", ["full", "causal", "window", "shifted"])
@pytest.mark.parametrize("rows,length,tile", [(512, 512, 128), (300, 517, 64), (700, 200, 128)])
def test_ranges_hold_what_the_guard_keeps_and_say_what_is_full(kind, rows, length, tile, plans):
    binding = bind(plans(kind, rows=rows, columns=length).kernels[0])
    found, kept = work_order.ranges(binding, {}, 64, tile), _kept(kind, rows, length)
    for n in range(len(found.begin)):
        mine = kept[64 * n : 64 * n + 64]
        assert found.end[n] > found.begin[n] >= 0 and found.end[n] <= math.ceil(length / tile)
        assert not mine[:, : found.begin[n] * tile].any() and not mine[:, found.end[n] * tile :].any()
        for t in range(max(found.begin[n], found.full_begin[n]), min(found.end[n], found.full_end[n])):
            assert mine[:, t * tile : t * tile + tile].all()


@pytest.mark.sampled(1)
@pytest.mark.parametrize("kind", ["window", "prefix", "longformer", "dilated"])
@pytest.mark.parametrize("rows,length,height,tile", [(2048, 2048, 192, 128), (300, 1517, 64, 64)])
def test_classes_of_tiles_agree_with_every_element(kind, rows, length, height, tile, plans):
    binding = bind(plans(kind, rows=rows, columns=length).kernels[0])
    found, kept = work_order.classes(binding, {}, height, tile), _kept(kind, rows, length)
    assert found.shape == (math.ceil(rows / height), math.ceil(length / tile))
    assert (found == EMPTY).any() and ((found == FULL).any() or kind == "dilated")
    for (n, t), one in np.ndenumerate(found):
        mine = kept[height * n : height * (n + 1), tile * t : tile * (t + 1)]
        assert one != EMPTY or not mine.any()
        assert one != FULL or (mine.all() and mine.shape[1] == tile)


@pytest.mark.sampled(1)
@pytest.mark.parametrize("kind,listed", [("longformer", True), ("documents", True), ("prefix", False)])
def test_items_follow_lists_where_a_guard_is_no_single_range(kind, listed):
    plan = plan_of(kind, 64, rows=4096, columns=4096)
    binding, config, source = source_of(plan)
    prepared = prepare(binding, config, {})
    assert prepared.shape.listed == ((binding.kernel.rows,) if listed else None)
    assert ("gl.load(list_here" in source.text) == listed
    assert (prepared.tiling is not None) == (kind == "documents")
    assert prepared.shape.table == (prepared.lengths is not None or kind == "documents")
    assert kind != "documents" or (prepared.tiling.dealt.items, prepared.tiling.dealt.listed) == (
        (2, 8, 64),
        (1, 1, 64),
    )


@pytest.mark.sampled(1)
@pytest.mark.parametrize(
    "kind,masked,skewed",
    [("full", "none", False), ("causal", "first", False), ("window", "some", False), ("shifted", "some", True)],
)
def test_what_sizes_say_of_the_text(kind, masked, skewed, plans):
    binding = bind(plans(kind, 128, rows=1024, columns=1024).kernels[0])
    shape = prepare(binding, HopperConfig(), {}).shape
    assert (shape.masked, shape.skewed) == (masked, skewed)


@pytest.mark.sampled(1)
@pytest.mark.parametrize("kind,residents", [("full", 1), ("causal", 1), ("window", 3), ("documents", 3)])
def test_short_items_share_a_multiprocessor(kind, residents):
    binding = bind(plan_of(kind, 64, rows=4096, columns=4096).kernels[0])
    found = fitting(binding, {})
    assert found.residents == residents and residents * (shared_bytes(binding, (), found) + 1024) <= H200.shared_bytes


@pytest.mark.parametrize("points,programs", [(1, 4), (6, 5), (16, 132)])
def test_work_is_dealt_out_once_and_evenly(points, programs, plans):
    binding = bind(plans("causal", rows=2048, columns=2048).kernels[0])
    block = work_order.ranges(binding, {}, 128, 128)
    table = work_order.dealt(block.end - block.begin, points, 1 << 20, (programs, programs), 128)
    mine = [column[1 : 1 + column[0]].tolist() for column in table.T]
    assert sorted(i for items in mine for i in items) == list(range(points * 16)) and len(mine) == programs
    cost = (block.end - block.begin) + work_order.OVERHEAD / 128
    loads = [sum(cost[i % 16] for i in items) for items in mine]
    assert max(loads) <= sum(loads) / programs + max(cost)


@pytest.mark.parametrize("points,programs,many", [(1, 3, 8), (64, 5, 16), (256, 17, 64), (10, 40, 4), (48, 1, 0)])
def test_grid_points_are_worked_on_few_at_a_time_and_more_at_the_end(points, programs, many):
    found = work_order._groups(points, *work_order.at_a_time(points, 1, programs, work_order.CACHE // max(many, 1)))
    assert [n for start, stop in found for n in range(start, stop)] == list(range(points))
    assert all(stop - start <= -(-programs // 4) for start, stop in found[:-1])
    assert programs <= found[-1][1] - found[-1][0] <= max(programs, many) or len(found) == 1


@pytest.mark.sampled(2)
@pytest.mark.parametrize("kind,chained", [("causal", True), ("full", True), ("shifted", True), ("window", False)])
def test_items_are_chained_where_no_tile_is_left_out_at_their_end(kind, chained, plans):
    config = HopperConfig(2, 64, 2, 2, turns=True, chained=True)
    _, _, source = source_of(plans(kind, rows=512, columns=512), config)
    assert ("more = position + 1 < high" in source.text) == chained
    ast.parse(source.text)
    assert "more =" not in source_of(plans(kind, rows=512, columns=512), replace(config, row_buffers=1))[2].text


@pytest.mark.parametrize("kind", ["full", "causal", "bias", "groups"])
@pytest.mark.parametrize("columns,single", [(65, True), (128, True), (129, False)])
def test_a_loop_of_one_tile_has_no_text_for_a_second_one(kind, columns, single):
    plan = plan_of(kind, 64, rows=128, columns=columns)
    _, _, source = source_of(plan, HopperConfig(1, 128, 2, 2, residents=2))
    consumer = source.text[source.text.index("def consumer(") :]
    products = {True: 2, False: 4}  # with the keys and with the values; in the first tile, and in the loop's
    assert consumer.count(" = warpgroup_mma(") == products[single]
    assert ("for t in range(1, " in consumer) == (not single)


@pytest.mark.parametrize(
    "points,rows,consumers", [(8, 1024, 1), (256, 1024, 2), (4, 4096, 2), (64, 128, 1), (200, 128, 2), (512, 64, 1)]
)
def test_few_items_have_fewer_warpgroups(points, rows, consumers):
    times = {c: duration(rows, points, HopperConfig(consumers=2), c, False, 132) for c in (1, 2)}
    assert min(times, key=times.get) == consumers


@pytest.mark.parametrize("rows,live", [(1024, 1), (1088, 2), (1150, 3)])
def test_a_tile_of_rows_with_idle_warpgroups_is_less_work(rows, live, plans):
    binding = bind(plans("full", rows=rows).kernels[0])
    prepared = prepare(binding, HopperConfig(consumers=3), {})
    assert prepared.shape.vacant == prepared.shape.table == (live < 3)
    assert (prepared.lengths[:-1] == 2).all() and (prepared.lengths[-1] < 2) == (live < 3)


def test_results_too_wide_for_shared_memory_leave_in_parts(plans):
    _, config, source = source_of(plans("full", 256, 1024))
    assert config.send == 64
    assert source.text.count("copy_out(") == 4 and "tma.store_wait(1)" in source.text
    assert "tma.store_wait(1)" not in source_of(plans("full", 128))[2].text


# What the compiler says


@pytest.mark.parametrize("deferred", [False, True])
def test_copied_tiles_are_read_before_or_behind_the_score_product(deferred, plans):
    plan = plans("bias")
    config = replace(source_of(plan)[1], deferred=deferred)
    lines = source_of(plan, config)[2].text.splitlines()
    (load, *_), (wait, *_) = ([n for n, x in enumerate(lines) if text in x] for text in (".load(SCORE)", "mma_wait("))
    assert (load > wait) == deferred


@pytest.fixture(scope="module")
def compiled():
    if gluon_missing():
        pytest.skip(gluon_missing())
    said = said_apart("gluon_ahead_of_time.py", COMPILED)
    return dict(zip(map(tuple, COMPILED), said, strict=True))


@pytest.mark.slow
@pytest.mark.parametrize("case", COMPILED, ids=lambda c: "-".join(map(str, c)))
def test_compiles_without_spills_into_shared_memory(case, compiled):
    said = compiled[tuple(case)]
    assert "error" not in said, said
    assert said["shared"] <= H200.shared_bytes and said["wgmma"] > 0
    assert said["spilled"] <= MOST_SPILLED.get(case[0], 128) and not said["serialised"], said
    assert not said["over_barriers"]
