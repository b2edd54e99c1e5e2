"""full(least) * (j > p) and (1 - kept) * -1e9 hid from the search what is kept: no tile was skipped, no limit found."""

import math

import pytest
import torch

import onepass
from onepass.api.backend import onepass_backend

LEAST = torch.finfo(torch.float32).min


def _attention(q, k, v, bias):
    return torch.softmax(q @ k.mT / math.sqrt(q.shape[-1]) + bias, -1) @ v


def _places(q, k):
    return torch.arange(q.shape[2])[:, None], torch.arange(k.shape[2])


def _as_a_static_cache(q, k, v, place):
    bias = torch.full((q.shape[2], k.shape[2]), LEAST)
    bias = bias * (torch.arange(k.shape[2]) > place.reshape(-1, 1))
    return _attention(q, k, v, bias)


def _as_older_decoders(q, k, v, place):
    """In place, and then cut."""
    bias = torch.triu(torch.full((q.shape[2], k.shape[2]), LEAST), diagonal=1)
    bias *= torch.arange(k.shape[2]) > place + torch.arange(q.shape[2]).reshape(-1, 1)
    return _attention(q, k, v, bias[None, None].expand(q.shape[0], 1, -1, -1)[:, :, :, : k.shape[2]])


def _filled_in_place(q, k, v):
    i, j = _places(q, k)
    bias = torch.zeros(q.shape[2], k.shape[2])
    bias.masked_fill_(j > i, LEAST)
    bias[:, 8:] = LEAST
    return _attention(q, k, v, bias)


def _causal(q, k, v):
    i, j = _places(q, k)
    return _attention(q, k, v, (1.0 - (j <= i).float()) * LEAST)


def _causal_by_bool(q, k, v):
    i, j = _places(q, k)
    return _attention(q, k, v, (j > i) * LEAST)


def _given(q, k, v, kept):
    return _attention(q, k, v, ((1 - kept.to(q.dtype)) * LEAST)[:, None, None])


def _weighed(q, k, v, kept):
    """Not of numbers alone: a product with the scores."""
    return torch.softmax((q @ k.mT) * (kept.float() + 0.5)[:, None, None], -1) @ v


PLACE, KEPT = [torch.tensor([6])], [torch.rand(2, 11) > 0.3]
CASES = {
    _as_a_static_cache: (PLACE, "j < where(place[0] ≤ -1, 11, place[0] + 1)"),
    _as_older_decoders: (PLACE, None),
    _filled_in_place: ([], "j < 8, i + 1"),
    _causal: ([], "j < i + 1"),
    _causal_by_bool: ([], "j < i + 1"),
    _given: (KEPT, "all j, tested, or by a block map of what the mask's tensors hold"),
    _weighed: (KEPT, None),
}


def _inputs(function):
    torch.manual_seed(0)
    return [*(torch.randn(2, 3, n, 8) for n in (9, 11, 11)), *CASES[function][0]]


@pytest.mark.sampled(1)
@pytest.mark.parametrize("function", CASES)
def test_it_is_a_mask(function):
    (region,) = onepass.explain(function, *_inputs(function)).regions
    assert region.kernels[0].masks == ((CASES[function][1],) if CASES[function][1] else ())


@pytest.mark.sampled(1)
@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize("function", CASES)
def test_it_computes_the_same(function, dynamic):
    torch._dynamo.reset()
    options = {"inner": "eager", "strict": True}
    fused = torch.compile(function, backend=onepass_backend, options=options, dynamic=dynamic)
    torch.testing.assert_close(fused(*_inputs(function)), function(*_inputs(function)))
