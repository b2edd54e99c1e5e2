"""Shipped defaults lose little to the best of the measured table, and the executor that is faster goes first."""

import math
from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch

from bench.choose_defaults import default, loss, measured
from bench.measured import Problem, kernel_of, table
from onepass.compiler.optimize import optimize_all
from onepass.compiler.options import Options
from onepass.graph.trace import program_of
from onepass.lowering.executors import KERNELS
from onepass.lowering.gluon.launch import slower
from onepass.lowering.hopper import config as hopper_config
from onepass.lowering.hopper.kernel_class import row_of
from onepass.lowering.hopper.kernel_form import bind
from onepass.lowering.plan.kernel_config import MIN_ELEMENTS_OF_A_WIDE_TILE, TritonConfig
from onepass.lowering.plan.records import Plan
from onepass.lowering.triton.default_config import default_config, default_for, has_rows_last, of_steps
from onepass.runtime import executors
from onepass.translate.translate import translate

PROBLEMS = list(table())


def losses(executor: str, noise: bool = False) -> dict[str, float]:
    found = {str(p): loss(executor, p, default(executor, p), noise) for p in PROBLEMS if measured(executor, p)}
    return {name: lost for name, lost in found.items() if lost is not None}


def test_gluon_defaults_are_within_three_percent():
    """Beyond what rounds of one kernel differ by; where that is left out, of all problems but those named."""
    found, plain = losses("gluon", noise=True), losses("gluon")
    assert set(found) == set(map(str, PROBLEMS)), "every problem's default is measured"
    assert all(lost <= 0.03 for lost in found.values()), found
    above = {name: round(lost, 2) for name, lost in plain.items() if lost > 0.03}
    assert set(above) <= {"full D64 S16384"} and max(plain.values()) < 0.04, above


def test_triton_defaults_are_within_three_percent():
    found = losses("triton")
    assert len(found) >= 18
    above = {name: round(lost, 2) for name, lost in found.items() if lost > 0.03}
    assert set(above) == {"softcap D64 S4096", "window D128 S4096"}, above


def plan_of(problem) -> Plan:
    kernel = kernel_of(problem)
    stores = [s.output for s in kernel.stores]
    return SimpleNamespace(kernels=(kernel,), outputs=stores)


@pytest.mark.parametrize("problem", PROBLEMS, ids=str)
def test_the_faster_executor_goes_first(problem):
    """With defaults on both sides, an executor that the table says is slower by more than its noise is not first."""
    times = {e: measured(e, problem).get(default(e, problem)) for e in ("gluon", "triton")}
    first = "triton" if slower(plan_of(problem), {}) else "gluon"
    if None not in times.values():
        assert times[first] <= 1.03 * min(times.values())


def test_only_auto_is_reordered(monkeypatch):
    rows = tuple(replace(row, slower=0.07) for row in hopper_config.HOPPER_DEFAULTS)
    monkeypatch.setattr(hopper_config, "HOPPER_DEFAULTS", rows)
    problem = Problem("causal", 8, 32, 1536, 64)
    assert slower(plan_of(problem), {})
    for option, first in (("auto", "triton"), ("gluon", "gluon")):
        found = SimpleNamespace(options=Options(executor=option), plan=plan_of(problem))
        order = executors.by_measurement(KERNELS, found, {})
        assert next(iter(order)) == first and set(order) == set(KERNELS)
    found = SimpleNamespace(options=Options(), plan=plan_of(problem))
    assert "faster than gluon" in executors.by_measurement(KERNELS, found, {})["triton"]
    assert list(executors.by_measurement(("triton", "tiled"), found, {})) == ["triton", "tiled"]


