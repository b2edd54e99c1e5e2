"""Attention to the nearest keys of each query: topk between distances and weights is named, with a way out.

Where the weighted sum was written point by point, `(weights[..., None] * values).sum(-2)`, a report said that nothing
was found. The ways out are run.
"""

import pytest
import torch

import onepass

pytestmark = pytest.mark.usefixtures("fresh")
BATCH = torch.arange(2)[:, None, None]


def of_distances(q, k, v):
    distances, places = torch.cdist(q, k).topk(8, largest=False)
    return (torch.softmax(-distances, -1).unsqueeze(-1) * v[BATCH, places]).sum(-2)


def of_scores(q, k, v):
    scores, places = (q @ k.mT).topk(8)
    return torch.einsum("bij,bije->bie", torch.softmax(scores, -1), v[BATCH, places])


def ordered(q, k, v):
    places = (q @ k.mT).argsort(-1, descending=True)[..., :8]
    scores = (q.unsqueeze(-2) * k[BATCH, places]).sum(-1)
    return (torch.softmax(scores, -1).unsqueeze(-2) @ v[BATCH, places]).squeeze(-2)


def gathered_by_distance(q, k, v):
    places = torch.cdist(q, k).topk(8, largest=False).indices
    keys, values = k[BATCH, places], v[BATCH, places]
    return (torch.softmax(-torch.cdist(q.unsqueeze(-2), keys), -1) @ values).squeeze(-2)


def gathered(q, k, v):
    places = (q @ k.mT).argsort(-1, descending=True)[..., :8]
    keys, values = k[BATCH, places], v[BATCH, places]
    return (torch.softmax(q.unsqueeze(-2) @ keys.mT, -1) @ values).squeeze(-2)


def entropy(q, k, v):
    """No weighted sum follows: of this nothing is said."""
    p = torch.softmax((q @ k.mT).topk(8).values, -1)
    return (p * p.log()).sum(-1)


def inputs():
    return [torch.randn(2, n, 16) for n in (40, 300, 300)]


@pytest.mark.parametrize("function, name", [(of_distances, "topk"), (of_scores, "topk"), (ordered, "argsort")])
def test_the_choice_is_named_with_its_line(function, name):
    (refused,) = onepass.explain(function, *inputs()).refusals
    assert refused.code == "OP210" and refused.reason.startswith(f"{name} chooses among scores")
    assert refused.line == function.__code__.co_firstlineno + 1 and refused.file == __file__


@pytest.mark.parametrize("function", [gathered, gathered_by_distance])
@pytest.mark.parametrize("large", [1.0, 1e3])
def test_the_way_out_is_fused(function, large):
    q, k, v = inputs()
    q, k = q * large, k * large
    assert onepass.explain(function, q, k, v, options={"require": "all"}).fused == 1
    exact = function(q.double(), k.double(), v.double())
    fast = onepass.compile(function, inner="eager", executor="tiled")(q, k, v)
    error = lambda x: (x.double() - exact).abs().max()
    assert error(fast) <= 2 * error(function(q, k, v)) + 1e-6


def test_nothing_is_said_without_a_weighted_sum():
    report = onepass.explain(entropy, *inputs())
    assert not (report.refusals or report.regions)
