"""Weights of scores that may be any number: one multiply-add each where only ratios leave, differences where not.

The text needs no GPU; the values do. What is computed is mirrored in float32 here, to say where it is exact.
"""

import math

import numpy as np
import pytest
import torch

from onepass.compiler.optimize import optimize_all
from onepass.graph.trace import program_of
from onepass.lowering.gluon.launch import GluonLauncher
from onepass.lowering.launch.triton_compat import gluon_missing
from onepass.translate.translate import translate
from tests.support.gluon_ahead_of_time import source_of

LEAST = torch.finfo(torch.bfloat16).min


def biased(q, k, v, bias):
    return torch.softmax(q @ k.mT / 8 + bias, -1) @ v


def both(q, k, v, bias):
    scores = (q @ k.mT / 8).float() + bias
    return torch.softmax(scores, -1).to(q.dtype) @ v, torch.logsumexp(scores, -1)


def inputs(device="cpu"):
    torch.manual_seed(0)
    q, k, v, bias = (torch.randn(2, 3, 256, 64 if n < 3 else 256, dtype=torch.bfloat16) for n in range(4))
    bias[0, 0, :128], bias[0, 0, 128:] = LEAST, -1e9  # rows of nothing but fills
    bias[0, 1, :, 100:], bias[0, 1, 5], bias[0, 1, 6], bias[0, 1, 7, 3:] = LEAST, LEAST, -math.inf, -1e30
    bias[0, 2] *= 2e4
    bias[1, 0] *= 1e8
    bias[1, 1, :, 64:], bias[1, 1, :64, :64] = -1e30, 1e9  # the first tiles' scale is far below the last one's
    bias[1, 2, :, ::2], bias[1, 2, 9], bias[1, 2, 9, 200:] = -1.35e8, -1.3e8, -1.36e8
    return [x.to(device) for x in (q, k, v, bias)]


def planned(function, tensors):
    return optimize_all(translate(program_of(function, *tensors)).results).plan


@pytest.mark.sampled(1)
@pytest.mark.parametrize("function,near", [(biased, True), (both, False)])
def test_scales_that_leave_are_kept_exact(function, near):
    text = source_of(planned(function, inputs()))[2].text
    assert ("unit_of(shift" in text) == near and ("widened(" in text.split("def consumer")[1])


def unit_of(scale):
    return np.where(np.abs(scale) > np.float32(2**27), np.float32(1), np.float32(1.4426950408889634))


@pytest.mark.parametrize("size", [1.0, 3e2, 1e5, 1e7, 1.3e8, 1.4e8, 1e10, 2e38])
def test_ratios_of_weights_are_those_of_differences(size):
    """In float32, with the product inside a multiply-add exact as it is there."""
    scale = np.float32(-size)
    scores = np.array([scale, np.nextafter(scale, np.float32(-np.inf)), scale - abs(scale) / np.float32(8)], np.float32)
    unit = unit_of(scale)
    below = np.float64(np.float32(scale * unit))
    weights = np.exp2(scores.astype(np.float64) * np.float64(unit) - below)
    wanted = np.exp(scores.astype(np.float64) - np.float64(scale))
    assert weights[0] <= 2.0**8
    np.testing.assert_allclose(weights / weights[0], wanted, rtol=1e-6, atol=2.0**-16)


@pytest.mark.skipif(gluon_missing() is not None or not torch.cuda.is_available(), reason="needs a Hopper GPU")
def test_fills_and_large_scores_weigh_what_they_should():
    tensors = inputs("cuda")
    plan = planned(biased, inputs())
    launcher = GluonLauncher(plan)
    values = dict(zip("qkv", tensors[:3], strict=True)) | {"bias": tensors[3]}
    (found,) = launcher.results(values)
    exact = biased(*(x.float() for x in tensors))
    assert not launcher.refusals and torch.equal(found.isnan(), exact.isnan())
    torch.testing.assert_close(found.float(), exact, atol=3e-2, rtol=2e-2, equal_nan=True)
