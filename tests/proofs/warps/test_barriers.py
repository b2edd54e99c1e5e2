"""Barriers: parities, counts, bytes, and what who passes knows."""

import pytest

from onepass.proofs.kernels.memory import KernelFault
from onepass.proofs.warps.barriers import Barrier, Counter, NumberedBarrier
from onepass.proofs.warps.shared_memory import SharedMemory, Warps


def made(count, warps):
    barrier = Barrier("full", SharedMemory())
    barrier.initialise(warps, count)
    return barrier


def test_a_wait_passes_by_the_parity_of_the_phase_under_way():
    warps = Warps("one")
    barrier = made(1, warps)
    for phase in range(5):
        assert barrier.passes(1 - phase % 2) and not barrier.passes(phase % 2)
        barrier.arrive(warps)


def test_a_phase_takes_all_arrivals_and_all_bytes():
    warps = Warps("one")
    barrier = made(2, warps)
    barrier.expect(warps, 96)
    barrier.arrive(warps)
    assert not barrier.passes(0)
    barrier.copied(warps, 7, 64)
    assert not barrier.passes(0)
    with pytest.raises(KernelFault, match="more bytes"):
        barrier.copied(warps, 8, 64)
    barrier.copied(warps, 8, 32)
    assert barrier.passes(0) and barrier.released[0] >> 7 & 3 == 3
    with pytest.raises(KernelFault, match="more arrivals"):
        barrier.arrive(warps, 3)


def test_who_passes_knows_what_those_knew_who_arrived():
    first, second = Warps("first"), Warps("second")
    barrier = made(2, first)
    second.known = first.known | 1 << 5
    first.known |= 1 << 4
    barrier.arrive(first)
    assert barrier.released == (0, 0)
    barrier.arrive(second)
    assert barrier.released[0] >> 4 & 3 == 3 and barrier.released[1] == 0


def test_a_barrier_is_one_only_after_its_start():
    warps, other = Warps("one"), Warps("other")
    with pytest.raises(KernelFault, match="is not initialised"):
        Barrier("full", SharedMemory()).arrive(warps)
    barrier = made(1, warps)
    with pytest.raises(KernelFault, match="full is used while the start of full"):
        barrier.arrive(other)
    with pytest.raises(KernelFault, match="twice"):
        barrier.initialise(warps, 1)
    with pytest.raises(KernelFault, match="counts 0"):
        Barrier("empty", SharedMemory()).initialise(warps, 0)


def test_a_numbered_barrier_lets_two_warpgroups_pass():
    one, other = Warps("one", known=1), Warps("other", known=2)
    barrier = NumberedBarrier()
    assert barrier.arrive(one) == 0 and barrier.phases == 0
    assert barrier.arrive(other) == 0 and barrier.phases == 1
    assert barrier.released[0] == (3, 0) and barrier.arrive(one) == 1


def test_a_counter_says_what_those_know_who_signalled():
    counter = Counter()
    counter.signal(Warps("one", known=1))
    counter.signal(Warps("other", known=2, fenced=2))
    assert (counter.value, counter.released) == (2, (3, 2))
