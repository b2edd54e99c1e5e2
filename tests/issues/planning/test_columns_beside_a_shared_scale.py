"""A kernel with a sink ran once per column of the values: the scale that it named was that of the weighted state.

The scale of a state is that of every state with the same gauge, and depends on no dim of the values.
"""

import torch

import onepass
from onepass.api.backend import onepass_backend


def attend(q, k, v, sinks):
    scores, sink = q @ k.mT, sinks[:, None, None]
    top = torch.maximum(scores.amax(-1, keepdim=True), sink)
    weights = torch.exp(scores - top)
    return weights / (weights.sum(-1, keepdim=True) + torch.exp(sink - top)) @ v


def inputs():
    return [*(torch.randn(1, 2, 40, 16) for _ in range(3)), torch.randn(2)]


def test_columns_are_held_by_one_kernel():
    (kernel,) = onepass.explain(attend, *inputs()).kernels
    assert (kernel.grid, kernel.rows, kernel.loops) == (("b", "h"), "i", ("j",))


def test_it_is_right():
    given = inputs()
    run = torch.compile(attend, backend=onepass_backend, options={"strict": True, "inner": "eager"})
    torch.testing.assert_close(run(*given), attend(*given), rtol=1e-5, atol=1e-5)
