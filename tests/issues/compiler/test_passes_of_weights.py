"""Weights that are a result too were said to take one pass: they wait for the sum, and then read all keys again.

Weights of no sum of their own (sigmoid's) need no other pass: they wait for nothing.
"""

import pytest
import torch
from torch.nn import functional

import onepass
from onepass.api.backend import onepass_backend

pytestmark = pytest.mark.usefixtures("fresh")


def softmax_weights(q, k, v):
    weights = torch.softmax(q @ k.mT, -1)
    return weights @ v, weights


def relu_weights(q, k, v):
    weights = functional.relu(q @ k.mT)
    weights = weights / (weights.sum(-1, keepdim=True) + 1e-6)
    return weights @ v, weights


def linear_weights(q, k, v):
    scores = functional.relu(q) @ functional.relu(k).mT
    weights = scores / (scores.sum(-1, keepdim=True) + 1e-6)
    return weights @ v, weights


def scores_beside(q, k, v):
    scores = q @ k.mT
    return scores.softmax(-1) @ v, scores


def sigmoid_weights(q, k, v):
    weights = torch.sigmoid(q @ k.mT)
    return weights @ v, weights


PASSES = {softmax_weights: (3, 2), relu_weights: (2, 2), linear_weights: (2, 2)}
PASSES |= {scores_beside: (3, 1), sigmoid_weights: (1, 1)}


@pytest.mark.sampled(1)
@pytest.mark.parametrize("function", PASSES)
def test_a_row_of_weights_is_another_pass(function):
    report = onepass.explain(function, *(torch.randn(2, 600, 16) for _ in range(3)))
    assert report.passes == PASSES[function]
    assert ("in 1 loop and a kernel without one" in str(report)) == (report.passes[1] == 2)


@pytest.mark.sampled(1)
@pytest.mark.parametrize("function", PASSES)
def test_weights_and_sums_are_right(function):
    inputs = [torch.randn(2, n, 16) for n in (40, 300, 300)]
    run = torch.compile(function, backend=onepass_backend, options={"strict": True, "inner": "eager"})
    exact = function(*(x.double() for x in inputs))
    torch.testing.assert_close(run(*inputs), exact, check_dtype=False, atol=2e-5, rtol=1e-4)
