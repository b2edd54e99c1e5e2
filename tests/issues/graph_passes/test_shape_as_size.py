"""torch.ones(s.shape[-2:]) with symbolic sizes gives a region two sizes in one input: its names did not match."""

import math

import torch

import onepass
from onepass.api.backend import onepass_backend


def attend(q, k, v):
    scores = q @ k.mT * 0.3
    hidden = torch.ones(scores.shape[-2:], dtype=torch.bool).triu(1)
    return torch.softmax(scores.masked_fill(hidden, -math.inf), -1) @ v


def test_one_compilation_is_fused_and_right_at_every_length():
    calls = []

    def backend(graph, inputs):
        calls.append(graph)
        return onepass_backend(graph, inputs, options={"inner": "eager", "strict": True})

    run = torch.compile(attend, backend=backend, dynamic=True)
    for length in (15, 7, 33):
        inputs = [torch.randn(2, 3, length, 8) for _ in range(3)]
        torch.testing.assert_close(run(*inputs), attend(*inputs), rtol=1e-5, atol=1e-5)
    assert len(calls) == 1
    assert onepass.reports()[-1].passes == (3, 1)
