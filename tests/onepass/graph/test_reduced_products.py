"""Which products are read by reductions alone, as layers and as products; what makes them be left alone."""

import pytest
import torch
import torch.nn.functional as F
from torch.fx.experimental.proxy_tensor import make_fx

from onepass.graph import reduced_products
from onepass.graph.survey import reduced, survey

GIVEN = torch.randn(40, 8), torch.randn(60, 8), torch.randint(60, (40,))


def found(function, monkeypatch, least=1):
    monkeypatch.setattr(reduced_products, "LEAST_ELEMENTS", least)
    s = survey(make_fx(function, pre_dispatch=True, tracing_mode="fake")(*GIVEN).graph)
    products = [n for n in s.order if s.kind[n] == "contraction"]
    return [one for one in (reduced(n, s) for n in products) if one is not None]


READ = {
    "a log-sum-exp": lambda x, w, y: (x @ w.T).logsumexp(-1),
    "of a layer": lambda x, w, y: F.linear(x, w).float().amax(-1),
    "a softmax by hand": lambda x, w, y: ((s := x @ w.T) - s.amax(-1, keepdim=True)).exp().sum(-1),
    "at labels": lambda x, w, y: (x @ w.T).log_softmax(-1).gather(-1, y[:, None]),
    "a loss": lambda x, w, y: F.cross_entropy(x @ w.T, y),
    "a diagonal": lambda x, w, y: (x @ w[:40].T).diagonal() - (x @ w[:40].T).logsumexp(0),
    "values of a maximum": lambda x, w, y: (x @ w.T).max(-1)[0],
}
LEFT = {
    "scores that are returned": lambda x, w, y: ((s := x @ w.T), s.amax(-1)),
    "a softmax": lambda x, w, y: (x @ w.T).softmax(-1),
    "an unknown operation": lambda x, w, y: (x @ w.T).sort(-1).values.amax(-1),
    "a second product": lambda x, w, y: (x @ w.T).softmax(-1) @ w,
    "no reduction": lambda x, w, y: (x @ w.T) * 2,
}


@pytest.mark.parametrize("name", READ)
def test_read_by_reductions_alone(name, monkeypatch):
    one, *_ = found(READ[name], monkeypatch)
    assert one.product in one.wide < one.nodes


@pytest.mark.parametrize("name", LEFT)
def test_read_by_something_else(name, monkeypatch):
    assert not found(LEFT[name], monkeypatch)


def test_a_small_product_is_not_worth_it(monkeypatch):
    assert not found(READ["a log-sum-exp"], monkeypatch, least=40 * 60 + 1)
