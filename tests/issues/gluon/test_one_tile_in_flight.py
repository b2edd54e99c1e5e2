"""With rings of one tile, warpgroups waited for ever: for the next tile, before the product that frees its place was
done (a wait that can be late), or in a turn while the others free it in theirs. Such schedules are refused, a config
that is cut down to one tile waits late and takes no turns, and a tuner does not try them.
"""

import pytest

from onepass.lowering.gluon.launch import RefusedLaunch, fitting, prepare
from onepass.lowering.hopper.config import HopperConfig
from onepass.lowering.hopper.kernel_form import bind
from onepass.lowering.hopper.shared_size import shared_bytes
from onepass.lowering.schedule.kernel_time import seconds
from tests.support.gluon_ahead_of_time import plan_of

ENDLESS = [HopperConfig(2, 64, 1), HopperConfig(2, 64, 1, turns=True, late=True), HopperConfig(1, 64, 2, turns=True)]


@pytest.mark.parametrize("config", ENDLESS, ids=str)
def test_such_a_schedule_is_refused(config):
    with pytest.raises(RefusedLaunch, match="wait for ever"):
        prepare(bind(plan_of("full", 64).kernels[0]), config, {})


def test_a_schedule_cut_down_to_one_tile_waits_late_and_takes_no_turns(monkeypatch):
    """Shared memory so small that a ring of one tile is all that fits."""
    binding = bind(plan_of("full", 128).kernels[0])
    assert fitting(binding, {}).turns, "the kernel's own config takes turns"
    least = shared_bytes(binding, (), HopperConfig(2, 64, 1, 1, send=False))
    monkeypatch.setattr(HopperConfig, "shared", property(lambda _: least + 4096))
    found = fitting(binding, {})
    assert found.stages == 1 and found.late and not found.turns
    prepare(binding, found, {})


@pytest.mark.parametrize("config", ENDLESS, ids=str)
def test_a_tuner_knows_before_it_tries(config):
    kernel = plan_of("full", 64).kernels[0]
    assert seconds(kernel, config) == float("inf")
    assert seconds(kernel, config.terminating) < float("inf")
