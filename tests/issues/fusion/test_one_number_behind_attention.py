"""A sum of all results, which has no axes, made the search for what follows a region fail: it stayed as written."""

import pytest
import torch

from onepass.api.backend import onepass_backend
from onepass.report import records

pytestmark = pytest.mark.usefixtures("fresh")


def energy(q, k, v):
    o = torch.softmax(q @ k.mT, -1) @ v
    return (o * o).sum()


def test_the_region_in_front_is_fused_and_right():
    inputs = [torch.randn(2, 20, 8) for _ in range(3)]
    run = torch.compile(energy, backend=onepass_backend, options={"strict": True, "inner": "eager"})
    torch.testing.assert_close(run(*inputs), energy(*inputs))
    assert records.reports()[-1].regions
