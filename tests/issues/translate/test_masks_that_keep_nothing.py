"""With one row and one column, a mask below the diagonal keeps nothing: the gradient of the values was NaN, not 0."""

import pytest
import torch

from onepass.api.backend import onepass_backend
from onepass.report import records

pytestmark = pytest.mark.usefixtures("fresh")


def below_the_diagonal(q, k, v):
    s = q @ k.mT
    i, j = torch.arange(s.shape[-2])[:, None], torch.arange(s.shape[-1])
    keep = j < i
    weights = torch.softmax(s.masked_fill(~keep, -torch.inf), -1)
    return torch.where(keep.any(-1, keepdim=True), weights, 0.0) @ v


@pytest.mark.sampled(1)
@pytest.mark.parametrize("length", [1, 2, 9])
def test_gradients_are_eagers(length):
    torch.manual_seed(0)
    given = [torch.randn(2, length, 8, requires_grad=True) for _ in range(3)]
    run = torch.compile(below_the_diagonal, backend=onepass_backend, dynamic=False, options={"inner": "eager"})
    result, right = run(*given), below_the_diagonal(*given)
    torch.testing.assert_close(result, right)
    for mine, own in zip(*(torch.autograd.grad(x.sum(), given) for x in (result, right)), strict=True):
        torch.testing.assert_close(mine, own)
    reasons = [refusal.reason for refusal in records.reports()[-1].refusals]
    assert reasons == (["at these sizes the mask keeps no score at all"] if length == 1 else [])
