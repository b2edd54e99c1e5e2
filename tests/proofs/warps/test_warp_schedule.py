"""Orders in which warps run: what each lets go first, and that nobody waits for ever unnoticed."""

import pytest

from onepass.proofs.kernels.memory import KernelFault
from onepass.proofs.warps.barriers import Waiting
from onepass.proofs.warps.shared_memory import Warps
from onepass.proofs.warps.warp_schedule import Partition, RunningProgram, run


def program(number, *functions):
    found = RunningProgram(number)
    found.partitions = [Partition(Warps(f.__name__), f()) for f in functions]
    return found


@pytest.mark.parametrize("number, wanted", [(0, "aaabbb"), (1, "bbbaaa"), (2, "ababab")])
def test_each_order_lets_others_go_first(number, wanted):
    ran = []

    def steps(name):
        def one():
            for _ in range(3):
                ran.append(name)
                yield Waiting("nothing", lambda: True)

        return one

    run([program(number, steps("a"), steps("b"))])
    assert "".join(ran) == wanted


def test_who_waits_goes_on_when_another_program_is_there():
    ran = []

    def waits():
        yield Waiting("the other one", lambda: "other" in ran)
        ran.append("first")

    def other():
        ran.append("other")
        yield Waiting("nothing", lambda: True)

    run([program(0, waits), program(1, other)])
    assert ran == ["other", "first"]


def test_a_wait_without_end_is_a_fault():
    def waits():
        yield Waiting("what never comes", lambda: False)

    with pytest.raises(KernelFault, match="waits waits for ever for what never comes"):
        run([program(0, waits)])


def test_copies_are_waited_for_before_a_program_ends():
    def nothing():
        yield from ()

    found = program(0, nothing)
    found.copies.append(found.memory.access("a copy to tiles by the producer"))
    with pytest.raises(KernelFault, match="ends while a copy to tiles"):
        run([found])
