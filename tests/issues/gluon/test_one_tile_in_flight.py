"""With rings of one tile, warpgroups waited for ever: for the next tile, before the product that frees its place was
done (a wait that can be late), or in a turn while the others free it in theirs. Such schedules are refused, a schedule
that is cut down to one tile waits late and takes no turns, and a tuner does not try them.
"""

import pytest

from onepass.lowering.gluon.launch import Refused, fitting, prepare
from onepass.lowering.hopper.config import Schedule
from onepass.lowering.hopper.kernel_form import bind, shared_bytes
from onepass.lowering.schedule.kernel_time import Configuration, seconds
from tests.support.gluon_ahead_of_time import plan_of

ENDLESS = [Schedule(2, 64, 1), Schedule(2, 64, 1, turns=True, late=True), Schedule(1, 64, 2, turns=True)]


@pytest.mark.parametrize("schedule", ENDLESS, ids=str)
def test_such_a_schedule_is_refused(schedule):
    with pytest.raises(Refused, match="wait for ever"):
        prepare(bind(plan_of("full", 64).kernels[0]), schedule, {})


def test_a_schedule_cut_down_to_one_tile_waits_late_and_takes_no_turns(monkeypatch):
    """Shared memory so small that a ring of one tile is all that fits."""
    binding = bind(plan_of("full", 128).kernels[0])
    assert fitting(binding, {}).turns, "the kernel's own schedule takes turns"
    least = shared_bytes(binding, (), Schedule(2, 64, 1, 1, send=False))
    monkeypatch.setattr(Schedule, "shared", property(lambda _: least + 4096))
    found = fitting(binding, {})
    assert found.depth == 1 and found.late and not found.turns
    prepare(binding, found, {})


@pytest.mark.parametrize("schedule", ENDLESS, ids=str)
def test_a_tuner_knows_before_it_tries(schedule):
    kernel = plan_of("full", 64).kernels[0]
    assert seconds(kernel, Configuration.of(schedule)) == float("inf")
    assert seconds(kernel, Configuration.of(schedule.lasting)) < float("inf")
