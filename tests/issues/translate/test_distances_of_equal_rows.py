"""torch.cdist of equal rows has the gradient 0, as in torch: a softmax over the distances of rows to themselves, and
codes that are rows. The derivative of the root there made the gradients NaN."""

import pytest
import torch

import onepass


def to_itself(q, v):
    return torch.softmax(-torch.cdist(q, q), -1) @ v


def gradients(program, *inputs):
    leaves = [x.clone().requires_grad_() for x in inputs]
    result = program(*leaves)
    return torch.autograd.grad(result, leaves, torch.ones_like(result))


@pytest.mark.parametrize("rows", [12, 40], ids=["by differences", "by a product"])
def test_gradients_are_those_of_eager(rows):
    generator = torch.Generator().manual_seed(0)
    q = torch.randint(-2, 3, (2, rows, 8), generator=generator).float()
    q[:, 1] = q[:, 0]
    given = q, torch.randn(2, rows, 8, generator=generator)
    torch._dynamo.reset()
    options = {"inner": "eager", "executor": "tiled", "libraries": False, "require": "all"}
    found = gradients(torch.compile(to_itself, backend="onepass", options=options), *given)
    region = onepass.reports()[-1].regions[0]
    assert len(region.data.plan.kernels) == 1 and "derived" in str(onepass.reports()[-1])
    for mine, exact in zip(found, gradients(to_itself, *(x.double() for x in given)), strict=True):
        torch.testing.assert_close(mine.double(), exact, atol=1e-5, rtol=1e-5)
