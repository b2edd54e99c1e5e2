"""A table of relative positions in scores of which a log-sum-exp is read: a plan was tried whose tiles have one of the
dims along whose diagonals the table's gradient is summed. The error ended the region, and the report had a failure."""

import pytest
import torch

import onepass
from onepass.graph import reduced_products


def biased(x, w, table):
    place = torch.arange(len(x))[:, None] - torch.arange(len(w)) + len(w) - 1
    return ((x @ w.T).float() + table[place]).logsumexp(-1)


@pytest.mark.parametrize("hostile", [0.0, -torch.inf])
def test_gradients_of_the_table(hostile, monkeypatch):
    monkeypatch.setattr(reduced_products, "LEAST_ELEMENTS", 1)
    torch.manual_seed(0)
    torch._dynamo.reset()
    x, w = (torch.randn(384, 1152).bfloat16() / 6 for _ in range(2))
    table = torch.randn(767)
    table[400] += hostile
    given = [t.requires_grad_() for t in (x, w, table)]
    options = {"inner": "eager", "executor": "tiled", "libraries": False, "require": "all"}
    result = torch.compile(biased, backend="onepass", options=options, dynamic=False)(*given)
    assert onepass.reports()[-1].fused == 1 and not onepass.reports()[-1].failures
    found = torch.autograd.grad(result.sum(), given)
    exact = [t.detach().double().requires_grad_() for t in given]
    wanted = torch.autograd.grad((exact[0] @ exact[1].T + exact[2][places()]).logsumexp(-1).sum(), exact)
    for one, other in zip(found, wanted, strict=True):
        assert (one.double() - other).norm() <= 8e-3 * other.norm()


def places():
    return torch.arange(384)[:, None] - torch.arange(384) + 383
