"""An input of a Python class of torch.Tensor, such as a dataset's images, reached the operation of a region in
Inductor's code. torch checks a graph's operations in its first call, and this check refuses such classes: the call
failed, where Inductor's own kernels run."""

import pytest
import torch

import onepass
from onepass.api.backend import onepass_backend

pytestmark = pytest.mark.usefixtures("fresh")


class Images(torch.Tensor):
    """A class that leaves every operation as it is."""


class Doubled(torch.Tensor):
    """A class whose products are doubled."""

    @classmethod
    def __torch_function__(cls, function, types, args=(), kwargs=None):
        found = super().__torch_function__(function, types, args, kwargs or {})
        return found * 2 if function in (torch.matmul, torch.Tensor.matmul, torch.Tensor.__matmul__) else found


def attend(q, k, v):
    return ((q @ k.transpose(1, 2) / 4).softmax(-1) @ v).flatten(1) * 2


def writing(q, k, v):
    result = attend(q, k, v)
    v.add_(1)
    return result


@pytest.mark.parametrize("kind", [Images, Doubled])
@pytest.mark.parametrize("inner", ["inductor", "eager"])
def test_its_results_and_gradients_are_eagers(kind, inner):
    torch.manual_seed(0)
    given = [torch.randn(4, 24, 16).as_subclass(kind).requires_grad_() for _ in range(3)]
    exact = attend(*(x.double() for x in given))
    options = {"libraries": False, "inner": inner}
    compiled = torch.compile(attend, backend=onepass_backend, options=options)
    for _ in range(2):
        found = compiled(*given)
        assert onepass.reports()[-1].regions, onepass.reports()[-1]
        torch.testing.assert_close(found.double(), exact, rtol=1e-5, atol=1e-5)
        cotangent = torch.randn(4, 24 * 16)
        wanted = torch.autograd.grad(exact, given, cotangent.double(), retain_graph=True)
        for mine, other in zip(torch.autograd.grad(found, given, cotangent), wanted, strict=True):
            torch.testing.assert_close(mine, other, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("dynamic", [False, True])
def test_it_is_written_in_place(dynamic):
    torch.manual_seed(0)
    compiled = torch.compile(writing, backend=onepass_backend, options={"libraries": False}, dynamic=dynamic)
    for length in (24, 24, 17):
        given = [torch.randn(4, length, 16).as_subclass(Images) for _ in range(3)]
        others = [x.clone() for x in given]
        torch.testing.assert_close(compiled(*given), writing(*others), rtol=1e-5, atol=1e-5)
        torch.testing.assert_close(given[2], others[2], rtol=0, atol=0)
