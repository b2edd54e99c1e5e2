"""Scores through many `tanh(s) * s` had no certificate: the search regroups their products, each inside of the next.

Laws of products made the terms grow without bound, and a chain that goes to each place in turn has twice as many steps
for each level. What both ends have is left alone now, and an inner product is regrouped everywhere in one step.
"""

import pytest
import torch

import onepass
from onepass.api.backend import onepass_backend
from onepass.egraph.derivation.certificate import check
from onepass.egraph.derivation.derive import derive
from onepass.egraph.terms.ops import const, iota, load, make
from onepass.egraph.terms.term import Dim, Tensor
from onepass.rules import ALL

pytestmark = pytest.mark.usefixtures("fresh")
RULES = [rule for rule in ALL if rule.name in ("product_commutes", "product_associates")]


def nested(levels):
    def attend(q, k, v):
        scores = q @ k.mT / 4
        for _ in range(levels):
            scores = torch.tanh(scores) * scores
        return scores.softmax(-1) @ v

    return attend


def both_ways(levels):
    """The factor behind the product at each level, and in front of it."""
    x, factor = load(Tensor("x", "float32", (100,)), iota(Dim("j", 100))), const(0.25)
    outside, inside = x, x * factor
    for _ in range(levels):
        outside = make("tanh", (outside * factor,)) * outside
        inside = make("tanh", (inside,)) * inside
    return outside * factor, inside


@pytest.mark.parametrize("levels", [1, 12, 40])
def test_a_level_is_a_step(levels):
    start, goal = both_ways(levels)
    derivation = derive(start, goal, RULES)
    check(derivation, RULES)
    assert len(derivation.steps) == levels


@pytest.mark.sampled(1)
@pytest.mark.parametrize("levels", [3, 24])
def test_nested_scores_have_a_certificate(levels):
    (region,) = onepass.explain(nested(levels), *(torch.randn(2, n, 16) for n in (7, 300, 300))).regions
    assert region.passes == (3, 1)


@pytest.mark.slow
def test_and_the_result_is_right():
    inputs = [torch.randn(2, n, 16) for n in (7, 300, 300)]
    run = torch.compile(nested(24), backend=onepass_backend, options={"strict": True, "inner": "eager"})
    exact = nested(24)(*(x.double() for x in inputs))
    torch.testing.assert_close(run(*inputs), exact, check_dtype=False, atol=2e-5, rtol=1e-4)
