"""A kernel that kept hundreds of registers in memory took 190 times as long as the calls that it stood for."""

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
