"""Weights that are masked after their softmax had no derived gradients: by `nan_to_num`, by a factor of 0 and 1, or
normalised again. An exponent L - m was not known to be bounded, where L is the logarithm of the forward's sum and m its
shift, and an exponential did not meet its divisor across another one.
"""

import math

import pytest
import torch

from onepass import onepass_backend, reports

OPTIONS = {"inner": "eager", "executor": "tiled", "libraries": False, "strict": True}


def no_row_is_nan(s, keep, v):
    return s.masked_fill(~keep, -math.inf).softmax(-1).nan_to_num(0.0) @ v


def nearly_all(keep):
    return keep | torch.eye(*keep.shape[-2:], dtype=torch.bool, device=keep.device)  # no row is hidden


def exponentials_times_truth(s, keep, v):
    e = (s - s.amax(-1, keepdim=True)).exp() * nearly_all(keep)
    return e @ v / e.sum(-1, keepdim=True)


def truth_times_exponentials(s, keep, v):
    e = nearly_all(keep).to(s.dtype) * torch.exp(s - s.amax(-1, keepdim=True))
    return e / e.sum(-1, keepdim=True) @ v


def normalised_again(s, keep, v):
    p = s.softmax(-1) * keep
    return p / (p.sum(-1, keepdim=True) + 1e-6) @ v


def normalised_again_by_parts(s, keep, v):
    p = s.softmax(-1) * torch.sigmoid(keep.to(s.dtype) - s.shape[-1] / 40)
    return p / p.sum(-1, keepdim=True) @ v


PROGRAMS = [no_row_is_nan, exponentials_times_truth, truth_times_exponentials, normalised_again]
PROGRAMS += [normalised_again_by_parts]


def compared(weigh, scale, dtype):
    """Result and gradients of a compiled attention, and of the same in float64; some rows keep nothing, some all."""

    def attend(q, k, v, keep):
        return weigh(q @ k.mT * scale / 4, keep, v)

    torch.manual_seed(0)
    torch._dynamo.reset()
    given = [torch.randn(2, 2, 40, 16, dtype=dtype).requires_grad_() for _ in range(3)]
    exact = [x.detach().double().requires_grad_() for x in given]
    keep = torch.rand(2, 1, 40, 40) > 0.4
    keep[:, :, 3], keep[:, :, 5] = False, True
    compiled = torch.compile(attend, backend=onepass_backend, options=OPTIONS)
    for function, tensors in ((compiled, given), (attend, exact)):
        result = function(*tensors, keep)
        cotangent = torch.linspace(-1, 1, result.numel(), dtype=result.dtype).view_as(result)
        yield result, *torch.autograd.grad(result, tensors, cotangent)


@pytest.mark.parametrize("weigh", PROGRAMS, ids=lambda f: f.__name__)
@pytest.mark.parametrize("scale, dtype, close", [(1, "float64", 1e-9), (20, "float64", 1e-8), (1, "float32", 1e-5)])
def test_their_gradients_are_derived(weigh, scale, dtype, close):
    found, exact = compared(weigh, scale, getattr(torch, dtype))
    (region,) = reports()[-1].regions
    assert region.backward.startswith("derived"), region.backward
    for one, other in zip(found, exact, strict=True):
        assert torch.isfinite(other).all() and other.count_nonzero() > 100
        assert (one.double() - other).abs().max() <= close * max(1, other.abs().max())
