"""States of parts merge where a key is known by itself alone; whatever else a function does with keys is refused."""

import math

import pytest
import torch
from torch.nn import functional as F

from onepass.distributed.shared_attention import Sides, proved
from onepass.errors import Refusal

Q, K, V = (torch.randn(1, 2, n, 8) for n in (6, 9, 9))
I, J = torch.arange(6), torch.arange(9)
BIAS = torch.randn(6, 9)
SIDES = Sides({0: 2, 3: 0}, {1: 2, 2: 2, 4: 0})


def scores(q, k):
    return q @ k.mT / 3


def weights(s):
    return torch.softmax(s, -1)


def sink(q, k, more):
    return weights(torch.cat([scores(q, k), more], -1))


MERGE = {
    "sink of a query": lambda q, k, v, i, j: sink(q, k, q[..., :1])[..., :-1] @ v,
    "several sinks in front": lambda q, k, v, i, j: (
        weights(torch.cat([q[..., :3], scores(q, k) + 0.1 * j], -1))[..., 3:] @ v
    ),
    "causal": lambda q, k, v, i, j: weights(scores(q, k).masked_fill(j > i[:, None], -math.inf)) @ v,
    "window": lambda q, k, v, i, j: weights(scores(q, k).masked_fill((i[:, None] - j).abs() > 3, -math.inf)) @ v,
    "bias by distance": lambda q, k, v, i, j: weights(scores(q, k) - 0.1 * (i[:, None] - j).abs()) @ v,
    "one more score": lambda q, k, v, i, j: weights(F.pad(scores(q, k), (0, 1)))[..., :-1] @ v,
    "two numbers in front": lambda q, k, v, i, j: weights(F.pad(scores(q, k), (2, 0), value=-1.5))[..., 2:] @ v,
    "zeros like scores": lambda q, k, v, i, j: (
        weights(torch.cat([scores(q, k), torch.zeros_like(scores(q, k)[..., :1])], -1))[..., :-1] @ v
    ),
    "softcap": lambda q, k, v, i, j: weights(torch.tanh(scores(q, k) / 9) * 9) @ v,
    "finite mask": lambda q, k, v, i, j: weights(scores(q, k).masked_fill(j > i[:, None], -1e4)) @ v,
    "values scaled by key": lambda q, k, v, i, j: weights(scores(q, k)) @ (v * j[:, None]),
    "followed by a gate": lambda q, k, v, i, j: (weights(scores(q, k)) @ v) * torch.sigmoid(q),
    "rows without keys are 0": lambda q, k, v, i, j: (
        weights(scores(q, k)).masked_fill(scores(q, k).amax(-1, keepdim=True) == -math.inf, 0.0) @ v
    ),
    "largest taken away": lambda q, k, v, i, j: weights(scores(q, k) - scores(q, k).amax(-1, keepdim=True)) @ v,
}
DO_NOT = {
    "places of keys": lambda q, k, v, i, j: weights(scores(q, k) + torch.arange(k.shape[-2])) @ v,
    "last key": lambda q, k, v, i, j: weights(scores(q, k) + k[:, :, -1:].sum(-1, keepdim=True)) @ v,
    "mean of keys": lambda q, k, v, i, j: weights(scores(q, k - k.mean(-2, keepdim=True))) @ v,
    "padded at both ends": lambda q, k, v, i, j: weights(F.pad(scores(q, k), (1, 1)))[..., 1:-1] @ v,
    "keys shifted by one": lambda q, k, v, i, j: weights(scores(q, torch.roll(k, 1, -2))) @ v,
    "values flipped": lambda q, k, v, i, j: weights(scores(q, k)) @ v.flip(-2),
    "number of keys": lambda q, k, v, i, j: weights(scores(q, k) * math.log(k.shape[-2])) @ v * k.shape[-2] / v.sum(),
    "weights kept above a mean": lambda q, k, v, i, j: (
        weights(scores(q, k).where(scores(q, k) > scores(q, k).mean(-1, keepdim=True), -math.inf)) @ v
    ),
    "divided by the sum of weights": lambda q, k, v, i, j: (
        (sink(q, k, q[..., :1])[..., :-1] @ v) / sink(q, k, q[..., :1])[..., :-1].sum(-1, keepdim=True)
    ),
    "weights divided by their sum": lambda q, k, v, i, j: (
        (lambda w: w / w.sum(-1, keepdim=True) @ v)(sink(q, k, q[..., :1])[..., :-1])
    ),
    "weights squared": lambda q, k, v, i, j: weights(scores(q, k)) ** 2 @ v,
    "number of keys in a score": lambda q, k, v, i, j: weights(scores(q, k) * math.log(k.shape[-2])) @ v,
    "number of queries": lambda q, k, v, i, j: weights(scores(q, k)) @ v / q.shape[-2],
    "sink that is read": lambda q, k, v, i, j: sink(q, k, q[..., :1])[..., 1:] @ v,
    "sink of keys": lambda q, k, v, i, j: sink(q, k, q @ k.mean(-2, keepdim=True).mT)[..., :-1] @ v,
    "sink by a query's place": lambda q, k, v, i, j: (
        sink(q, k, torch.arange(q.shape[-2]).view(1, 1, -1, 1).expand(*q.shape[:3], 1).float())[..., :-1] @ v
    ),
    "sigmoid": lambda q, k, v, i, j: torch.sigmoid(scores(q, k)) @ v,
    "largest weight": lambda q, k, v, i, j: weights(scores(q, k)).amax(-1, keepdim=True) * v.sum(-2, keepdim=True),
    "values of queries' places": lambda q, k, v, i, j: (weights(scores(q, k)) @ v) * torch.arange(q.shape[-2])[:, None],
    "queries mixed": lambda q, k, v, i, j: (weights(scores(q, k)) @ v).cumsum(-2),
    "keys counted": lambda q, k, v, i, j: weights(scores(q, k) * torch.arange(k.shape[-2], dtype=q.dtype).amax(0)) @ v,
    "keys summed up": lambda q, k, v, i, j: weights(scores(q, k) / torch.ones(k.shape[-2]).sum()) @ v,
    "queries counted": lambda q, k, v, i, j: (weights(scores(q, k)) @ v) * torch.ones(q.shape[-2]).sum(),
    "a sink for each key": lambda q, k, v, i, j: (
        weights(torch.cat([scores(q, k), q[..., :1] * torch.arange(k.shape[-2])], -1))[..., : k.shape[-2]] @ v
    ),
    "softmax over queries": lambda q, k, v, i, j: torch.softmax(scores(q, k), -2) @ v,
}


