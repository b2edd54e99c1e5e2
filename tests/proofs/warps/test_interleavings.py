"""All orders of groups of warps are visited: a race or an endless wait of one order is found, and none in a ring."""

import pytest

from onepass.proofs.kernels.memory import KernelFault
from onepass.proofs.warps.gluon_interpreter import GluonInterpreter, run_gluon
from onepass.proofs.warps.interleavings import Orders
from tests.proofs.warps.test_gluon_interpreter import RING, windows

THREE = """
def reader(tile, ready, done):
    mbarrier.wait(ready.index(0), 0)
    found = tile.load(L)
    mbarrier.arrive(done.index(0))

def writer(tile, ready, done):
    tile.store(gl.zeros([4, 4], gl.float32, L))
    mbarrier.arrive(ready.index(0))

def other(tile, ready, done):
    mbarrier.wait(done.index(0), 0)
    mbarrier.arrive(ready.index(0))

def kernel():
    tile = gl.allocate_shared_memory(gl.float32, [4, 4], L)
    ready = gl.allocate_shared_memory(gl.int64, [1, 1], L)
    done = gl.allocate_shared_memory(gl.int64, [1, 1], L)
    mbarrier.init(ready.index(0), count=1)
    mbarrier.init(done.index(0), count=1)
    gl.warp_specialize([
        (reader, (tile, ready, done,)), (writer, (tile, ready, done,)), (other, (tile, ready, done,)),
    ], [1, 1], [24, 24])

L = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, 64, 16])
"""


def tried(text, most=100_000, arguments=None):
    orders = Orders(most)
    run_gluon(GluonInterpreter(text, 1, 100), [0], "kernel", arguments or {}, orders)
    return orders


def test_a_ring_is_right_in_every_order():
    orders = tried(RING, arguments=windows()[0])
    assert orders.all and orders.states > 50


def test_three_groups_are_right_in_every_order():
    assert tried(THREE).all


WAIT = "    mbarrier.wait(done.index(0), 0)\n"


def test_an_arrival_that_may_come_first_is_a_race():
    text = THREE.replace(WAIT, "")
    assert tried(text, most=0).states == 0  # not in the order of the run
    with pytest.raises(KernelFault, match=r"a load of tile by reader .* while a store to tile .* in some order"):
        tried(text)


def test_a_phase_that_may_pass_unseen_is_an_endless_wait():
    """The second arrival turns the parity again before the reader has looked."""
    text = THREE.replace(WAIT, "    mbarrier.wait(ready.index(0), 0)\n").replace("found = tile.load(L)", "pass")
    assert tried(text, most=0).states == 0
    with pytest.raises(KernelFault, match="reader of program 0 waits for ever in some order"):
        tried(text)


def test_a_budget_ends_the_search():
    orders = tried(RING, most=30, arguments=windows()[0])
    assert orders.states == 30 and not orders.all
