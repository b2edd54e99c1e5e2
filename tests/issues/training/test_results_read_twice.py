"""A backward that reads a result of the forward in two places is given it once.

Tensors are given by their names, so a name that came twice moved each later tensor to the name before its own. Example:
with sizes that change, gradients of normalised exponentials, some of them dropped, read the result twice.
"""

import pytest
import torch

from onepass import onepass_backend
from onepass.runtime.training_runners import BackwardRunner


def dropped(k, v, a, c):
    score = torch.nn.functional.leaky_relu(a[..., None] + c[..., None, :], 0.2)
    weight = (score - score.max(-1, keepdim=True).values).exp()
    total = weight.sum(-1, keepdim=True)
    return torch.einsum("...ij,...je->...ie", weight * (weight > 0.01), v) / total


@pytest.fixture
def given():
    torch.manual_seed(0)
    k, v, a, c = (torch.randn(2, 2, *size) for size in ((14, 16), (14, 16), (7,), (14,)))
    return k, v, a.requires_grad_(), c


def gradient(run, given):
    (found,) = torch.autograd.grad(run(*given).square().sum(), given[2])
    return found


@pytest.mark.sampled(1)
@pytest.mark.parametrize("dynamic", [False, True])
def test_each_tensor_has_a_name_of_its_own_and_gradients_are_right(dynamic, given, monkeypatch):
    seen, plain = [], BackwardRunner.gradients
    monkeypatch.setattr(BackwardRunner, "gradients", lambda self, *args: seen.append(self) or plain(self, *args))
    torch._dynamo.reset()
    options = {"inner": "eager", "executor": "tiled", "libraries": False, "strict": True}
    found = gradient(torch.compile(dropped, backend=onepass_backend, options=options, dynamic=dynamic), given)
    exact = gradient(dropped, [x.detach().double().requires_grad_(x.requires_grad) for x in given])
    torch.testing.assert_close(found.double(), exact, rtol=1e-4, atol=1e-5)
    (runner,) = seen
    assert len({*runner.found.names}) == len(runner.found.names)
