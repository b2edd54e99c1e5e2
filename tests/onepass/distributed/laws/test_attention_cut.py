"""A graph that is cut where its keys are gone computes, in two halves, what the whole one does."""

import math

import pytest
import torch
from torch.nn.functional import scaled_dot_product_attention

from onepass.distributed.laws.attention_cut import (
    apart_from_sinks,
    cuts,
    rest_graph,
    sinks_graph,
    state_graph,
    traced,
    weighted_graph,
)
from onepass.distributed.shared_attention import _fakes
from onepass.errors import Refusal

SHAPES = [(1, 4, 5, 8), (1, 2, 7, 8), (1, 2, 7, 8), (7,)]


def inputs():
    torch.manual_seed(0)
    q, k, v = (torch.randn(shape, dtype=torch.float64) for shape in SHAPES[:3])
    return [q, k, v, torch.arange(7) != 3]


def gated(q, k, v, seen):
    k, v = (x.repeat_interleave(2, 1) for x in (k, v))
    return (torch.softmax((q @ k.mT / 3).masked_fill(~seen, -math.inf), -1) @ v) * torch.sigmoid(q)


def library(q, k, v, seen):
    return scaled_dot_product_attention(q, k, v, attn_mask=seen[None, None, None].expand(1, 4, 5, 7), enable_gqa=True)


def library_with_a_bias(q, k, v, seen):
    bias = torch.where(seen, 0.5, -2.0)[None, None, None].to(q.dtype)
    return scaled_dot_product_attention(q, k, v, attn_mask=bias, scale=0.2, enable_gqa=True).sin()


def library_causal(q, k, v, seen):
    return scaled_dot_product_attention(q[:, :2], k, v, is_causal=True)


FUNCTIONS = [gated, library, library_with_a_bias, library_causal]


def cuts_of(function):
    found = traced(function, _fakes(inputs()))
    return list(cuts(found, [1, 2, 3]))


@pytest.mark.parametrize("function", FUNCTIONS)
def test_the_halves_make_the_whole(function):
    given = inputs()
    for cut in cuts_of(function):
        mean, total = state_graph(cut)(*given)
        torch.testing.assert_close(rest_graph(cut)(*given, mean), function(*given))
        assert total.shape == (*mean.shape[:-1], 1)


@pytest.mark.parametrize("function", FUNCTIONS)
def test_with_its_own_logarithms_the_share_is_the_whole(function):
    given = inputs()
    cut = cuts_of(function)[0]
    mean, total = state_graph(cut)(*given)
    share, weight = weighted_graph(cut)(*given, total)
    torch.testing.assert_close(share, mean)
    torch.testing.assert_close(weight, torch.ones_like(weight))


def test_the_earliest_cut_is_behind_the_product_with_the_values():
    first = cuts_of(gated)[0]
    assert first.dim % 4 == 3 and first.mean is not first.traced.result
    assert "sigmoid" in rest_graph(first).code and "sigmoid" not in state_graph(first).code


def test_several_results_and_several_softmaxes_are_refused():
    with pytest.raises(Refusal, match="OP801"):
        traced(lambda q, k, v, seen: (q, k), _fakes(inputs()))
    twice = lambda q, k, v, seen: torch.softmax(k @ v.mT, -1) @ v + torch.softmax(k @ k.mT, -1) @ v
    with pytest.raises(Refusal, match=r"has 2.*OP802"):
        cuts_of(twice)


def test_random_weights_are_refused():
    with pytest.raises(Refusal, match="OP805"):
        traced(lambda q, k, v, seen: scaled_dot_product_attention(k, k, v, dropout_p=0.1), _fakes(inputs()))


def gpt_oss(q, k, v, seen):
    """As transformers writes it, with the largest taken away."""
    k, v = (x.repeat_interleave(2, 1) for x in (k, v))
    joined = torch.cat([(q @ k.mT).masked_fill(~seen, -math.inf), q[..., :1]], -1)
    return torch.softmax(joined - joined.max(-1, keepdim=True).values, -1)[..., :-1] @ v


def in_front(q, k, v, seen):
    k, v = (x.repeat_interleave(2, 1) for x in (k, v))
    return torch.softmax(torch.cat([q[..., :3], q @ k.mT], 3), -1)[..., 3:] @ v


WITHOUT_SINKS = {
    "no sinks": gated,
    "a sink's weight is read": lambda q, k, v, seen: torch.softmax(torch.cat([k, k[..., :1]], -1), -1)[..., 1:] @ k.mT,
    "joined along queries": lambda q, k, v, seen: torch.softmax(torch.cat([k @ k.mT, k @ v.mT], 2), -1)[:, :, :7] @ v,
    "scaled, not shifted": lambda q, k, v, seen: (
        torch.softmax(torch.cat([k @ k.mT, k[..., :1]], -1) - torch.cat([k @ v.mT, k[..., :1]], -1), -1)[..., :-1] @ v
    ),
    "all weights are read": lambda q, k, v, seen: torch.softmax(torch.cat([k @ k.mT, seen.expand(1, 2, 7, 7)], -1), -1),
}


@pytest.mark.parametrize("function", [gpt_oss, in_front])
def test_sinks_are_one_more_state(function):
    given = inputs()
    (cut, *_) = cuts(apart_from_sinks(traced(function, _fakes(given)), [1, 2, 3]), [1, 2, 3])
    mean, total = state_graph(cut)(*given)
    of_sinks = sinks_graph(cut)(*given).logsumexp(-1, keepdim=True)
    share = torch.exp(total - torch.logaddexp(total, of_sinks))
    torch.testing.assert_close(rest_graph(cut)(*given, mean * share), function(*given))


@pytest.mark.parametrize("name", WITHOUT_SINKS)
def test_other_scores_stay_as_they_are(name):
    found = traced(WITHOUT_SINKS[name], _fakes(inputs()))
    assert apart_from_sinks(found, [1, 2]) is found
