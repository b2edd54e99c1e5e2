"""zeros(scores.shape) under symbolic sizes: the call of size() reads the scores, which tore their region apart."""

import pytest
import torch

from onepass.api.backend import onepass_backend
from onepass.report import records

pytestmark = pytest.mark.usefixtures("fresh")


def zeros_filled(q, k, v, keep):
    s = q @ k.mT
    added = torch.zeros(s.shape, dtype=s.dtype).masked_fill(~keep[:, None], -1e4)
    return torch.softmax(s + added, -1) @ v


def expanded(q, k, v, keep):
    s = q @ k.mT
    return torch.softmax(s.masked_fill(~keep[:, None].expand(s.size()), -1e4), -1) @ v


def of_a_sum(q, k, v, keep):
    s = q @ torch.cat([k, k], 1).mT
    hidden = torch.cat([~keep, ~keep], 1)[:, None].expand(s.shape)
    return torch.softmax(s.masked_fill(hidden, -1e4), -1) @ torch.cat([v, v], 1)


@pytest.mark.sampled(1)
@pytest.mark.parametrize("function, fused", [(zeros_filled, 1), (expanded, 1), (of_a_sum, None)])
def test_every_length_is_right(function, fused):
    run = torch.compile(function, backend=onepass_backend, dynamic=True, options={"strict": True, "inner": "eager"})
    for rows, columns in ((7, 9), (20, 33)):
        inputs = [torch.randn(3, n, 8) for n in (rows, columns, columns)] + [torch.rand(3, columns) < 0.8]
        torch.testing.assert_close(run(*inputs), function(*inputs), atol=1e-5, rtol=1e-5)
    assert fused is None or sum(region.count for r in records.reports() for region in r.regions) == fused
