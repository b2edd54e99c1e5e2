"""The entropy's state held the maximum that it waits for itself: a loop more than there are passes."""

import torch

import onepass
from onepass.api.backend import onepass_backend
from tests.variants import heads


def entropy(q, k, v):
    weights = torch.softmax(q @ k.mT, -1)
    return weights @ v, -(weights * weights.log()).sum(-1)


def test_there_are_as_many_loops_as_passes():
    (region,) = onepass.explain(entropy, *heads(2)).regions
    (kernel,) = region.kernels
    assert (len(kernel.loops), region.passes[1]) == (2, 2)


def test_and_both_results_are_right():
    torch.manual_seed(0)
    inputs = heads(2)
    torch._dynamo.reset()
    fast = torch.compile(entropy, backend=onepass_backend, options={"inner": "eager", "executor": "tiled"})
    torch.testing.assert_close(fast(*inputs), entropy(*inputs), rtol=1e-4, atol=1e-5)
