"""Gradients of attention with detached weights, as softmax(s.detach()) @ v, are derived: the weights are constants.

The region was left to Inductor in training, though one product is its whole backward. What is detached is derived as if
it were made of inputs of its own; the plans read the inputs themselves.
"""

import math

import pytest
import torch

import onepass
from onepass.compiler.certificate_files import verify

pytestmark = pytest.mark.usefixtures("fresh")


def of_scores(s, v):
    return torch.softmax(s.detach(), -1) @ v


def of_weights(s, v):
    return torch.softmax(s, -1).detach() @ v


def under_no_grad(s, v):
    with torch.no_grad():
        weights = torch.softmax(s, -1)
    return weights @ v


def straight_through(s, v):
    soft, hard = torch.softmax(s, -1), torch.softmax(4 * s, -1)
    return (hard - soft).detach() @ v + soft @ v


def of_the_sign(s, v):
    return torch.softmax(s * s.detach().sigmoid(), -1) @ v


def whole(s):
    return s


def causal(s):
    return s.masked_fill(torch.ones(s.shape[-2:], dtype=torch.bool).triu(1), -math.inf)


def attention(weigh, mask):
    return lambda q, k, v: weigh(mask(q @ k.mT / 4), v)


def inputs(dtype, scale=1.0):
    generator = torch.Generator().manual_seed(0)
    made = [torch.randn(2, 2, 40, 16, generator=generator, dtype=torch.float64) for _ in range(3)]
    return [x.mul(s).to(dtype).requires_grad_() for x, s in zip(made, (scale, scale, 1.0), strict=True)]


def gradients(function, given):
    result = function(*given)
    return torch.autograd.grad(result.sum() + result.square().sum() / 2, given, allow_unused=True)


@pytest.mark.parametrize("scale", [1.0, 30.0])
@pytest.mark.parametrize("mask", [whole, causal])
@pytest.mark.parametrize("weigh", [of_scores, of_weights, under_no_grad, straight_through, of_the_sign])
def test_gradients_are_derived_and_right(weigh, mask, scale):
    if (weigh, mask) == (of_the_sign, causal):
        mask = whole  # -inf times 0 is no number
    function = attention(weigh, mask)
    fast = onepass.compile(function, inner="eager", executor="tiled", strict=True)
    found, eager = (gradients(f, inputs(torch.float32, scale)) for f in (fast, function))
    exact = gradients(function, inputs(torch.float64, scale))
    for one, other, true in zip(found, eager, exact, strict=True):
        assert (one is None) == (true is None)
        if true is not None:
            error = lambda x, true=true: (x.double() - true).abs().max()
            assert error(one) <= 4 * error(other) + 1e-5 * scale
    (region,) = onepass.reports()[-1].regions
    assert region.backward.startswith("derived")


def test_it_is_fused_where_inductor_compiles_the_rest():
    report = onepass.explain(attention(of_scores, whole), *inputs(torch.float32), options={"require": "all"})
    assert report.fused == 1 and report.answers[1].answer == "All that was found is fused"


@pytest.mark.parametrize("weigh", [of_scores, straight_through])
def test_the_certificate_holds(weigh, tmp_path):
    report = onepass.explain(attention(weigh, whole), *inputs(torch.float32), gradients=True)
    assert "detached" in str(report.regions[0].gradients)
    (tmp_path / "certificate.json").write_text(report.certificate())
    assert len(verify(tmp_path / "certificate.json")) >= 2  # of the result, and of its gradients


def test_cotangents_of_some_results_read_no_result_that_the_forward_does_not_keep():
    """The gradients for all results need the second one alone; for the first one alone, they need the first."""

    def two(q, k, v):
        scores = q @ k.mT / 4
        return scores.softmax(-1) @ v, scores.detach().softmax(-1) @ v

    compiled, given = torch.compile(two, backend="onepass", options={"inner": "eager"}), inputs(torch.float32)
    for chosen in ([0], [1], [0, 1]):
        for _ in range(2):
            found, right = (
                torch.autograd.grad(sum(f(*given)[n].sum() for n in chosen), given, allow_unused=True)
                for f in (compiled, two)
            )
            for one, true, x in zip(found, right, given, strict=True):
                one, true = (torch.zeros_like(x) if g is None else g for g in (one, true))
                torch.testing.assert_close(one, true, rtol=1e-4, atol=1e-5)
