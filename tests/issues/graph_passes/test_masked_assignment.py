"""scores[mask] = number, the oldest way to hide keys, was refused as a change in place."""

import pytest
import torch

from onepass.api.backend import onepass_backend
from onepass.report import records

pytestmark = pytest.mark.usefixtures("fresh")


def hidden(q, k, v, keep):
    s = q @ k.mT
    s[~keep] = -torch.inf
    return torch.softmax(s, -1) @ v


def zeroed_weights(q, k, v, keep):
    p = torch.softmax(q @ k.mT, -1)
    p[keep.logical_not()] = 0.0
    return p @ v, p


def seen_before(q, k, v, keep):
    s = q @ k.mT
    view = s.transpose(1, 2)
    s[keep] = -1e4
    return torch.softmax(s, -1) @ v, view


def some_columns(q, k, v, keep):
    s = q @ k.mT
    s[:, :, keep[0, 0]] = -1e4
    return torch.softmax(s, -1) @ v


@pytest.mark.parametrize("function, fused", [(hidden, 1), (zeroed_weights, 1), (seen_before, 0), (some_columns, 1)])
def test_what_is_assigned_is_right(function, fused):
    inputs = [torch.randn(2, 9, 8) for _ in range(3)] + [torch.rand(2, 9, 9) < 0.7]
    inputs[3][:, :, 0] = True
    run = torch.compile(function, backend=onepass_backend, options={"strict": True, "inner": "eager"})
    torch.testing.assert_close(run(*inputs), function(*inputs), atol=1e-5, rtol=1e-5)
    assert sum(region.count for r in records.reports() for region in r.regions) == fused
