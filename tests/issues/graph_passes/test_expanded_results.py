"""A result that is expanded over heads had eager's strides of 0, at which neither a plan nor a backward can store it:
the plan failed, and gradients raised."""

import pytest
import torch

from onepass import onepass_backend, reports

SIZES = (2, 3, 9, 8)


def attention(q, k, v):
    return torch.softmax(q @ k.mT / 3, -1) @ v


def expanded(q, k, v):
    return attention(q, k, v).expand(SIZES)


def expanded_before_more(q, k, v):
    return attention(q.squeeze(1), k.squeeze(1), v.squeeze(1)).unsqueeze(1).expand(SIZES) * q


@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize("function", [expanded, expanded_before_more])
def test_every_element_has_a_place(fresh, function, dynamic):
    torch.manual_seed(0)
    batch, _, length, columns = SIZES
    given = [torch.randn(batch, 1, length, columns, requires_grad=True) for _ in range(3)]
    options = {"inner": "eager", "executor": "tiled", "strict": True}
    compiled = torch.compile(function, backend=onepass_backend, options=options, dynamic=dynamic)
    result, grad = compiled(*given), torch.randn(SIZES)
    found = [result.detach(), *torch.autograd.grad(result, given, grad)]
    exact = [x.detach().double().requires_grad_() for x in given]
    right = function(*exact)
    wanted = [right.detach(), *torch.autograd.grad(right, exact, grad.double())]
    for one, other in zip(found, wanted, strict=True):
        torch.testing.assert_close(one, other.float(), rtol=1e-5, atol=1e-5)
    (report,) = reports()
    assert report.regions[0].ran and not result.stride().count(0)
