"""Every grid of hosts and ranks: each rank sees each key once, in a fixed order, and gradients of keys come home."""

from dataclasses import replace

import pytest
import torch

from onepass.distributed import schedules
from onepass.distributed.schedules import SCHEDULES, Shards, Sum, backward, forward
from onepass.states import State
from tests.support.rank_threads import RankThread, ended, group, in_threads

GRIDS = [(1, 1), (3, 1), (1, 3), (2, 2), (3, 2), (2, 3)]
WIDTH = 2


def lengths_of(grid):
    """Of the keys of each rank, which differ."""
    hosts, ranks = grid
    return [[1 + (3 * host + 2 * rank) % 4 for rank in range(ranks)] for host in range(hosts)]


def keys_of(grid):
    """Of each rank its keys as [number, width], the rank's number in tens, the key's in ones; and their scores."""
    found = {}
    for host, row in enumerate(lengths_of(grid)):
        for rank, length in enumerate(row):
            number = host * grid[1] + rank
            keys = 10.0 * number + torch.arange(length, dtype=torch.float64)
            found[host, rank] = [keys[:, None].expand(length, WIDTH).contiguous(), torch.sin(keys)[None]]
    return found


def each_rank(grid, work):
    """What work(shards, own keys) gives at each place."""
    hosts, ranks = grid
    rings, gathers = [group() for _ in range(ranks)], [group() for _ in range(hosts)]

    def at(host, rank):
        ring, gather = RankThread(rings[rank], host, hosts), RankThread(gathers[host], rank, ranks)
        return work(Shards(ring, gather, lengths_of(grid), [0, 1]), keys_of(grid)[host, rank])

    places = [(host, rank) for host in range(hosts) for rank in range(ranks)]
    return dict(zip(places, in_threads(at, places), strict=True))


@pytest.mark.parametrize("grid", GRIDS, ids=str)
def test_every_rank_has_the_state_of_all_keys(grid):
    def work(shards, own):
        seen = []

        def state_of(keys):
            values, scores = keys
            seen.append(values[:, 0].tolist())
            return State(scores.softmax(-1) @ values, scores.logsumexp(-1, keepdim=True))

        return forward(shards, own, state_of), seen

    every = keys_of(grid)
    values, scores = torch.cat([v for v, _ in every.values()]), torch.cat([s for _, s in every.values()], 1)
    for place, (state, seen) in each_rank(grid, work).items():
        torch.testing.assert_close(state.output, scores.softmax(-1) @ values)
        torch.testing.assert_close(state.logsumexp, scores.logsumexp(-1, keepdim=True))
        assert seen[0] == every[place][0][:, 0].tolist(), "its own keys come first"
        assert sorted(key for keys in seen for key in keys) == sorted(values[:, 0].tolist()), "each key once"
        assert len(seen) == grid[0] * min(grid[1], 2)


