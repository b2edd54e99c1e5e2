"""A run notes what each group of warps did, in its order."""

from onepass.proofs.warps.events import Access, Arrive, Copied, Ended, Fence, Wait
from onepass.proofs.warps.gluon_interpreter import GluonInterpreter
from onepass.proofs.warps.warp_schedule import run
from tests.proofs.warps.test_gluon_interpreter import RING, ROUNDS, windows


def test_events_of_a_ring():
    program = GluonInterpreter(RING, 1, 100).started(0, "kernel", windows()[0])
    run([program])
    start, consumer, producer = (each.warps.events for each in program.partitions)
    kinds = [type(event) for event in producer]
    assert kinds == [Wait, Arrive, Access, Copied] * ROUNDS
    # A product reads its tile twice, a load once.
    assert [type(e) for e in consumer[:8]] == [Wait, Access, Access, Access, Fence, Ended, Arrive, Wait]
    assert [type(e) for e in start] == [Fence]
    expected = [event for event in producer if isinstance(event, Arrive)]
    assert {event.bytes for event in expected} == {64} and {event.barrier.name for event in expected} == {
        "full[0]", "full[1]"
    }  # fmt: skip
