"""A loss over the rows and the columns of one product had two sums for each gradient, each with the product again.

The product has other names of dims in the two directions. Its cotangents are added now, so a gradient is one sum with
two products of matrices. What masks a row is saved once, by any names.
"""

import pytest
import torch

from onepass import onepass_backend
from onepass.compiler import compiled_region
from onepass.compiler.options import Options
from onepass.egraph.terms.traversal import reduces
from onepass.graph.trace import program_of
from onepass.training.plans import training

pytestmark = pytest.mark.usefixtures("fresh")


def contrast(x, y):
    score = x @ y.T * 3
    return score.logsumexp(0).sum() + score.logsumexp(1).sum() - 2 * score.diagonal().sum()


def softmaxes(x, y):
    score = x @ y.T * 3
    return score.log_softmax(0).diagonal(), score.log_softmax(1).diagonal()


def directions_of_attention(x, y):
    score = x @ y.T
    return score.softmax(-1) @ y, score.T.softmax(-1) @ x


PROGRAMS = (contrast, softmaxes, directions_of_attention)


def drawn(rows=260, columns=300, scale=1.0):
    torch.manual_seed(0)
    return [(scale * torch.randn(n, 16)).requires_grad_() for n in (rows, columns)]


def backward_plan(function):
    found = compiled_region.make(program_of(function, *drawn()), Options(), (), {})
    return training(found.text, [True, True]).every.region.plan


def test_a_gradient_has_one_sum_with_two_products():
    plan = backward_plan(contrast)
    assert len(plan.kernels) == 2
    for kernel in plan.kernels:
        (store,) = kernel.stores
        assert [r.attrs[0] for r in reduces(store.term)] == ["sum", "sum"]  # what masks rows is read


@pytest.mark.parametrize("scale", [1.0, 20.0])
@pytest.mark.parametrize("function", PROGRAMS)
def test_gradients(function, scale):
    given = drawn(scale=scale)
    options = {"inner": "eager", "libraries": False, "executor": "tiled"}
    found = torch.compile(function, backend=onepass_backend, options=options)(*given)
    wide = [x.detach().double().requires_grad_() for x in given]
    summed = lambda results: sum(r.square().sum() for r in (results if isinstance(results, tuple) else (results,)))
    expected = torch.autograd.grad(summed(function(*wide)), wide)
    for one, right in zip(torch.autograd.grad(summed(found), given), expected, strict=True):
        torch.testing.assert_close(one.double(), right, rtol=1e-4, atol=1e-4 * float(right.abs().max()))


def test_rows_and_columns_without_any_score():
    def masked(x, y, kept):
        score = (x @ y.T).masked_fill(~kept, -torch.inf)
        return score.logsumexp(0).exp().sum() + score.logsumexp(1).exp().sum()

    given, kept = drawn(), torch.rand(260, 300) < 0.5
    kept[3] = False
    kept[:, 5] = False
    options = {"inner": "eager", "libraries": False, "executor": "tiled"}
    found = torch.compile(masked, backend=onepass_backend, options=options)(*given, kept)
    wide = [x.detach().double().requires_grad_() for x in given]
    expected = torch.autograd.grad(masked(*wide, kept), wide)
    for one, right in zip(torch.autograd.grad(found, given), expected, strict=True):
        right = right.nan_to_num(0.0)  # of a row without any score, eager's derivative of exp(-inf) is 0 times infinity
        torch.testing.assert_close(one.double(), right, rtol=1e-4, atol=1e-4 * float(right.abs().max()))
