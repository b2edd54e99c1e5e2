"""Heads go there and come home, for parts of any lengths; gradients take the way home, too."""

import pytest
import torch

from onepass.distributed.exchange import Remembered
from onepass.distributed.head_exchange import HeadExchange, Move
from onepass.distributed.laws.head_law import Heads
from tests.support.rank_threads import RankThread, ended, group, in_threads

LENGTHS = {1: [5], 2: [3, 4], 3: [2, 5, 1]}
HEADS = Heads(1, {0: 1, 2: 0})  # of the second axis of x, and of the only one of the slopes; y has no heads


def whole(ranks):
    """x [1, heads, tokens, 2], y [tokens] and slopes [heads], and a cotangent of x."""
    torch.manual_seed(0)
    tokens = sum(LENGTHS[ranks])
    return (
        torch.randn(1, 6, tokens, 2, dtype=torch.float64),
        torch.randn(tokens, dtype=torch.float64),
        torch.randn(6, dtype=torch.float64),
        torch.randn(1, 6, tokens, 2, dtype=torch.float64),
    )


def mix(x, y, slopes):
    """What heads do by themselves: every token of a head is read."""
    return x * slopes[:, None, None] * y[:, None] + (x * y[:, None]).sum(2, keepdim=True)


@pytest.mark.parametrize("ranks", LENGTHS)
def test_it_is_the_function_of_the_whole(ranks):
    x, y, slopes, grad = whole(ranks)
    given = [t.requires_grad_() for t in (x, y, slopes)]
    right = mix(*given)
    gradients = torch.autograd.grad(right, given, grad)
    post, lengths = group(), LENGTHS[ranks]

    def work(rank):
        moves = {0: Move(2, lengths, 1), 1: Move(0, lengths, None)}
        exchange = HeadExchange(RankThread(post, rank, ranks), HEADS, moves, Move(2, lengths, 1))
        own = [x.detach().split(lengths, 2)[rank], y.detach().split(lengths)[rank], slopes.detach()]
        there, (of_result,) = ended(exchange.there(own, Remembered(), [grad.split(lengths, 2)[rank]]))
        assert there[0].shape == (1, 6 // ranks, sum(lengths), 2) and len(there[2]) == 6 // ranks
        there = [t.requires_grad_() for t in there]
        result = mix(*there)
        home = ended(exchange.home([result.detach()]))[0]
        return home, ended(exchange.gradients_home(torch.autograd.grad(result, there, of_result)))

    found = in_threads(work, [(rank,) for rank in range(ranks)])
    for rank, (result, (of_x, of_y, of_slopes)) in enumerate(found):
        torch.testing.assert_close(result, right.split(lengths, 2)[rank])
        torch.testing.assert_close(of_x, gradients[0].split(lengths, 2)[rank])
        torch.testing.assert_close(of_y, gradients[1].split(lengths)[rank])
        torch.testing.assert_close(of_slopes, gradients[2].chunk(ranks)[rank])


def test_what_has_no_gradient_gets_none_and_truth_values_travel_once():
    post = group()

    def work(rank):
        moves = {0: Move(1, [2, 1], 0), 1: Move(0, [2, 1], None)}
        exchange = HeadExchange(RankThread(post, rank, 2), Heads(0, {0: 0}), moves, Move(1, [2, 1], 0))
        own, remembered = [torch.full((2, 2 - rank), float(rank)), torch.ones(2 - rank) > rank], Remembered().of({1})
        (x, seen), _ = ended(exchange.there(own, remembered))
        (_, again), _ = ended(exchange.there([own[0], ~own[1]], remembered))
        of_x, none = ended(exchange.gradients_home([x, None]))
        return x.tolist(), seen.tolist(), again is seen, of_x.tolist(), none

    found = in_threads(work, [(0,), (1,)])
    assert [f[:3] for f in found] == [([[0.0, 0.0, 1.0]], [True, True, False], True)] * 2
    assert [f[3:] for f in found] == [([[0.0, 0.0]] * 2, None), ([[1.0]] * 2, None)]
