"""A region's call moved noise that it reads in front of a dropout that came first: the same seed gave other numbers."""

import pytest
import torch
import torch.nn.functional as F

import onepass
from onepass.api.backend import onepass_backend


def _noise_behind_dropout(q, k, v):
    p = (q @ k.mT).softmax(-1)
    return F.dropout(p @ v, 0.5), p @ (v + torch.randn_like(v))


def _two_noises(q, k, v):
    p = (q @ k.mT).softmax(-1)
    first = torch.rand(2) + (p @ v).mean()
    return first, p @ (v * torch.bernoulli(torch.full_like(v, 0.5)))


def _noise_in_front(q, k, v):
    noise = torch.randn_like(v)
    return (q @ k.mT).softmax(-1) @ (v + noise), torch.rand(2)


FUNCTIONS = (_noise_behind_dropout, _two_noises, _noise_in_front)


@pytest.mark.sampled(1)
@pytest.mark.parametrize("function", FUNCTIONS, ids=lambda f: f.__name__)
def test_a_seed_gives_what_it_gives_eager(function):
    inputs, results = torch.randn(3, 1, 2, 9, 8), []
    torch._dynamo.reset()
    compiled = torch.compile(function, backend=onepass_backend, options={"inner": "eager", "executor": "tiled"})
    for one in (function, compiled):
        torch.manual_seed(0)
        results.append(one(*inputs))
    for expected, given in zip(*results, strict=True):
        assert torch.allclose(expected, given, atol=1e-5)


def _two_droppings(a, b, v, training=True):
    drop = lambda q: F.dropout((q @ v.mT).softmax(-1) @ v, 0.1, training=training)
    return drop(a) + drop(b)


def test_results_that_are_dropped_apart_are_regions_apart():
    inputs = torch.randn(3, 1, 2, 9, 8)
    assert len(onepass.explain(_two_droppings, *inputs).regions) == 1  # two alike, in one report
    assert onepass.explain(_two_droppings, *inputs).regions[0].count == 2
    (whole,) = onepass.explain(lambda *given: _two_droppings(*given, training=False), *inputs).regions
    assert whole.count == 1, "in eval they are one kernel's"
    torch._dynamo.reset()
    compiled = torch.compile(_two_droppings, backend=onepass_backend, options={"inner": "eager", "executor": "tiled"})
    results = []
    for one in (_two_droppings, compiled):
        torch.manual_seed(0)
        results.append(one(*inputs))
    assert torch.allclose(*results, atol=1e-5)


def test_what_would_draw_in_another_order_is_left_with_its_reason():
    refused = onepass.explain(_noise_behind_dropout, *torch.randn(3, 1, 2, 9, 8))
    assert [r.kind for r in refused.refusals] == ["random"] and not refused.regions
    assert onepass.explain(_noise_in_front, *torch.randn(3, 1, 2, 9, 8)).regions
