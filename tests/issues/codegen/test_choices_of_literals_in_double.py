"""In float64, Triton kernels took a literal of a choice for float32: weights of where(s > 0, 0.1, -0.1) were 3e-9 off.

A literal beside a tile has the tile's dtype, but not in a choice.
"""

import os

import pytest
import torch

from onepass.api.backend import onepass_backend

pytestmark = [
    pytest.mark.usefixtures("fresh"),
    pytest.mark.skipif(os.environ.get("TRITON_INTERPRET") != "1", reason="needs Triton's interpreter"),
]


def both(q, k, v):
    return torch.softmax(torch.where(q @ k.mT > 0, q.new_full((), 0.1), q.new_full((), -0.1)), -1) @ v


def one(q, k, v):
    scores = q @ k.mT
    return torch.softmax(torch.where(scores > 0, scores, 0.1), -1) @ v


def filled(q, k, v):
    scores = q @ k.mT
    return torch.softmax(scores.masked_fill(scores < -0.3, 0.3), -1) @ v


def signs(q, k, v):
    return torch.softmax((q @ k.mT).sign(), -1) @ v


@pytest.mark.parametrize("function", [both, one, filled, signs])
def test_weights_have_the_digits_of_float64(function):
    torch.manual_seed(0)
    inputs = [torch.randn(1, 2, 40, 16, dtype=torch.float64) for _ in range(3)]
    options = {"inner": "eager", "strict": True, "executor": "triton"}
    result = torch.compile(function, backend=onepass_backend, options=options)(*inputs)
    torch.testing.assert_close(result, function(*inputs), atol=1e-14, rtol=1e-13)
