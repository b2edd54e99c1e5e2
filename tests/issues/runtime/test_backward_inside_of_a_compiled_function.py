"""A compiled function that calls `backward` breaks there, and Dynamo watches what its frame calls.

It used to trace the runtime of onepass itself: 17 graphs, warnings of torch, and seconds for the first call.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor
from torch._dynamo.utils import counters

OPTIONS = {"executor": "tiled", "libraries": False, "inner": "eager"}


def _attention(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return (q @ k.mT).softmax(-1) @ v


def _by_backward(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    _attention(q, k, v).sin().sum().backward()
    return q.grad


def _by_grad(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return torch.autograd.grad(_attention(q, k, v).sin().sum(), q)[0]


@pytest.mark.parametrize("step", [_by_backward, _by_grad])
def test_dynamo_traces_nothing_of_the_runtime(step: Callable[..., Tensor]) -> None:
    inputs = [torch.randn(2, 5, 4, dtype=torch.float64, requires_grad=True) for _ in range(3)]
    expected = step(*inputs).clone()
    for x in inputs:
        x.grad = None
    torch._dynamo.reset()
    counters.clear()
    found = torch.compile(step, backend="onepass", options=OPTIONS)(*inputs)
    torch.testing.assert_close(found, expected, rtol=1e-12, atol=1e-12)
    assert counters["stats"]["unique_graphs"] <= 2  # what stands in front of the break, and what follows it