@pytest.mark.parametrize("name", MERGE)
def test_it_is_proved(name):
    assert proved(MERGE[name], [Q, K, V, I, J], SIDES).axis == 2


@pytest.mark.parametrize("name", DO_NOT)
def test_it_is_refused(name):
    with pytest.raises(Refusal) as refused:
        proved(DO_NOT[name], [Q, K, V, I, J], SIDES)
    assert refused.value.code[:3] == "OP8" or name == "queries mixed"  # a running sum is refused by its own name


def test_a_refusal_names_the_line_and_the_way_out():
    with pytest.raises(Refusal) as refused:
        proved(DO_NOT["places of keys"], [Q, K, V, I, J], SIDES)
    line = DO_NOT["places of keys"].__code__.co_firstlineno
    assert f"({__file__}:{line}) [OP803]" in str(refused.value)
    assert any("way out: " in note and "refusals.md#op803" in note for note in refused.value.__notes__)


def test_a_tensor_of_keys_that_is_not_named_is_refused_by_its_name():
    biased = lambda q, k, v, bias: weights(scores(q, k) + bias) @ v
    sides = Sides({0: 2}, {1: 2, 2: 2})
    with pytest.raises(Refusal, match="bias is read by place and is not named as an argument of theirs"):
        proved(biased, [Q, Q, Q, torch.randn(509, 641)], sides, ["q", "k", "v", "bias"])
    with pytest.raises(Refusal, match="it does not run on its arguments with other numbers of queries and keys"):
        proved(biased, [Q, K, V, BIAS], sides, ["q", "k", "v", "bias"])


def test_a_table_is_read_by_what_is_known_of_a_key_and_not_by_its_place():
    sides, names = Sides({0: 2, 3: 0}, {1: 2, 2: 2, 4: 0}), ["q", "k", "v", "i", "j", "table"]
    given = [Q, K, V, I, J, torch.randn(2, 13)]
    relative = lambda q, k, v, i, j, table: weights(scores(q, k) + table[:, (i[:, None] - j).clamp(-6, 6) + 6]) @ v
    assert proved(relative, given, sides, names).axis == 2
    by_place = lambda q, k, v, i, j, table: relative(q, k, v, i, torch.arange(k.shape[-2]), table)
    with pytest.raises(Refusal, match="table is read by place"):
        proved(by_place, given, sides, names)


def test_a_tensor_that_is_no_argument_is_refused():
    with pytest.raises(Refusal, match="it reads a tensor from outside: make it an argument, or a buffer"):
        proved(lambda q, k, v: weights(scores(q, k) + BIAS) @ v, [Q, K, V], Sides({0: 2}, {1: 2, 2: 2}))


def test_names_that_become_the_same_stay_apart():
    """Names are cleaned for terms: l_k_ and k are two tensors there, too."""
    causal = lambda q, l_k_, k, i, j: MERGE["causal"](q, l_k_, k, i, j)
    assert proved(causal, [Q, K, V, I, J], SIDES, ["q", "L_k_", "k", "i", "j"]).axis == 2
