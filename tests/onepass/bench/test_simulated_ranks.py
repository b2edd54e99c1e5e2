"""Schedules by a clock: sums that can be done by hand, and what two GPUs were measured to take."""

import sys
from pathlib import Path

import pytest

from onepass.bench.simulated_ranks import Clock, Machine, Task, simulated

sys.path.insert(0, str(Path(__file__).resolve().parents[3] / "bench"))

SLOW = Machine(memory=1e30, link=1e6, network=1e5, start=0.0, host=2)
TASK = Task(64, 8, 8, 16, forward=1e-4, backward=2e-4)
KEYS = 2 * 64 * 8 * 16 * 2  # bytes of all keys and values
ROWS = 64 * 8 * 4  # of the logarithms of all rows


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
        ("ulysses", (4,), 3 / 16 * (2 * KEYS + ROWS)),  # of queries, keys, values and the state, what the others hold
        ("two-level ulysses", (2, 2), 1 / 4 * KEYS + 1 / 8 * (2 * KEYS + ROWS)),
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


def test_in_pieces_an_exchange_of_heads_hides_behind_the_next_ones_kernels():
    """Only the first piece waits for its heads, and the last one for its results."""
    kernels, moved = 8 * 64 * 64 / 4 * TASK.forward, 3 / 16 * (2 * KEYS + ROWS)
    machine = Machine(1e30, moved / (0.5 * kernels), 1.0, 0.0, 4)
    whole, pieces = (simulated("ulysses", (4,), TASK, machine, count) for count in (1, 2))
    assert whole.forward == pytest.approx(1.5 * kernels, rel=0.01) and whole.received == pieces.received == moved
    assert pieces.forward == pytest.approx(1.25 * kernels, rel=0.01)


def test_in_pieces_gradients_go_home_beside_kernels():
    kernels = 8 * 64 * 64 / 2 * (TASK.forward + TASK.backward)
    machine = Machine(1e30, KEYS / (0.1 * kernels), 1.0, 0.0, 2)
    for name in ("ring", "all-gather"):
        whole, pieces = (simulated(name, (2,), TASK, machine, count).waited for count in (1, 4))
        assert pieces < whole / 3


def test_heads_that_do_not_divide_are_refused():
    for count, ranks in ((1, 3), (16, 1)):
        with pytest.raises(ValueError, match="8 heads and 8 of keys are not cut"):
            simulated("ulysses", (ranks,), TASK, SLOW, count)
