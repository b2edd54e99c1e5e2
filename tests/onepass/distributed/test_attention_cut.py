"""A graph that is cut where its keys are gone computes, in two halves, what the whole one does."""

import math

import pytest
import torch
from torch.nn.functional import scaled_dot_product_attention

from onepass.distributed.attention_cut import cuts, rest_graph, state_graph, traced, weighted_graph
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
