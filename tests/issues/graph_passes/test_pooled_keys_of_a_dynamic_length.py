"""Keys pooled along their length, channels first, had a last axis of s // 2 that was taken for a width: a guard on it,
and one compilation for every length."""

import pytest
import torch
import torch.nn.functional as F

from onepass.api.backend import onepass_backend

POOLED = {
    "pooled": lambda x: F.avg_pool1d(x.mT, 2).mT,
    "interpolated": lambda x: F.interpolate(x.mT, scale_factor=2).mT,
    "padded": lambda x: F.pad(x.mT, (2, 2), mode="reflect").mT,
}


def _calls(function, shapes, fused=True):
    """(how often it was compiled, the largest difference from eager)"""
    compiled, differences = [], []

    def backend(graph, example_inputs):
        compiled.append(graph)
        if not fused:
            return graph
        options = {"inner": "eager", "executor": "tiled", "libraries": False, "strict": True}
        return onepass_backend(graph, example_inputs, options=options)

    torch._dynamo.reset()
    run = torch.compile(function, backend=backend, dynamic=True)
    for shape in shapes:
        torch.manual_seed(0)
        inputs = torch.randn(3, *shape).unbind(0)
        differences.append((run(*inputs) - function(*inputs)).abs().max().item())
    return len(compiled), max(differences)


def _attention(of_keys):
    return lambda q, k, v: torch.softmax(q @ of_keys(k).mT, -1) @ of_keys(v)


@pytest.mark.sampled(1)
@pytest.mark.parametrize("name", POOLED)
def test_one_compilation_serves_every_length(name):
    """One, or as many as torch needs by itself: to torch 2.11's pooling an odd length is another program."""
    function, shapes = _attention(POOLED[name]), [(2, n, 16) for n in (8, 12, 20, 31)]
    count, difference = _calls(function, shapes)
    assert count == _calls(function, shapes, fused=False)[0] <= 2 and difference < 1e-5


def test_a_width_has_a_guard_still():
    count, difference = _calls(_attention(lambda x: x), [(2, 8, 32), (2, 12, 32), (2, 12, 48)])
    assert count == 2 and difference < 1e-5
