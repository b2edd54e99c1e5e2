"""A result that was a view inside of the recorded call could not be changed in place where gradients are wanted."""

import pytest
import torch

from onepass.api.backend import onepass_backend


def _attention(q, k, v):
    return torch.softmax(q @ k.mT, -1) @ v


def copied_before(q, k, v):
    result = _attention(q, k, v)
    copy = result.transpose(1, 2).contiguous()
    result += 1
    return copy, result


def through_a_view(q, k, v):
    result = _attention(q, k, v)
    moved = result.transpose(1, 2)
    again = moved.transpose(0, 1)
    again += 1
    return again, moved


@pytest.mark.sampled(1)
@pytest.mark.parametrize("function", [copied_before, through_a_view])
def test_values_and_gradients_are_eagers(function):
    torch.manual_seed(0)
    torch._dynamo.reset()
    mine = [torch.randn(2, 3, n, 8, requires_grad=True) for n in (9, 11, 11)]
    eager = [x.detach().clone().requires_grad_() for x in mine]
    found = torch.compile(function, backend=onepass_backend, options={"inner": "eager", "strict": True})(*mine)
    exact = function(*eager)
    for one, other in zip(found, exact, strict=True):
        torch.testing.assert_close(one, other)
    sum((x * x).sum() for x in found).backward()
    sum((x * x).sum() for x in exact).backward()
    for one, other in zip(mine, eager, strict=True):
        torch.testing.assert_close(one.grad, other.grad, atol=2e-4, rtol=2e-3)
