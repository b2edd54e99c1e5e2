"""Losses over one product whose gradients were not derived, and one whose graph failed.

A gathered logarithm beside an entropy: "the derivative of a largest element asks which one it is". A cross entropy of
scores in half precision: "the kernels would store more between them", though the plan runs in parts. A divergence of
two products: an internal error. Elements at labels that keep an axis of one place: no plan in parts.
"""

import pytest
import torch
import torch.nn.functional as F

import onepass
from onepass.graph import reduced_products

ROWS, WIDTH, WORDS = 4096, 1024, 32000


def cross_entropy(x, w, y):
    return F.cross_entropy(x @ w.T, y)


def logarithm_and_entropy(x, w, y):
    logarithm = (x @ w.T).log_softmax(-1)
    return logarithm.gather(-1, y[:, None])[:, 0] - (logarithm.exp() * logarithm).sum(-1)


def kept_axis(x, w, y):
    return (x @ w.T).float().log_softmax(-1).gather(-1, y[:, None])[:, 0]


def divergence(x, w, y):
    target = (x.detach() @ w.detach().T * 2).softmax(-1)
    return F.kl_div((x @ w.T).log_softmax(-1), target, reduction="batchmean")


def per_word(x, w, y):
    """Results of one product meet behind exponentials that may overflow: the region ends in front of these."""
    logarithm = (x @ w.T).float().log_softmax(-1)
    found = logarithm.gather(-1, y[:, None])[:, 0]
    return (found.exp() * 2 - (logarithm.exp() * logarithm).sum(-1)).square()


PROGRAMS = (cross_entropy, logarithm_and_entropy, kept_axis, divergence, per_word)


def explained(function, **options):
    given = [torch.empty(n, WIDTH, dtype=torch.bfloat16, requires_grad=True) for n in (ROWS, WORDS)]
    labels = torch.zeros(ROWS, dtype=torch.int64)
    torch._dynamo.reset()
    return onepass.explain(function, *given, labels, gradients=True, options=options)


@pytest.mark.parametrize("function", PROGRAMS)
def test_gradients_are_derived(function):
    report = explained(function, inner="eager", libraries=False)
    assert not report.refusals and not report.failures
    (region,) = report.regions
    assert region.backward.startswith("derived")


@pytest.mark.parametrize("function", [cross_entropy, kept_axis])
def test_the_scores_are_stored_once(function):
    (region,) = explained(function, prefer="memory").regions
    assert region.backward.startswith("derived, 3 kernels") and "part0 (a part)" in region.backward


@pytest.mark.parametrize(("scale", "tolerance"), [(1.0, 1e-4), (30.0, 1e-3)])
@pytest.mark.parametrize("function", PROGRAMS)
def test_gradients_are_right(function, scale, tolerance, monkeypatch):
    monkeypatch.setattr(reduced_products, "LEAST_ELEMENTS", 1)
    torch.manual_seed(0)
    x, w, y = scale * torch.randn(30, 8), torch.randn(50, 8), torch.randint(50, (30,))
    leaves, right = ([t.to(kind).requires_grad_() for t in (x, w)] for kind in (torch.float32, torch.float64))
    torch._dynamo.reset()
    run = torch.compile(function, backend="onepass", options={"inner": "eager", "executor": "tiled"})
    found = torch.autograd.grad(run(*leaves, y).sum(), leaves)
    for one, exact in zip(found, torch.autograd.grad(function(*right, y).sum(), right), strict=True):
        torch.testing.assert_close(one.double(), exact, rtol=0, atol=tolerance * max(1e-3, float(exact.abs().max())))
