"""Pieces of heads: where their gradients belong, in which order they run, and that they join to the whole."""

import torch

from onepass.distributed.head_exchange import HeadExchange, Move
from onepass.distributed.laws.head_law import Heads
from onepass.distributed.pieces import MOST_AT_ONCE, JoinedGradients, Pieces, interleaved
from tests.support.rank_threads import RankThread

HEADS = Heads(1, {0: 1, 2: 0})  # of x [1, heads, tokens] and slopes [heads]; a scale has no heads


def test_a_piece_is_taken_and_put_back():
    tensors = [torch.randn(1, 8, 5), torch.randn(1), torch.randn(8)]
    pieces = Pieces(HEADS, 4)
    joined = JoinedGradients(pieces, tensors)
    for piece in range(4):
        found = pieces.of_tensors(tensors, piece)
        assert found[0].shape == (1, 2, 5) and found[1] is tensors[1]
        assert torch.equal(pieces.of_output(tensors[0], piece), found[0])
        joined.put(piece, found)
    of_x, of_scale, of_slopes = joined.all()
    assert torch.equal(of_x, tensors[0]) and torch.equal(of_slopes, tensors[2])
    torch.testing.assert_close(of_scale, 4 * tensors[1])


def test_a_single_piece_is_all_of_it():
    tensors = [torch.randn(1, 8, 5), torch.randn(1).bfloat16()]
    joined = JoinedGradients(Pieces(), tensors)
    assert all(x is y for x, y in zip(Pieces().of_tensors(tensors, 0), tensors, strict=True))
    joined.put(0, [None, torch.ones(1)])
    assert joined.all()[0] is None and joined.all()[1].dtype == torch.bfloat16


def test_what_is_not_exchanged_has_a_part_for_each_rank_and_piece():
    """Of 8 slopes, piece 1 of 2 on rank 1 of 2 has the last two; the rest is 0, as the sum over ranks is the whole."""
    move = Move(2, [5, 5], 1)
    exchange = HeadExchange(RankThread(None, 1, 2), HEADS, {0: move}, move)
    pieces = Pieces(HEADS, 2, exchange)
    assert (pieces.place(0, 1), pieces.place(2, 1)) == ((1, 2), (3, 4))
    joined = JoinedGradients(pieces, [torch.zeros(1, 8, 5), torch.zeros(1), torch.zeros(8)])
    for piece in range(2):
        joined.put(piece, [torch.full((1, 4, 5), float(piece)), None, torch.full((2,), 1.0 + piece)])
    of_x, none, of_slopes = joined.all()
    assert of_x[0, :, 0].tolist() == [0.0] * 4 + [1.0] * 4 and none is None
    assert of_slopes.tolist() == [0.0, 0.0, 1.0, 1.0, 0.0, 0.0, 2.0, 2.0]


def test_what_a_piece_waits_for_runs_beside_the_next_ones():
    """Each piece sends, computes and receives. The next one sends before it computes, and computes before it ends."""
    order = []

    def piece(number):
        for step in ("sends", "computes"):
            order.append((step, number))
            yield
        order.append(("ends", number))
        return [torch.tensor(number)]

    joined = []
    interleaved((piece(number) for number in range(5)), lambda number, found: joined.append((number, int(found[0]))))
    assert joined == [(number, number) for number in range(5)]
    at = {event: place for place, event in enumerate(order)}
    for number in range(4):
        assert at["sends", number + 1] < at["computes", number] < at["computes", number + 1] < at["ends", number]
    open_at_once = [sum(at["sends", n] <= place < at["ends", n] for n in range(5)) for place in range(len(order))]
    assert max(open_at_once) == MOST_AT_ONCE
