"""What a schedule moves, holds and takes, by the estimate; the choice follows from it."""

import pytest
import torch

from onepass.distributed import traffic
from onepass.distributed.laws.head_law import Heads
from onepass.distributed.shared_attention import Sides
from onepass.distributed.traffic import RankWork, chosen, estimates, work_of

MIB = 2**20
CPU = torch.device("cpu")


def test_bytes_by_hand():
    """131072 tokens, 16 heads of 128, bfloat16, on 2 ranks: 512 MiB of keys and values each, 70 TFLOP of products.

    An exchange of heads moves half of 1 GiB: queries, keys, values, result.
    """
    found = estimates(RankWork(512 * MIB, 4.0 * 16 * 65536 * 128 * 65536, 1024 * MIB), [2])
    assert {n: e.received // MIB for n, e in found.items()} == {"ring": 512, "all-gather": 512, "ulysses": 512}
    assert {n: e.held // MIB for n, e in found.items()} == {"ring": 512, "all-gather": 1024, "ulysses": 1024}
    assert found["ring"].seconds == pytest.approx(2 * 35.2e12 / traffic.PRODUCTS, rel=0.01)


def test_two_levels_by_hand():
    """3 hosts of 4 ranks: 11 parts come, 2 of them over the network, beside kernels that take longer."""
    found = estimates(RankWork(1000, 1e12, 4000, 100, 60), [3, 4])
    assert set(found) == {"two-level", "two-level ulysses"}
    assert found["two-level"].received == 11 * 1000 and found["two-level"].held == 2 * 1000 + 2 * 3 * 1000
    assert found["two-level"].seconds == pytest.approx(12 * 1e12 / traffic.PRODUCTS, rel=0.01)
    assert found["two-level ulysses"].received == 2 * (1000 + 3 * 60) + 3 * 1000 + 3 * 100
    slow = estimates(RankWork(10**9, 1.0), [3, 4])["two-level"]
    assert slow.seconds == pytest.approx(2 * 1e9 / traffic.NETWORK + 3e9 / traffic.LINK, rel=0.01)


def test_a_rank_without_tokens_knows_the_work_of_the_longest_part():
    parts = ([torch.empty(1, 3, n, 64, dtype=torch.bfloat16) for _ in range(3)] for n in (0, 10))
    none, some = (work_of(given, Sides({0: 2}, {1: 2, 2: 2}), (10, 10), None) for given in parts)
    assert none == some


def test_one_rank_receives_nothing():
    for sizes in ([1], [1, 1]):
        assert {(e.received, e.held) for e in estimates(RankWork(512, 1e9, 2048), sizes).values()} == {(0, 0)}


@pytest.mark.parametrize("sizes", [(2,), (3,), (8,), (64,), (2, 4), (8, 8)], ids=str)
def test_no_schedule_is_faster_than_its_kernels_or_its_link(sizes):
    ranks = torch.Size(sizes).numel()
    for own, operations in ((512 * MIB, 1e6), (1024, 1e13), (64 * MIB, 1e11)):
        for estimate in estimates(RankWork(own, operations, 4 * own), sizes).values():
            assert estimate.seconds >= ranks * operations / traffic.PRODUCTS * 0.999
            links = traffic.LINK + (traffic.NETWORK if len(sizes) > 1 else 0)
            assert estimate.seconds >= estimate.received / links * 0.999


def test_work_counts_what_heads_cut_and_what_goes_whole():
    """Queries and a result of 4 heads, one head of keys and values that goes whole, positions of int64."""
    given = [torch.empty(1, 4, 6, 8), *(torch.empty(1, 1, 3, 8) for _ in "kv"), torch.empty(6, dtype=torch.int64)]
    sides = Sides({0: 2, 3: 0}, {1: 2, 2: 2})
    found = work_of(given, sides, (12, 5), Heads(1, {0: 1}))
    keys, query = 2 * 5 * 8 * 4, 4 * 12 * 8 * 4
    assert found == RankWork(keys, 4.0 * 4 * 12 * 8 * 5, 2 * query, keys + 12 * 8, keys)
    assert work_of(given, sides, (12, 5), None) == RankWork(keys, found.operations)


def work(queries, keys, heads=None):
    given = [torch.empty(1, 2, n, 8, device="meta") for n in (queries, keys, keys)]
    return work_of(given, Sides({0: 2}, {1: 2, 2: 2}), (queries, keys), heads)


def test_the_ring_holds_less_where_all_take_the_same():
    assert chosen(work(4096, 4096), [2], CPU) == "ring"


def test_many_small_exchanges_are_gathered():
    """A ring starts an exchange in each round, and all-gather one."""
    assert chosen(work(1, 64), [8], CPU) == "all-gather"


def test_heads_are_exchanged_where_keys_take_longer_than_their_products():
    """Of 64 ranks, each with few queries, a ring passes 63 parts of keys, and heads are exchanged once."""
    heads = Heads(1, {0: 1, 1: 1, 2: 1})
    few = RankWork(16 * MIB, 1e8, 32 * MIB)
    assert chosen(few, [64], CPU) == "ulysses"
    assert chosen(RankWork(16 * MIB, 1e8), [64], CPU) == "ring", "heads cannot be exchanged"
    assert chosen(few, [8, 8], CPU) == "two-level ulysses"
    assert chosen(work(65536, 65536, heads), [2], CPU) == "ring"


def test_what_does_not_fit_is_not_gathered(monkeypatch):
    monkeypatch.setattr(traffic, "_memory", lambda device: 1000.0)
    assert chosen(work(1, 64), [8], CPU) == "ring"


def test_pieces_are_as_many_as_have_kernels_of_2_ms():
    """A ring of 2 has a kernel for each half of the keys, and so has a gathering, of however many ranks."""
    work = RankWork(512 * MIB, 4.0 * 16 * 65536 * 128 * 65536)  # 0.14 s on 2 ranks
    for name in ("ring", "all-gather", "ulysses"):
        assert [traffic.most_pieces(work, [n], name) for n in (1, 2)] == [1, 16]
    short = RankWork(MIB, 6.2 * traffic.SECONDS_OF_A_KERNEL * traffic.PRODUCTS)
    assert [traffic.most_pieces(short, [n], "ring") for n in (2, 8)] == [4, 4]
    assert [traffic.most_pieces(short, [n], "ulysses") for n in (2, 8)] == [8, 16]
    assert traffic.most_pieces(short, [2, 4], "two-level") == 8, "4 kernels"
    assert traffic.most_pieces(RankWork(MIB, 1e9), [8], "ring") == 1


def test_a_piece_holds_its_part_and_waits_for_its_part():
    work = RankWork(1000, 1e12, 4000)
    whole, pieces = estimates(work, [2]), estimates(work, [2], dict.fromkeys(("ring", "all-gather", "ulysses"), 4))
    held = {name: pieces[name].held / whole[name].held for name in whole}
    assert held == {"ring": 0.25, "all-gather": 0.25, "ulysses": 0.75}, "of heads, three pieces at a time"
    assert all(pieces[name].received == whole[name].received for name in whole)
    slow = RankWork(10**9, 1.0, 4 * 10**9)
    waits = [estimates(slow, [2], {"ulysses": n})["ulysses"].seconds for n in (1, 4)]
    assert waits[1] < waits[0] / 3


def test_what_has_no_heads_makes_pieces_dear():
    assert traffic.is_worth(RankWork(1000, 1.0, 4000, 100, 16), 16)
    assert not traffic.is_worth(RankWork(1000, 1.0, 4000, 600, 500), 2)
    assert traffic.is_worth(RankWork(1000, 1.0, 4000, 600, 500), 1)
