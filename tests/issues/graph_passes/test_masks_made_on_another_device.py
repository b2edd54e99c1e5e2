"""A mask made on the CPU and then moved kept attention on a GPU from being fused, as did a scale that stays there.

What is made of numbers alone is the same on every device; anything else that is moved is an input of the region.
"""

import math

import pytest
import torch

import onepass
from onepass.api.backend import onepass_backend


def _attention(q, k, v, change):
    return torch.softmax(change(q @ k.mT / math.sqrt(q.shape[-1])), -1) @ v


def _moved_triangle(q, k, v):
    mask = torch.triu(torch.ones(q.shape[-2], k.shape[-2]), 1).bool().to(q.device)
    return _attention(q, k, v, lambda score: score.masked_fill(mask, -math.inf))


def _moved_places(q, k, v):
    """As in MPNet and Swin v2: distances on the CPU, a function of them as the bias."""
    far = torch.arange(k.shape[-2])[None] - torch.arange(q.shape[-2])[:, None]
    return _attention(q, k, v, lambda score: score - (far.abs().float() * 0.1).to(device=q.device, dtype=q.dtype))


def _moved_bias(q, k, v, bias):
    return _attention(q, k, v, lambda score: score + bias.to(q.device))


def _number(q, k, v, scale):
    return _attention(q, k, v, lambda score: score * scale + scale)


def _number_of_a_number(q, k, v, scale):
    return _attention(q, k, v, lambda score: score / (scale.exp() + 1))


def _looked_up(q, k, v, table, places):
    """As in BEiT: torch takes an index on the CPU into a table on a GPU."""
    return _attention(q, k, v, lambda score: score + table.to(q.device)[places])


def _added_in_place(q, k, v):
    """As in MPNet: numbers, but with a sum in place that no region takes in."""
    far = torch.arange(k.shape[-2])[None] - torch.arange(q.shape[-2])[:, None]
    places = torch.zeros_like(far)
    places += far.abs()
    return _attention(q, k, v, lambda score: score - places.to(q.device).to(q.dtype) * 0.1)


def _looked_up_where_assigned(q, k, v, table):
    """As in BEiT: places that are written one by one on the CPU."""
    places = torch.zeros(q.shape[-2], k.shape[-2], dtype=torch.int64)
    places[1:, 1:] = (torch.arange(k.shape[-2])[None] - torch.arange(q.shape[-2])[:, None]).abs()[1:, 1:]
    places[0, :] = 17
    bias = table.to(q.device)[places.view(-1)].view(q.shape[-2], k.shape[-2])
    return _attention(q, k, v, lambda score: score + bias)


# The shape of a further input on the CPU, if there is one.
FURTHER = {
    _moved_triangle: None,
    _moved_places: None,
    _moved_bias: (9, 11),
    _number: (),
    _number_of_a_number: (),
    _looked_up: (20,),
    _looked_up_where_assigned: (20,),
    _added_in_place: None,
}


def _inputs(function, device):
    torch.manual_seed(0)
    q, k, v = (torch.randn(2, 3, n, 8, device=device) for n in (9, 11, 11))
    further = [] if FURTHER[function] is None else [torch.randn(FURTHER[function])]
    places = [torch.randint(0, 20, (9, 11))] if function is _looked_up else []
    return q, k, v, *further, *places


@pytest.mark.sampled(1)
@pytest.mark.parametrize("function", FURTHER)
def test_it_is_fused(function):
    """The device of meta tensors stands for a GPU: nothing is run."""
    report = onepass.explain(function, *_inputs(function, "meta"))
    (region,) = report.regions
    assert not report.refusals and not report.failures
    assert (region.kernels[0].masks == ("j < i + 1",)) == (function is _moved_triangle)


@pytest.mark.sampled(1)
@pytest.mark.parametrize("function", FURTHER)
def test_it_computes_the_same(function):
    inputs = _inputs(function, "cpu")
    torch._dynamo.reset()
    fused = torch.compile(function, backend=onepass_backend, options={"strict": True, "inner": "eager"})(*inputs)
    torch.testing.assert_close(fused, function(*inputs))
