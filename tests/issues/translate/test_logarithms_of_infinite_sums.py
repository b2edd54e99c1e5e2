"""The logarithm of a sum with a score of ∞ is ∞, and was NaN: weights exp(s - logsumexp(s)) were NaN for a whole row.

Eager's are 0 where the score is finite. Found by random programs: scores of float16 beyond its end are ∞.
"""

import math

import pytest
import torch

import onepass
from onepass.api.backend import onepass_backend

pytestmark = pytest.mark.usefixtures("fresh")


def weights(q, k, v, bias):
    s = q @ k.mT + bias
    total = s.logsumexp(-1, keepdim=True)
    p = torch.exp(s - total)
    return p @ v, p.mean(1), total


def inputs():
    """Of the first row one score is ∞, of the second all are -∞, of the third one is NaN."""
    torch.manual_seed(0)
    bias = torch.zeros(5, 30)
    bias[0, 3], bias[1], bias[2, 7] = math.inf, -math.inf, math.nan
    return *(torch.randn(2, n, 8) for n in (5, 30, 30)), bias


def test_what_is_captured():
    (region,) = onepass.explain(weights, *inputs()).regions
    assert "= ∞, ∞, " in region.captured


@pytest.mark.sampled(1)
@pytest.mark.parametrize("executor", ["tiled", "triton"])
def test_infinite_rows_are_as_eager_has_them(executor):
    options = {"inner": "eager", "strict": True, "executor": executor, "libraries": False}
    found = torch.compile(weights, backend=onepass_backend, options=options)(*inputs())
    for mine, right in zip(found, weights(*inputs()), strict=True):
        torch.testing.assert_close(mine, right, equal_nan=True)
