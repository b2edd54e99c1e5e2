"""Refusals named a way out that did not help: of an unknown operation inside of a cycle, and of complex scores.

The first one said only that a value is used outside, the second one that `getattr` has no kernel.
"""

import pytest
import torch

import onepass

pytestmark = pytest.mark.usefixtures("fresh")


def signed(q, k, v):
    scores = q @ k.mT / 4
    weights = scores.abs() * torch.digamma(scores)
    return weights @ v / (weights.abs().sum(-1, keepdim=True) + 1)


def running(q, k, v):
    scores = q @ k.mT
    return (scores.sigmoid() * torch.cumsum(scores, -1)) @ v


def complex_scores(q, k, v):
    return torch.softmax((torch.complex(q, k) @ torch.complex(k, q).mH).real, -1) @ v


def refusals(function):
    return onepass.explain(function, *(torch.randn(1, 2, 16, 16) for _ in range(3))).refusals


@pytest.mark.parametrize("function, name", [(signed, "digamma"), (running, "cumsum")])
def test_an_operation_without_a_kernel_is_named_as_the_cause(function, name):
    (refused,) = refusals(function)
    assert refused.reason.startswith(name) and "no kernel is derived" in refused.reason


def by_sign(q, k, v):
    scores = q @ k.mT / 4
    weights = scores.abs() * scores.sign()
    return weights @ v / (weights.abs().sum(-1, keepdim=True) + 1)


@pytest.mark.parametrize("executor", ["tiled", "triton"])
def test_signs_are_fused(executor):
    """The sign of NaN is 0, and so is the sign's derivative."""
    torch.manual_seed(0)
    inputs = [torch.randn(1, 2, 16, 16) for _ in range(3)]
    inputs[0][0, 0, 3] = 0.0
    options = {"inner": "eager", "strict": True, "executor": executor}
    compiled = torch.compile(by_sign, backend="onepass", options=options)
    exact = [x.double().requires_grad_() for x in inputs]
    given = [x.requires_grad_() for x in inputs]
    wanted, found = by_sign(*exact), compiled(*given)
    torch.testing.assert_close(found.double(), wanted, atol=1e-5, rtol=1e-5)
    for mine, theirs in zip(
        torch.autograd.grad(found.sum(), given), torch.autograd.grad(wanted.sum(), exact), strict=True
    ):
        torch.testing.assert_close(mine.double(), theirs, atol=1e-5, rtol=1e-5)
    with torch.no_grad():
        given[0][0, 0, 5, 0] = float("nan")
        assert torch.equal(compiled(*given).isnan(), by_sign(*given).isnan())


def test_complex_scores_are_called_complex():
    assert [refused.code for refused in refusals(complex_scores)] == ["OP105"]
