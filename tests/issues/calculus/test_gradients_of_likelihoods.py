"""F.nll_loss of a log_softmax had no derived gradients, where F.cross_entropy had: a row's largest score was in the sum
that picks the class."""

import pytest
import torch
import torch.nn.functional as F

import onepass
from onepass.graph import reduced_products

ROWS, CLASSES, WIDTH = 40, 70, 16


def given(dtype):
    torch.manual_seed(0)
    x, w = torch.randn(ROWS, WIDTH, dtype=dtype), torch.randn(CLASSES, WIDTH, dtype=dtype)
    return x, w, torch.randint(CLASSES, (ROWS,))


@pytest.mark.parametrize("reduction", ["none", "mean", "sum"])
@pytest.mark.parametrize("ignored", [-100, 3])
def test_gradients_are_derived(reduction, ignored, monkeypatch):
    monkeypatch.setattr(reduced_products, "LEAST_ELEMENTS", 1)
    torch._dynamo.reset()
    x, w, y = given(torch.float32)
    y[5] = 3
    weight = torch.rand(CLASSES)
    options = {"reduction": reduction, "ignore_index": ignored}

    def loss(x, w, y, weight):
        return F.nll_loss((x @ w.T).log_softmax(-1), y, weight, **options)

    leaves, right = ([t.to(kind).requires_grad_() for t in (x, w)] for kind in (torch.float32, torch.float64))
    report = onepass.explain(loss, *leaves, y, weight, gradients=True, options={"prefer": "memory"})
    assert report.regions[0].backward.startswith("derived")
    run = torch.compile(loss, backend="onepass", options={"inner": "eager"})
    found = torch.autograd.grad(run(*leaves, y, weight).sum(), leaves)
    exact = torch.autograd.grad(loss(*right, y, weight.double()).sum(), right)
    for one, other in zip(found, exact, strict=True):
        torch.testing.assert_close(one.double(), other, rtol=2e-5, atol=2e-5)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_halves_are_rounded_as_the_program_rounds_them(dtype, monkeypatch):
    monkeypatch.setattr(reduced_products, "LEAST_ELEMENTS", 1)
    x, w, y = given(dtype)
    loss = lambda x, w, y: F.nll_loss((x @ w.T).log_softmax(-1), y)
    run = torch.compile(loss, backend="onepass", options={"inner": "eager"})
    right, eager = loss(x.double(), w.double(), y), loss(x, w, y)
    assert abs(run(x, w, y).double() - right) <= 2 * abs(eager.double() - right) + 1e-2 * abs(right)
