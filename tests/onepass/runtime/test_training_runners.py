"""A forward that cannot run by its plan leaves its backward to autograd; so do sizes that no plan takes."""

import pytest
import torch

import onepass
from onepass.runtime import executors, training_operator

pytestmark = pytest.mark.usefixtures("fresh")


def attention(q, k, v):
    return torch.softmax(q @ k.mT, -1) @ v


def gradients(function, n, m):
    torch.manual_seed(0)
    leaves = [torch.randn(2, length, 8, requires_grad=True) for length in (n, m, m)]
    result = function(*leaves)
    return torch.autograd.grad(result, leaves, torch.ones_like(result))


def broken(found, tensors, call):
    raise RuntimeError("broken")


def test_a_forward_without_a_plan_is_followed_by_autograd(monkeypatch):
    compiled = torch.compile(attention, backend="onepass", options={"inner": "eager"})
    right = gradients(attention, 40, 300)
    torch.testing.assert_close(gradients(compiled, 40, 300), right)
    training_operator._FORWARDS.clear(), training_operator._BACKWARDS.clear()
    monkeypatch.setitem(executors.EXECUTORS, "tiled", broken)
    torch.testing.assert_close(gradients(compiled, 40, 300), right)
    (region,) = onepass.reports()[-1].regions
    assert any("executor tiled failed" in note for note in region.notes)
    monkeypatch.undo()  # what was not saved is not read, even if plans run again
    torch.testing.assert_close(gradients(compiled, 40, 300), right)


def test_a_backward_without_a_plan_asks_autograd(monkeypatch):
    compiled = torch.compile(attention, backend="onepass", options={"inner": "eager"})
    torch.manual_seed(0)
    leaves = [torch.randn(2, length, 8, requires_grad=True) for length in (40, 300, 300)]
    result = compiled(*leaves)
    monkeypatch.setitem(executors.EXECUTORS, "tiled", broken)
    found = torch.autograd.grad(result, leaves, torch.ones_like(result))
    torch.testing.assert_close(found, gradients(attention, 40, 300))
    (region,) = onepass.reports()[-1].regions
    assert region.backward_ran == executors.ORIGINAL


@pytest.mark.parametrize("lengths", [(0, 300), (40, 0), (0, 0)])
def test_empty_lengths_have_eagers_gradients(lengths):
    compiled = torch.compile(attention, backend="onepass", options={"inner": "eager"}, dynamic=True)
    torch.testing.assert_close(gradients(compiled, 40, 300), gradients(attention, 40, 300))
    torch.testing.assert_close(gradients(compiled, *lengths), gradients(attention, *lengths), equal_nan=True)
