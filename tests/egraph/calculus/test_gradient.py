"""What is derived, by its form: weights are computed again from their logarithm, and sums by row are saved."""

import pytest

from onepass.egraph.calculus.gradient import Laws, gradients
from onepass.egraph.calculus.partials import NotDifferentiable
from onepass.egraph.calculus.reverse_mode import Result
from onepass.egraph.derivation.normalize import Normaliser
from onepass.egraph.search.extract import passes
from onepass.egraph.terms.ops import exp, iota, load, max_over, sum_over
from onepass.egraph.terms.printing import show_let
from onepass.egraph.terms.term import Dim, Tensor
from onepass.rules import GATHERED, NORMAL, SHIFT_FREE

LAWS = Laws(NORMAL, SHIFT_FREE, GATHERED)
I, J, D, E = Dim("i", 300), Dim("j", 400), Dim("d", 16), Dim("e", 8)
q = load(Tensor("q", "float64", (300, 16)), iota(I), iota(D))
k = load(Tensor("k", "float64", (400, 16)), iota(J), iota(D))
v = load(Tensor("v", "float64", (400, 8)), iota(J), iota(E))
SCORES = sum_over(D, q * k)
OUTPUT, G = Tensor("output", "float64", (300, 8)), Tensor("g", "float64", (300, 8))


def _softmax(scores):
    shifted = exp(scores - max_over(J, scores))
    return shifted / sum_over(J, shifted)


def _derived(term, *wanted):
    result = Result(Normaliser(NORMAL).normal(term), OUTPUT, (I, E), G)
    return gradients([result], wanted, LAWS)


def test_weights_come_from_their_logarithm_and_what_is_summed_twice_is_saved():
    found = _derived(sum_over(J, _softmax(SCORES) * v), "q", "k", "v")
    text = {gradient.tensor.name: show_let(gradient.term) for gradient in found.gradients}
    assert text["v"] == "Σ_i g[i, e] · exp(Σ_d q[i, d] · k[j, d] - log[i])"
    assert text["q"] == (
        "Σ_j (Σ_e g[i, e] · v[j, e] - (Σ_e g[i, e] · output[i, e])) · k[j, d] · exp(Σ_d q[i, d] · k[j, d] - log[i])"
    )
    assert [saved.tensor.name for saved in found.saved] == ["log", "output"]
    assert all(passes(gradient.term) == 1 for gradient in found.gradients)


def test_only_what_is_wanted_and_only_what_that_reads():
    found = _derived(sum_over(J, _softmax(SCORES) * v), "v")
    assert [g.tensor.name for g in found.gradients] == ["v"] and [s.tensor.name for s in found.saved] == ["log"]


def test_a_maximum_that_is_asked_for_is_refused():
    with pytest.raises(NotDifferentiable, match="a largest element"):
        _derived(max_over(J, SCORES) + sum_over(J, _softmax(SCORES) * v), "q")
