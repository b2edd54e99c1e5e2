"""With symbolic sizes, the head dim is a number also where gradients keep a view such as k.mT in front of the region.

Its last axis is a length, and the head dim was taken for a length, too. All scores were stored then, forward and
backward.
"""

import pytest
import torch

import onepass


def by_transposed_keys(q, k, v):
    return torch.softmax(q @ k.mT / 4, -1) @ v


def by_transposed_values(q, k, v):
    return torch.softmax(q @ k.transpose(-2, -1) / 4, -1) @ v.mT.contiguous().mT


def scaled(q, k, v):
    place = torch.arange(k.shape[-2], device=k.device)
    score = torch.where(place[: q.shape[-2], None] >= place, torch.tanh(q @ k.mT) * 3, -torch.inf)
    return torch.softmax(score, -1) @ v


FUNCTIONS = (by_transposed_keys, by_transposed_values, scaled)


def inputs(length: int) -> list[torch.Tensor]:
    torch.manual_seed(length)
    return [torch.randn(2, 3, length, 16, dtype=torch.float64, requires_grad=True) for _ in range(3)]


def gradients(function, given):
    result = function(*given)
    return torch.autograd.grad(result, given, torch.ones_like(result).cumsum(-2))


@pytest.mark.sampled(1)
@pytest.mark.parametrize("function", FUNCTIONS, ids=lambda f: f.__name__)
def test_no_plan_stores_scores(function):
    torch._dynamo.reset()
    before = len(onepass.reports())
    compiled = torch.compile(function, backend="onepass", dynamic=True, options={"inner": "eager"})
    for length in (40, 56):
        given = inputs(length)
        for found, right in zip(gradients(compiled, given), gradients(function, given), strict=True):
            torch.testing.assert_close(found, right)
    (report,) = onepass.reports()[before:]
    (region,) = report.regions
    assert len(region.kernels) == 1 and "rows i, loops over j" in str(region)
    assert "derived, 3 kernels" in region.backward
