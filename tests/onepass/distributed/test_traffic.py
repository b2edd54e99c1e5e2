"""What a schedule moves, holds and takes, by the estimate; the choice follows from it."""

import pytest
import torch

from onepass.distributed import traffic
from onepass.distributed.shared_attention import Sides
from onepass.distributed.traffic import chosen, estimates

MIB = 2**20


def test_bytes_by_hand():
    """131072 tokens, 16 heads of 128, bfloat16, on 2 ranks: 512 MiB of keys and values each, 70 TFLOP of products."""
    found = estimates(512 * MIB, 4.0 * 16 * 65536 * 128 * 65536, 2)
    assert {e.received for e in found.values()} == {512 * MIB}
    assert (found["ring"].held, found["all-gather"].held) == (512 * MIB, 1024 * MIB)
    assert found["ring"].seconds == pytest.approx(2 * 35.2e12 / traffic.PRODUCTS, rel=0.01)


def test_one_rank_receives_nothing():
    assert {(e.received, e.held) for e in estimates(512, 1e9, 1).values()} == {(0, 0)}


@pytest.mark.parametrize("ranks", [2, 3, 8, 64])
def test_no_schedule_is_faster_than_its_kernels_or_its_link(ranks):
    for own, operations in ((512 * MIB, 1e6), (1024, 1e13), (64 * MIB, 1e11)):
        for estimate in estimates(own, operations, ranks).values():
            assert estimate.seconds >= ranks * operations / traffic.PRODUCTS * 0.999
            assert estimate.seconds >= (ranks - 1) * own / traffic.LINK


def tensors(queries, keys):
    return [torch.empty(1, 2, n, 8, device="meta") for n in (queries, keys, keys)], Sides({0: 2}, {1: 2, 2: 2})


def test_the_ring_holds_less_where_both_take_the_same():
    assert chosen(*tensors(4096, 4096), 2) == "ring"


def test_many_small_exchanges_are_gathered():
    """A ring starts an exchange in each round, and all-gather one."""
    assert chosen(*tensors(1, 64), 8) == "all-gather"


def test_what_does_not_fit_is_not_gathered(monkeypatch):
    monkeypatch.setattr(traffic, "_memory", lambda device: 1000.0)
    assert chosen(*tensors(1, 64), 8) == "ring"
