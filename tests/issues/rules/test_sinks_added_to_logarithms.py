"""In float16, a sink in `logaddexp` was taken for a mask, and the logarithm's rounding was kept beside exact scores.

A score of 3399.6 less a logarithm of 3400 made 0.7 of a weight of 1. A maximum of a score and a tensor is no mask now.
"""

import torch

import onepass
from onepass import onepass_backend


def attention(q, k, v, sink):
    scores = q @ k.mT * 0.3
    total = torch.logaddexp(scores.logsumexp(-1, keepdim=True), sink.reshape(1, -1, 1, 1))
    return torch.exp(scores - total) @ v


def inputs():
    torch.manual_seed(0)
    q, k, v = (torch.randn(3, 2, 5, 5) for _ in range(3))
    return [x.half() for x in (q, 6e3 * k, v, torch.randn(2))]


def test_no_rounding_is_left_between_a_score_and_its_logarithm():
    (region,) = onepass.explain(attention, *inputs()).regions
    assert "float16(t" not in region.extracted and region.extracted.count("float16(") == 1, region.extracted


def test_scores_of_thousands_have_weights_of_one():
    exact = attention(*(x.double() for x in inputs()))
    found = torch.compile(attention, backend=onepass_backend, options={"executor": "tiled"})(*inputs())
    assert (found.double() - exact).abs().max() < 4e-3 * exact.abs().max()
