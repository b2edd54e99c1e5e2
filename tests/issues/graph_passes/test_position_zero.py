"""A position is a number in masks and no length: at position 0 a prompt ran its original calls, which make the scores
whole, as a length of 0 would."""

import pytest
import torch

import onepass
from onepass.api.backend import onepass_backend


def cached(q, keys, values, k, v, position: int):
    n = q.shape[2]
    keys[:, :, position : position + n] = k
    values[:, :, position : position + n] = v
    places = position + torch.arange(n)
    score = (q @ keys.mT / 4).masked_fill(torch.arange(keys.shape[2]) > places[:, None], -torch.inf)
    return torch.softmax(score, -1) @ values


def sliced(q, keys, values, k, v, position: int):
    """The length of what is kept is 0 at first: a length."""
    keys = torch.cat([keys[:, :, :position], k], 2)
    values = torch.cat([values[:, :, :position], v], 2)
    return torch.softmax(q @ keys.mT / 4, -1) @ values


def by_quotient(q, keys, values, k, v, position: int):
    """Divided by a number that must not be 0."""
    places = torch.arange(k.shape[2])
    return torch.softmax(q @ k.mT / 4 + (places // (position + 1)), -1) @ v


@pytest.mark.slow
@pytest.mark.parametrize("dynamic", [True, None])
@pytest.mark.parametrize("function", [cached, sliced, by_quotient])
def test_every_position(function, dynamic, fresh):
    torch._dynamo.reset()
    options = {"inner": "eager", "executor": "tiled", "libraries": False, "strict": True}
    run = torch.compile(function, backend=onepass_backend, options=options, dynamic=dynamic)
    found = [torch.zeros(1, 2, 64, 16) for _ in range(4)]
    for position, n in ((0, 20), (20, 1), (21, 1), (0, 24), (24, 3)):
        torch.manual_seed(position)
        q, k, v = torch.randn(3, 1, 2, n, 16).unbind(0)
        mine, eager = run(q, *found[:2], k, v, position), function(q, *found[2:], k, v, position)
        torch.testing.assert_close(mine, eager)
    regions = [region for report in onepass.reports() for region in report.regions]
    assert regions
    if function is cached:
        assert all(region.ran == "tiled" for region in regions) and not any("negative" in str(r.notes) for r in regions)
