"""An axis is cut where each element of what is merged is computed by itself; what mixes heads before is refused."""

import math

import pytest
import torch

from onepass.distributed.shared_attention import Sides, proved, proved_heads
from onepass.errors import Refusal

Q, K, V = torch.randn(1, 4, 6, 8), torch.randn(1, 2, 9, 8), torch.randn(1, 2, 9, 8)
I, J, SLOPES = torch.arange(6), torch.arange(9), torch.rand(4)
NAMES = ["q", "k", "v", "i", "j", "slopes"]
SIDES = Sides({0: 2, 3: 0}, {1: 2, 2: 2, 4: 0})


def of_groups(x):
    return x.repeat_interleave(2, 1)


def without_mean(x):
    return x - x.mean(1, True)


def plain(q, k, v, i, j, slopes):
    return torch.softmax(q @ of_groups(k).mT, -1) @ of_groups(v)


def alibi(q, k, v, i, j, slopes):
    scores = 5 * torch.tanh(q @ of_groups(k).mT / 15) - slopes[:, None, None] * (i[:, None] - j)
    return torch.softmax(scores.masked_fill(j > i[:, None], -math.inf), -1) @ of_groups(v)


def by_views(q, k, v, i, j, slopes):
    q = q.unflatten(1, (k.shape[1], -1))
    return (torch.softmax(q @ k[:, :, None].mT + slopes.view(k.shape[1], -1, 1, 1), -1) @ v[:, :, None]).flatten(1, 2)


def sinks(q, k, v, i, j, slopes):
    scores = q @ of_groups(k).mT
    joined = torch.cat([scores, slopes.view(1, -1, 1, 1).expand(*q.shape[:3], 1)], -1)
    return torch.softmax(joined, -1)[..., :-1] @ of_groups(v)


def one_key_head(q, k, v, i, j, slopes):
    return torch.softmax(q @ k[:, :1].mT, -1) @ v[:, :1]


INDEPENDENT = {
    "groups": (plain, 2, {0: 1, 1: 1, 2: 1}),
    "softcap, slopes, positions": (alibi, 2, {0: 1, 1: 1, 2: 1, 5: 0}),
    "groups by views": (by_views, 2, {0: 1, 1: 1, 2: 1, 5: 0}),
    "sinks": (sinks, 2, {0: 1, 1: 1, 2: 1, 5: 0}),
    "one head of keys": (one_key_head, 4, {0: 1}),
    "key heads summed": (
        lambda q, k, v, i, j, slopes: torch.softmax(q @ k.sum(1, True).mT, -1) @ v.sum(1, True), 4, {0: 1}
    ),
}  # fmt: skip
AFTERWARDS = {  # heads are mixed behind the attention, where each rank has all of them
    "sum over heads": lambda *given: plain(*given).sum(1, True),
    "mean taken away": lambda *given: without_mean(plain(*given)),
    "heads flattened with columns": lambda *given: plain(*given).transpose(1, 2).flatten(2),
    "heads rolled": lambda q, *more: plain(q, *more).roll(1, 1),
    "number of heads": lambda q, *more: plain(q, *more) / q.shape[1],
}
MIXED = {
    "3 ranks do not divide": (plain, 3, "q has 4, which are not cut into 3 equal parts"),
    "a group stays together": (plain, 4, "has 2, which are not cut into 4 equal parts"),
    "scores mixed": (
        lambda q, k, v, *more: torch.softmax(without_mean(q @ of_groups(k).mT), -1) @ of_groups(v), 2, "its own"
    ),
    "heads flipped": (lambda q, *more: plain(q.flip(1), *more), 2, "q is read at another place than its own"),
    "places": (lambda q, *more: plain(q * torch.arange(4)[:, None, None], *more), 2, "depends on places in a shard"),
    "keys tiled": (lambda q, k, v, *more: torch.softmax(q @ k.repeat(1, 2, 1, 1).mT, -1) @ of_groups(v), 2, "its own"),
    "half of the heads": (lambda q, k, v, *more: torch.softmax(q[:, :2] @ k.mT, -1) @ v, 2, "q is read at another"),
    "number of heads": (lambda q, *more: plain(q / q.shape[1], *more), 2, "it is another function"),
    "slopes of all heads, afterwards": (
        lambda *given: plain(*given) * given[-1][:, None, None], 2, "does not run at other sizes"
    ),
    "sizes in the text": (lambda q, *more: plain(q, *more).view(1, 4, -1, 8), 2, "does not run at other sizes"),
    "two elements of a bias": (
        lambda q, k, v, i, j, slopes: torch.softmax(
            q @ of_groups(k).mT * slopes[:, None, None] + slopes[0] * j, -1) @ of_groups(v), 2, "its own"
    ),
}  # fmt: skip


def heads_of(function, given, ranks):
    return proved_heads(function, given, SIDES, NAMES, ranks, proved(function, given, SIDES, NAMES).place)


@pytest.mark.parametrize("name", INDEPENDENT)
def test_it_is_proved(name):
    function, ranks, axes = INDEPENDENT[name]
    heads = heads_of(function, [Q, K, V, I, J, SLOPES], ranks)
    assert (heads.axis, dict(heads.axes)) == (1, axes)


@pytest.mark.parametrize("name", AFTERWARDS)
def test_what_follows_the_attention_may_mix_heads(name):
    heads = heads_of(AFTERWARDS[name], [Q, K, V, I, J, SLOPES], 2)
    assert (heads.axis, heads.rows, dict(heads.axes)) == (1, 2, {0: 1, 1: 1, 2: 1})


@pytest.mark.parametrize("name", MIXED)
def test_it_is_refused(name):
    function, ranks, said = MIXED[name]
    with pytest.raises(Refusal, match=said) as refused:
        heads_of(function, [Q, K, V, I, J, SLOPES], ranks)
    assert refused.value.code == "OP807"


def test_what_is_proved_is_computed_head_by_head():
    """The heads of each rank, by the cut arguments, are those of the whole."""
    given = [Q.double(), K.double(), V.double(), I, J, SLOPES.double()]
    for function, ranks, _ in INDEPENDENT.values():
        heads = heads_of(function, given, ranks)
        parts = [function(*heads.cut(given, rank, ranks)) for rank in range(ranks)]
        torch.testing.assert_close(torch.cat(parts, heads.axis), function(*given))


def test_a_batch_is_as_good_as_heads_where_they_do_not_divide():
    given = [torch.randn(3, *x.shape[1:]) for x in (Q, K, V)] + [I, J, SLOPES]
    heads = heads_of(alibi, given, 3)
    assert (heads.axis, dict(heads.axes)) == (0, {0: 0, 1: 0, 2: 0})


def test_columns_of_values_are_no_heads():
    """Each rank would compute all weights: only what cuts queries shares out the work."""
    with pytest.raises(Refusal, match="not cut into 4 equal parts"):
        heads_of(plain, [Q, K, V, I, J, SLOPES], 4)