def by_blocks(q, k, v, kept):
    i, j = torch.arange(q.shape[-2])[:, None], torch.arange(k.shape[-2])
    return torch.softmax((q @ k.mT).masked_fill(~kept[i // 64, j // 64], -math.inf), -1) @ v


def by_element(q, k, v, kept):
    return torch.softmax((q @ k.mT).masked_fill(~kept, -math.inf), -1) @ v


def padded(q, k, v, kept):
    return torch.softmax((q @ k.mT).masked_fill(~kept[:, None, None], -math.inf), -1) @ v


@pytest.mark.parametrize("width", [64, 128])
@pytest.mark.parametrize(
    "function, shape, few",
    [(by_blocks, (32, 32), True), (by_element, (2048, 2048), False), (padded, (4, 2048), False)],
)
def test_what_masks_in_memory_are_taken_to_keep(function, shape, few, width):
    """A table of blocks few tiles, in tiles no larger than these; a mask by element or of keys alone, all."""
    inputs = [torch.empty(4, 32, 2048, width, dtype=torch.bfloat16) for _ in range(3)]
    program = program_of(function, *inputs, torch.ones(shape, dtype=torch.bool))
    (kernel,) = optimize_all(translate(program).results).plan.kernels
    row = row_of(bind(kernel), {})
    assert row.is_for_short_items == few == (row.config.consumers == 1)
    assert row.uneven is not True or function is not padded


def one_product(q, k, v):
    return (q @ k.mT).softmax(-1) @ v


def two_products(q, k, v, r, s):
    return one_product(q, k, v) - one_product(r, s, v)


@pytest.mark.parametrize(
    "function, count, sides", [(one_product, 3, (64, 32, 8, 2)), (two_products, 5, (16, 16, 4, 1))]
)
def test_float32_has_wide_tiles_where_a_loop_has_one_product(function, count, sides):
    """With two products, 64 rows by 32 columns kept 504 registers of a thread in memory."""
    inputs = [torch.randn(2, 2, 256, 128) for _ in range(count)]
    (kernel,) = optimize_all(translate(program_of(function, *inputs)).results).plan.kernels
    assert default_for(kernel, "sm_90", 256) == TritonConfig(*sides)
    assert default_for(kernel, "sm_80", 256) == TritonConfig(32, 16, 4, 2)


@pytest.mark.parametrize("width", [16, 24, 64, 96, 128, 192, 256, 300])
def test_tiles_of_places_folded_one_by_one_are_powers_of_two(width):
    config = of_steps(default_config(width, 2, "sm_90"), width)
    assert (
        all(n & (n - 1) == 0 and n >= 16 for n in (config.row_tile, config.loop_tile))
        and config.row_tile * width <= 2**13
    )


@pytest.mark.parametrize("first", [TritonConfig(64, 64, 4, 3), TritonConfig(64, 32, 8, 2), TritonConfig(32, 16, 4, 2)])
def test_configurations_that_need_less_have_threads_for_their_tiles(first):
    tried = [*first.smaller()]
    assert len({first, *tried}) == 1 + len(tried) and all(
        c.row_tile * c.loop_tile <= first.row_tile * first.loop_tile for c in tried
    )
    assert all(c.warps <= 4 or c.row_tile * c.loop_tile >= MIN_ELEMENTS_OF_A_WIDE_TILE for c in tried[:-1])
    assert tried[-1] == TritonConfig(16, 16, 8, 1)


def attention_to_bytes(q, k, v):
    k, v = (x.to(q.dtype) for x in (k, v))
    return (q @ k.mT).softmax(-1) @ v


def attention_to_pages(q, k, v, table):
    """Keys and values in pages [pages, slots, heads, width]."""
    return attention_to_bytes(q, *(x[table].flatten(0, 1).transpose(0, 1) for x in (k, v)))


@pytest.mark.parametrize("kind, paged, expected", [
    (torch.int8, True, TritonConfig(8, 16, 1, 5)), (torch.int8, False, TritonConfig(8, 16, 1, 3)),
    (torch.float8_e4m3fn, True, TritonConfig(8, 16, 1, 5)), (torch.bfloat16, True, TritonConfig(16, 128, 4, 2)),
])  # fmt: skip
def test_bytes_for_few_rows_are_read_by_small_programs(kind, paged, expected):
    shape = (8, 64, 2, 128) if paged else (2, 512, 128)
    k, v = (torch.zeros(shape, dtype=kind) for _ in range(2))
    given = [torch.zeros(2, 1, 128, dtype=torch.bfloat16), k, v, *([torch.arange(8)] if paged else [])]
    function = attention_to_pages if paged else attention_to_bytes
    (kernel,) = optimize_all(translate(program_of(function, *given)).results).plan.kernels
    assert default_for(kernel, "sm_90", 2) == default_for(kernel, "sm_90", 8) == expected
    assert has_rows_last(kernel, expected) == (kind is not torch.bfloat16)
    assert default_for(kernel, "sm_90", 9).row_tile == default_for(kernel, "sm_90", 16).row_tile == 16
    assert default_for(kernel, "sm_90") == TritonConfig(64, 64, 4, 3)


@pytest.mark.sampled(1)
@pytest.mark.parametrize("slots, tile", [(64, 64), (32, 128), (128, 128)])
def test_pages_up_to_a_length_are_tiles_where_a_tile_would_be_two(slots, tile):
    def attention(q, k, v, table, length):
        k, v = (x[table].flatten(0, 1).transpose(0, 1) for x in (k, v))
        hidden = torch.arange(k.shape[1]) >= length[:, None, None]
        return (q @ k.mT).masked_fill(hidden, -math.inf).softmax(-1) @ v

    k, v = (torch.zeros(8, slots, 2, 128, dtype=torch.bfloat16) for _ in range(2))
    given = [torch.zeros(2, 1, 128, dtype=torch.bfloat16), k, v, torch.arange(8), torch.tensor([9, 20])]
    (kernel,) = optimize_all(translate(program_of(attention, *given)).results).plan.kernels
    found = default_for(kernel, "sm_90", 1)
    assert found == TritonConfig(16, tile, 2 if tile == 64 else 4, 3 if tile == 64 else 2)
    assert default_for(kernel, "sm_90", 64) == TritonConfig(64, 64, 4, 3)


@pytest.mark.parametrize("width, packed, keys", [(128, False, 16), (128, True, 16), (64, False, 32), (16, False, 64)])
def test_tiles_of_bytes_whose_rows_stand_last_are_of_one_size(width, packed, keys):
    def attention(q, k, v):
        unpacked = (torch.stack([x & 15, x >> 4], -1).flatten(-2) if packed else x for x in (k, v))
        return attention_to_bytes(q, *unpacked)

    given = [torch.zeros(2, 512, width // (1 + packed), dtype=torch.uint8) for _ in range(2)]
    program = program_of(attention, torch.zeros(2, 1, width, dtype=torch.bfloat16), *given)
    (kernel,) = optimize_all(translate(program).results).plan.kernels
    assert default_for(kernel, "sm_90", 1) == TritonConfig(8, keys, 1, 3)
