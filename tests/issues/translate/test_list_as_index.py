"""x[..., [-1], :] takes an axis of one element: the list is a tensor that the trace keeps, which was refused."""

import pytest
import torch

import onepass
from onepass.api.backend import onepass_backend


def last(q, heads, v):
    return torch.softmax(q @ heads[:, [-1]].mT, -1) @ v


def two(q, heads, v):
    return torch.softmax(q @ heads[:, [0, 2]].sum(1, keepdim=True).mT, -1) @ v


@pytest.mark.parametrize("attend", [last, two])
def test_it_is_right(attend):
    inputs = [torch.randn(2, 3, 19, 8) for _ in range(3)]
    run = torch.compile(attend, backend=onepass_backend, options={"inner": "eager"})
    torch.testing.assert_close(run(*inputs), attend(*inputs), rtol=1e-5, atol=1e-5)


def test_equal_elements_are_a_number():
    (region,) = onepass.explain(last, *[torch.randn(2, 3, 19, 8) for _ in range(3)]).regions
    assert "heads[b, 2, " in region.captured
