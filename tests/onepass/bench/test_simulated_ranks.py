"""Schedules by a clock: sums that can be done by hand, and what two GPUs were measured to take."""

import sys
from pathlib import Path

import pytest

from onepass.bench.simulated_ranks import Clock, Machine, Task, simulated

sys.path.insert(0, str(Path(__file__).resolve().parents[3] / "bench"))
import simulate_ranks

SLOW = Machine(memory=1e30, link=1e6, network=1e5, start=0.0, host=2)
TASK = Task(64, 8, 8, 16, forward=1e-4, backward=2e-4)
KEYS = 2 * 64 * 8 * 16 * 2  # bytes of all keys and values


def test_a_link_brings_one_thing_after_the_other_and_two_links_both_at_once():
    clock = Clock(SLOW)
    assert clock.brings([(10**6, True)]) == 1.0
    assert clock.brings([(10**6, True), (10**4, False)]) == 2.0
    clock.now = 5.0
    assert clock.brings([]) == 5.0 and clock.brings([(10**6, True)]) == 6.0
    clock.waits(5.5), clock.waits(7.0)
    assert (clock.now, clock.waited, clock.received) == (7.0, 2.0, 3 * 10**6 + 10**4)


@pytest.mark.parametrize(
    "schedule, sizes, received",
    [
        ("ring", (4,), 3 / 4 * KEYS),
        ("all-gather", (4,), 3 / 4 * KEYS),
        ("two-level", (2, 2), 3 / 4 * KEYS),
        ("ulysses", (4,), 3 / 16 * 2 * KEYS),  # of queries, keys, values and the result, what the others hold
        ("two-level ulysses", (2, 2), 1 / 4 * KEYS + 1 / 8 * 2 * KEYS),
    ],
)
def test_a_forward_receives_what_its_schedule_moves(schedule, sizes, received):
    machine, task = Machine(1e30, 1e30, 1e30, 0.0, 4), Task(64, 8, 8, 16, forward=1.0, backward=2.0)
    found = simulated(schedule, sizes, task, machine)
    assert found.received == received
    assert found.forward == pytest.approx(8 * 64 * 64 / 4, rel=1e-3), "a quarter of the pairs"
    assert found.step == pytest.approx(3 * found.forward, rel=1e-3)


def test_an_exchange_hides_behind_kernels_that_take_longer():
    """Four ranks in hosts of two: what the first one gets from the last comes over the network."""
    kernel, keys = 8 * 16 * 16 * TASK.forward, KEYS / 4
    fast = Machine(1e30, 1e30, keys / (0.5 * kernel), 0.0, 2)
    assert simulated("ring", (4,), TASK, fast).forward == pytest.approx(4 * kernel, rel=0.01)
    slow = Machine(1e30, 1e30, keys / (2.0 * kernel), 0.0, 2)
    assert simulated("ring", (4,), TASK, slow).forward == pytest.approx(3 * 2 * kernel + kernel, rel=0.01)
    assert simulated("two-level", (2, 2), TASK, slow).forward == pytest.approx(4 * kernel, rel=0.01)


def test_heads_that_do_not_divide_are_refused():
    with pytest.raises(ValueError, match="3 ranks do not divide 8 heads"):
        simulated("ulysses", (3,), TASK, SLOW)


def test_two_gpus_took_what_is_simulated():
    """Within 6 %. One GPU that computes for 200 ms slows down more than two that compute for 100."""
    found = [*simulate_ranks.beside_measured(simulate_ranks.measured())]
    assert len(found) == 12
    for problem, schedule, what, taken, right in found:
        assert 0.94 < taken / right < 1.06, (problem, schedule, what)


def test_more_ranks_pay_less():
    rows = [*simulate_ranks.on_paper(simulate_ranks.measured(), [2**20], [8, 64])]
    assert {r["schedule"] for r in rows if r["ranks"] == 64} == {"ring", "all-gather", "two-level", "two-level ulysses"}
    ring = {r["ranks"]: r["forward_share"] for r in rows if (r["schedule"], r["problem"]) == ("ring", "full")}
    assert 1 > ring[8] > ring[64] > 0
