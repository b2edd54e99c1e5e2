"""A sum of nothing but a plain number, Σ_j 1 beside Σ_j k, was a float64 tile, and a product with float32 failed."""

import pytest
import torch
from torch.nn import functional

import onepass
from onepass.compiler.optimize import optimize_all
from onepass.egraph.search import extract
from onepass.egraph.terms.traversal import reduces, subterms
from onepass.graph.trace import program_of
from onepass.translate.translate import translate

pytestmark = pytest.mark.usefixtures("fresh", "greedy")


@pytest.fixture
def greedy(monkeypatch):
    """Each class takes its own best node: with what others need anyway, no form here sums a literal."""
    monkeypatch.setattr(extract, "_sharing", lambda _, best, __: {name: choice.node for name, choice in best.items()})


def linear(q, k, v):
    q, k = functional.elu(q) + 1, functional.elu(k) + 1
    scores = q @ k.mT
    return scores / (scores.sum(-1, keepdim=True) + 1e-6) @ v


def inputs(kind):
    torch.manual_seed(0)
    return [torch.randn(3, 3, 18, 4).to(kind) for _ in range(3)]


def test_the_form_sums_a_plain_number():
    found = optimize_all(translate(program_of(linear, *inputs(torch.float32))).results)
    assert any(r.dtype == "float" for r in reduces(found.term))
    assert {t.dtype for t in subterms(found.term) if t.op == "load"} == {"float32"}


@pytest.mark.sampled(1)
@pytest.mark.parametrize("kind", [torch.float32, torch.float64, torch.bfloat16], ids=str)
def test_it_is_computed_in_the_type_of_the_tensors(kind):
    given = inputs(kind)
    options = {"strict": True, "inner": "eager", "executor": "tiled"}
    result = torch.compile(linear, backend=onepass.onepass_backend, options=options)(*given)
    (report,) = onepass.reports()
    assert report.regions and not report.failures
    exact = linear(*(x.double() for x in given))
    assert result.dtype == kind
    torch.testing.assert_close(result.double(), exact, atol=8 * torch.finfo(kind).eps, rtol=8 * torch.finfo(kind).eps)
