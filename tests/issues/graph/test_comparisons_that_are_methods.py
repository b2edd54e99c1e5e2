"""torch 2.11 traces `x == 0` as a call of the method `__eq__`, and every object has a method of that name.

The namespace of ATen has one, too. It was taken for an operator, and the whole graph was left as written.
"""

import math

import pytest
import torch
from torch import fx

import onepass
from onepass.api.backend import onepass_backend
from onepass.graph.op_kinds import is_random


@pytest.mark.parametrize("name", ["__eq__", "__ne__", "__lt__", "__repr__", "__and__", "softmax"])
def test_no_comparison_is_random(name):
    graph = fx.Graph()
    assert not is_random(graph.call_method(name, (graph.placeholder("x"), 0)))


def test_what_draws_is_random():
    graph = fx.Graph()
    assert is_random(graph.call_method("bernoulli", (graph.placeholder("x"),)))


@pytest.mark.usefixtures("fresh")
def test_attention_beside_a_comparison_is_fused():
    def attention(q, k, v):
        scores = q @ k.mT
        total = scores.logsumexp(-1, keepdim=True)
        return torch.where(total == -math.inf, 0.0, scores.softmax(-1) @ v)

    torch.manual_seed(0)
    given = [torch.randn(2, n, 8, dtype=torch.float64) for n in (5, 30, 30)]
    compiled = torch.compile(attention, backend=onepass_backend, options={"inner": "eager"})
    torch.testing.assert_close(compiled(*given), attention(*given))
    assert len(onepass.reports()[-1].regions) == 1
