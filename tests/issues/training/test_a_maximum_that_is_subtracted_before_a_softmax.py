"""Sinks that are spelled as in GPT-OSS had no derived gradients: a maximum was left, or an exponential could overflow.

The program subtracts the largest score of a row, and then softmax subtracts the largest of what is left. Now the two
shifts are one before anything is differentiated. Found by `bench/models.py --train`.
"""

import pytest
import torch

import onepass
from onepass.compiler import compiled_region
from onepass.compiler.options import Options
from onepass.graph.trace import program_of
from onepass.training.plans import training

pytestmark = pytest.mark.usefixtures("fresh")

LENGTH = 70


def softmax_of_shifted(q, k, v):
    s = q @ k.mT / 4
    return torch.softmax(s - s.max(-1, keepdim=True).values, -1) @ v


def sinks_of_shifted(q, k, v, sinks):
    n = q.shape[-2]
    hidden = torch.ones(n, n, dtype=torch.bool, device=q.device).triu(1)
    s = (q @ k.mT / 4).masked_fill(hidden, torch.finfo(q.dtype).min)
    both = torch.cat([s, sinks.reshape(1, -1, 1, 1).expand(q.shape[0], -1, n, 1)], -1)
    both = both - both.max(-1, keepdim=True).values
    return torch.softmax(both, -1, dtype=both.dtype)[..., :-1] @ v


def inputs(function, dtype=torch.float32, scale=1.0):
    sinks = [scale * torch.randn(2)] if function is sinks_of_shifted else []
    found = [scale * torch.randn(1, 2, LENGTH, 16), *(torch.randn(1, 2, LENGTH, 16) for _ in range(2)), *sinks]
    return [x.to(dtype) for x in found]


@pytest.mark.sampled(1)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("function", [softmax_of_shifted, sinks_of_shifted])
def test_gradients_are_derived(function, dtype):
    given = inputs(function, dtype)
    text = compiled_region.make(program_of(function, *given), Options()).text
    found = training(text, [True] * len(given))
    assert found.forward is not None and found.backward is not None


@pytest.mark.sampled(1)
@pytest.mark.parametrize("scale", [1.0, 60.0], ids=["plain", "scores of hundreds"])
@pytest.mark.parametrize("function", [softmax_of_shifted, sinks_of_shifted])
def test_gradients_are_right(function, scale):
    torch.manual_seed(0)
    given = [x.requires_grad_() for x in inputs(function, scale=scale)]
    options = {"inner": "eager", "strict": True, "libraries": False}
    result = torch.compile(function, backend="onepass", options=options)(*given)
    cotangent = torch.randn_like(result)
    found = torch.autograd.grad(result, given, cotangent)
    exact = [x.detach().double().requires_grad_() for x in given]
    right = torch.autograd.grad(function(*exact), exact, cotangent.double())
    for x, y in zip(found, right, strict=True):
        torch.testing.assert_close(x.double(), y, atol=2e-4 * scale, rtol=1e-3)
    assert onepass.reports()[-1].regions[0].backward.startswith("derived")
    assert onepass.reports()[-1].regions[0].backward_ran
