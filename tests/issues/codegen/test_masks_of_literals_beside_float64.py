"""A mask's numbers, made of literals alone, were float64 in a kernel that reads any float64, and so were masked scores.

A forward in float32 absorbed the scores in -1e9; its backward, which reads a saved float64, did not: gradients were
off by exp(s). Products of such weights raised, because their operands were of two types.
"""

import pytest
import torch

from onepass.api.backend import onepass_backend
from onepass.egraph.terms.ops import const, iota, load, lt, where
from onepass.egraph.terms.term import Dim, Tensor
from onepass.lowering.plan.dtypes import adapting

pytestmark = pytest.mark.usefixtures("fresh")


def masked(q, k, keep):
    near = keep & ((torch.arange(q.shape[-2])[:, None] - torch.arange(k.shape[-2])).abs() < 2)
    return q @ k.mT + torch.zeros(near.shape).masked_fill(~near, -1e9)


def softmax_in_double(q, k, v, keep):
    return masked(q, k, keep).double().softmax(-1).float() @ v


def values_in_double(q, k, v, keep):
    return masked(q, k, keep).softmax(-1).double() @ v.double()


def inputs():
    torch.manual_seed(0)
    return [torch.randn(1, 2, 21, 16) for _ in range(3)] + [torch.tensor([False, True]).view(1, 2, 1, 1)]


def test_literals_adapt_to_the_numbers_beside_them():
    j = Dim("j", 8)
    mask = where(lt(iota(j), const(3)), const(0.0), const(-1e9))
    single, double = (load(Tensor("x", dtype, (8,)), iota(j)) for dtype in ("float32", "float64"))
    assert adapting([single, mask]) == [False, True] and adapting([mask, single]) == [True, False]
    assert adapting([double, mask]) == adapting([mask, mask]) == [False, False]


@pytest.mark.parametrize("executor", ["tiled", "triton"])
@pytest.mark.parametrize("function", [softmax_in_double, values_in_double])
def test_results_and_gradients_are_eagers(function, executor):
    options = {"inner": "eager", "strict": True, "executor": executor}
    compiled, found = torch.compile(function, backend=onepass_backend, options=options), []
    for call in (compiled, function):
        *given, keep = inputs()
        given = [x.requires_grad_() for x in given]
        result = call(*given, keep)
        found.append([result, *torch.autograd.grad(result.sin().sum(), given)])
    for mine, eager in zip(*found, strict=True):
        torch.testing.assert_close(mine, eager, rtol=0, atol=1e-4)