def test_the_order_of_two_hosts():
    def work(shards, own):
        seen = []

        def state_of(keys):
            seen.append((keys[0][:, 0] // 10).unique().tolist())
            return State(torch.zeros(1, 1), torch.zeros(1, 1))

        forward(shards, own, state_of)
        return seen

    found = each_rank((2, 3), work)
    assert found[0, 0] == [[0], [1, 2], [3], [4, 5]] and found[1, 1] == [[4], [3, 5], [1], [0, 2]]


@pytest.mark.parametrize("grid", GRIDS, ids=str)
def test_gradients_of_keys_come_home(grid):
    """Each rank finds, for each key, the key's number times one more than its own; the rest counts keys."""

    def work(shards, own):
        factor = 1.0 + shards.ring.rank * shards.gather.size + shards.gather.rank
        rest = Sum()

        def gradients_of(keys):
            values, _ = keys
            return [torch.tensor(float(len(values))), None], [factor * values, None]

        return ended(backward(shards, own, gradients_of, rest)), rest.total

    ranks = grid[0] * grid[1]
    for place, (own, rest) in each_rank(grid, work).items():
        values, _ = keys_of(grid)[place]
        torch.testing.assert_close(own[0], values * sum(range(1, ranks + 1)))
        assert own[1] is None and rest[1] is None
        assert rest[0] == sum(map(sum, lengths_of(grid)))


@pytest.mark.parametrize("grid", [(2, 1), (1, 2), (2, 2)], ids=str)
def test_gradients_travel_in_float32(grid):
    """1 and many halves of bfloat16's last place: added in bfloat16, the halves would be lost."""

    def work(shards, own):
        first = shards.ring.rank == shards.gather.rank == 0
        value = 1.0 if first else 2.0**-9
        gradients_of = lambda keys: ([], [torch.full_like(keys[0], value, dtype=torch.bfloat16), None])
        return ended(backward(shards, own, gradients_of, Sum()))[0]

    found = each_rank(grid, work)
    assert all(torch.all(x == 1 + 2.0**-9 * (len(found) - 1)) for x in found.values())


def listen(ranks, heard):
    """Tells what is sent in each exchange."""
    start = ranks.start

    def started(sends, receives):
        heard(sends)
        return start(sends, receives)

    object.__setattr__(ranks, "start", started)


@pytest.mark.parametrize("grid", GRIDS, ids=str)
def test_integers_are_exchanged_once(grid):
    """The second forward and its backward send keys and gradients, and no integers; objects stay the same."""

    def work(shards, own):
        sent, found = [], []
        own = [own[0], torch.arange(own[0].shape[0]) + 100 * (shards.ring.rank * 10 + shards.gather.rank)]
        shards = replace(shards, axes=[0, 0]).of_piece({1}, (), 0)
        for ranks in (shards.ring, shards.gather):
            listen(ranks, lambda sends: sent.extend(x.dtype for x, _ in sends))

        def state_of(keys):
            found.append(keys[1])
            return State(torch.zeros(1, 1), torch.zeros(1, 1))

        def gradients_of(keys):
            found.append(keys[1])
            return [], [keys[0], None]

        forward(shards, own, state_of)
        first = torch.int64 in sent
        sent.clear()
        forward(shards, own, state_of)
        ended(backward(shards, own, gradients_of, Sum()))
        third = len(found) // 3
        same = all(x is y for x, y in zip(found[third:], found[:third] * 2, strict=True))
        return first, torch.int64 in sent, same, sorted(n for x in found[:third] for n in x.tolist())

    ranks, lengths = grid[0] * grid[1], lengths_of(grid)
    every = sorted(
        100 * (host * 10 + rank) + n for host, row in enumerate(lengths) for rank, n in enumerate(row) for n in range(n)
    )
    assert set(map(str, each_rank(grid, work).values())) == {str((ranks > 1, False, True, every))}


def test_gradients_of_halves_travel_as_they_are_and_come_home_rounded():
    """Of two hosts nothing is ever wide; of three the sum of two parts is."""

    def work(shards, own):
        sent = []
        listen(shards.ring, lambda sends: sent.append({x.dtype for x, _ in sends}))
        own = [own[0].bfloat16()]
        thirds = lambda keys: ([], [torch.ones_like(keys[0]) / 3])
        found = ended(backward(replace(shards, axes=[0]), own, thirds, Sum()))
        return found[0].dtype, sent

    half, wide = {torch.bfloat16}, {torch.float32}
    for hosts, ways in ((2, [half, half]), (3, [half, wide, half])):
        keys = [half] * (hosts - 1)
        for dtype, sent in each_rank((hosts, 1), work).values():
            assert dtype == torch.bfloat16 and sorted(map(str, sent)) == sorted(map(str, keys + ways))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32], ids=str)
def test_what_inductor_makes_of_a_merge_is_the_merge(dtype):
    """Rows without keys are 0; in rows that a mask's number hides, keys count alike. In halves it is done in place."""
    torch.manual_seed(0)
    outputs = [torch.randn(2, 3, 64, 16).bfloat16() for _ in range(2)]
    totals = [torch.randn(2, 3, 64, 1) for _ in range(2)]
    totals[0][:, :, 0] = totals[1][:, :, 1] = totals[0][:, :, 2] = totals[1][:, :, 2] = -torch.inf
    totals[0][:, :, 3] = totals[1][:, :, 3] = -1e9
    outputs[0][:, :, 0] = torch.nan
    states = [State(x, total) for x, total in zip(outputs, totals, strict=True)]
    first, share = outputs[0].clone(), torch.full((), 0.25)
    given = [first, totals[0], *states[1], share]
    again = dtype == torch.bfloat16
    kernel = schedules._compiled(schedules._JOINED[again, dtype], given)
    assert kernel is not schedules._JOINED[again, dtype], "Inductor failed"
    output, total = kernel(*given)
    right = schedules.merged_with(State(outputs[0].clone(), totals[0]), states[1], dtype, 0.25)
    torch.testing.assert_close(output, right.output)
    assert torch.equal(total, right.logsumexp) and not output.isnan().any() and (output[:, :, 2] == 0).all()
    hidden = outputs[0][:, :, 3].float() / 4 + outputs[1][:, :, 3].float() * 3 / 4
    torch.testing.assert_close(output[:, :, 3].float(), hidden, rtol=1e-2, atol=1e-2)
    assert (output.data_ptr() == first.data_ptr()) == again


def test_a_sum_keeps_what_it_was_given():
    total, given = Sum(), torch.ones(3)
    for _ in range(2):
        total.add([given, None])
    total.add([None, given])
    total.add([None, given])
    assert [x.tolist() for x in total.total] == [[2.0] * 3] * 2 and given.tolist() == [1.0] * 3


def test_each_schedule_has_one_role_for_each_dim():
    assert {role for roles in SCHEDULES.values() for role in roles} == {"ring", "gather", "heads"}
    assert all(len({*roles}) == len(roles) <= 2 for roles in SCHEDULES.values())
