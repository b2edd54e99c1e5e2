"""A kernel that kept hundreds of registers in memory took 190 times as long as the calls that it stood for."""

from itertools import pairwise

import pytest

from onepass.lowering.plan.kernel_config import TritonConfig
from onepass.lowering.plan.records import NotPlannable
from onepass.lowering.triton.default_config import MAX_SPILLED_REGISTERS
from tests.support.ahead_of_time import plan_of
from tests.support.pretended import Pretended, pretend
from tests.support.pretended import prepared as launched


def prepared(monkeypatch, spills, config=None):
    """The configuration that a kernel is launched with where the compiler says of each how many registers spill."""
    pretend(monkeypatch, most=10**9)
    launcher = Pretended(plan_of("full", 64, "bfloat16"), config, spills=spills)
    launched(launcher)
    return launcher.tried[-1]


def test_a_kernel_that_spills_gets_smaller_tiles(monkeypatch):
    usual = prepared(monkeypatch, lambda config: MAX_SPILLED_REGISTERS)
    smaller = prepared(monkeypatch, lambda config: 264 if config.row_tile * config.loop_tile > 32 * 32 else 0)
    assert usual.row_tile * usual.loop_tile > 32 * 32 >= smaller.row_tile * smaller.loop_tile


def test_more_threads_share_a_tile_before_it_is_halved(monkeypatch):
    usual = prepared(monkeypatch, lambda config: MAX_SPILLED_REGISTERS)
    wider = prepared(monkeypatch, lambda config: 264 if config.warps < 8 else 0)
    assert (usual.warps, wider.warps) == (4, 8) and wider.row_tile == usual.row_tile
    assert wider.loop_tile == usual.loop_tile


@pytest.mark.parametrize("sides, stages", [((16, 16), 1), ((16, 16), 2), ((64, 16), 1)])
def test_more_threads_share_the_smallest_tile(sides, stages):
    """One warp kept 1909 registers of a thread in memory, four none; elsewhere four kept 136, eight none: random
    programs, seeds 171000 to 270004, 590000.
    """
    assert [*TritonConfig(*sides, 1, stages).smaller()][-2:] == [TritonConfig(16, 16, n, 1) for n in (4, 8)]


def test_one_that_spills_with_any_tiles_is_not_launched(monkeypatch):
    with pytest.raises(NotPlannable, match="keeps 264 registers of a thread in memory with tiles 16x16"):
        prepared(monkeypatch, lambda config: 264)


def test_a_configuration_that_was_asked_for_is_launched_as_it_is(monkeypatch):
    asked = TritonConfig(128, 128, 4, 2)
    assert prepared(monkeypatch, lambda config: 264, asked) == asked


def test_what_would_spill_as_well_is_not_compiled(monkeypatch):
    """Compiling a kernel that keeps thousands of registers in memory takes seconds: a first step took half a minute."""
    pretend(monkeypatch, most=10**9)
    few = lambda most: lambda config: 0 if config.row_tile * config.loop_tile < most * 32 * config.warps else 10_000
    for most, tried in ((8, 3), (32, 2)):
        launcher = Pretended(plan_of("full", 64, "bfloat16"), spills=few(most))
        launched(launcher)
        elements = [c.row_tile * c.loop_tile / (32 * c.warps) for c in launcher.tried]
        assert len(elements) == tried and all(4 * b <= a for a, b in pairwise(elements))
