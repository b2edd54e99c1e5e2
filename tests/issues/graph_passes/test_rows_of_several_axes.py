"""A layer over [batch, time, width] whose scores were flattened behind it, as before each model's cross entropy, had
gradients in four kernels with the scores stored twice; before that, one of them summed over all places of a row."""

import pytest
import torch
import torch.nn.functional as F

import onepass
from onepass.graph import reduced_products

BATCH, TIME, CLASSES, WIDTH = 2, 24, 50, 16


def flattened(h, w, y):
    return F.cross_entropy(F.linear(h, w).float().view(-1, CLASSES), y.view(-1))


def by_flatten(h, w, y):
    return F.cross_entropy((h @ w.T).flatten(0, 1), y.flatten())


def with_bias(h, w, y):
    return F.cross_entropy(F.linear(h, w, w[:, 0]).reshape(-1, CLASSES) * 0.5, y.reshape(-1))


def scaled(h, w, y):
    return F.cross_entropy((F.linear(h, w) * 0.5).float().reshape(BATCH * TIME, CLASSES), y.reshape(-1))


PROGRAMS = [flattened, by_flatten, with_bias, scaled]


def given(dtype=torch.float32):
    torch.manual_seed(0)
    h, w = torch.randn(BATCH, TIME, WIDTH, dtype=dtype), torch.randn(CLASSES, WIDTH, dtype=dtype)
    return h, w, torch.randint(CLASSES, (BATCH, TIME))


@pytest.mark.parametrize("function", PROGRAMS)
def test_the_scores_are_one_product(function, monkeypatch):
    monkeypatch.setattr(reduced_products, "LEAST_ELEMENTS", 1)
    torch._dynamo.reset()
    h, w, y = given()
    report = onepass.explain(function, h.requires_grad_(), w.requires_grad_(), y, gradients=True,
                             options={"prefer": "memory"})  # fmt: skip
    (region,) = report.regions
    shapes = [t.shape for t in region.data.plan.inputs]
    assert (BATCH * TIME, WIDTH) in shapes and (BATCH, TIME, WIDTH) not in shapes
    assert region.backward.startswith("derived") and "h.1" not in region.backward


@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize("function", PROGRAMS)
def test_gradients_are_right(function, dynamic, monkeypatch):
    monkeypatch.setattr(reduced_products, "LEAST_ELEMENTS", 1)
    torch._dynamo.reset()
    run = torch.compile(function, backend="onepass", options={"inner": "eager"}, dynamic=dynamic)
    h, w, y = given()
    turned = h.transpose(0, 1).contiguous().transpose(0, 1)  # rows that no view makes one axis
    for rows in (h, turned):
        leaves, right = ([t.detach().to(kind).requires_grad_() for t in (rows, w)] for kind in (h.dtype, torch.float64))
        found = torch.autograd.grad(run(*leaves, y), leaves)
        exact = torch.autograd.grad(function(*right, y), right)
        for one, other in zip(found, exact, strict=True):
            torch.testing.assert_close(one.double(), other, rtol=2e-5, atol=2e-5)


def test_scores_that_are_read_elsewhere_stay(monkeypatch):
    monkeypatch.setattr(reduced_products, "LEAST_ELEMENTS", 1)
    torch._dynamo.reset()

    def both(h, w, y):
        scores = F.linear(h, w)
        return F.cross_entropy(scores.view(-1, CLASSES), y.view(-1)), scores

    h, w, y = given()
    loss, scores = torch.compile(both, backend="onepass", options={"inner": "eager"})(h, w, y)
    assert scores.shape == (BATCH, TIME, CLASSES)
    torch.testing.assert_close((loss, scores), both(h, w, y))
