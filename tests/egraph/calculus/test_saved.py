"""What a forward saves: logarithms and means that do not overflow, and no exponential that could."""

import numpy as np
import pytest

from onepass.egraph.calculus.partials import NotDifferentiable
from onepass.egraph.calculus.saved import (
    Bounded,
    Logarithm,
    Mean,
    exponential_parts,
    log_of_sum,
    logarithms,
    means,
    rows_computed_again,
    saved_value,
    weight_of,
)
from onepass.egraph.derivation.normalize import Normaliser
from onepass.egraph.terms.evaluate import evaluate
from onepass.egraph.terms.ops import const, exp, iota, load, lt, make, max_over, sum_over, where
from onepass.egraph.terms.term import Dim, Tensor
from onepass.egraph.terms.traversal import rename_dims
from onepass.rules import GATHERED, NORMAL, SHIFT_FREE

I, J, E = Dim("i", 300), Dim("j", 400), Dim("e", 8)
s = load(Tensor("s", "float64", (300, 400)), iota(I), iota(J))
v = load(Tensor("v", "float64", (400, 8)), iota(J), iota(E))
FREE = Normaliser((*NORMAL, *SHIFT_FREE))
scores = s * load(Tensor("t", "float64", ()))  # a product: no element of a tensor, which could be a mask's
LARGE = np.array([[1000.0, 1001.0, 999.0]])


class _Result:
    def __init__(self, term):
        self.term = Normaliser(NORMAL).normal(term)


def _softmax(scores, values):
    shifted = exp(scores - max_over(J, scores))
    return _Result(sum_over(J, shifted / sum_over(J, shifted) * values))


def test_a_sum_of_exponentials_has_its_logarithm():
    (found,) = logarithms(dict.fromkeys([_softmax(scores, v)], FREE), (I, E))
    (saved,) = found.parts
    assert saved.tensor.name == "log" and saved.order == (I,) and saved.tensor.dtype == "float64"
    assert found.total == sum_over(J, exp(scores))


@pytest.mark.parametrize("far", [s, scores + s, where(lt(s, 0.0), scores, const(-1e9)), scores - 3e4])
def test_scores_that_may_be_far_have_their_shift_saved_apart(far):
    (found,) = logarithms(dict.fromkeys([_softmax(far, v)], FREE), (I, E))
    shift, log = found.parts
    assert (shift.tensor.name, log.tensor.name) == ("shift", "log") and shift.order == log.order == (I,)
    assert found.read() == load(shift.tensor, iota(I)) + load(log.tensor, iota(I))


def test_a_sum_without_a_shift_has_one_that_does_not_overflow():
    j = Dim("j", 3)
    row = load(Tensor("s", "float64", (1, 3)), const(0), iota(j))
    (found,) = logarithms(dict.fromkeys([_Result(sum_over(j, exp(row)))], FREE), ())
    assert found.total == sum_over(j, exp(row)) and found.term == log_of_sum(j, row)
    assert evaluate(found.term, {"s": LARGE}, ()) == pytest.approx(1001 + np.log(np.exp(LARGE - 1001).sum()))


def test_a_weighted_sum_is_its_mean_times_the_whole():
    result = _softmax(s, v)
    sums = list(logarithms(dict.fromkeys([result], FREE), (I, E)))
    (mean,) = means([FREE.normal(result.term)], sums, (I, E))
    assert mean.log is sums[0] and mean.log.total == sum_over(J, exp(s))
    draws = np.random.default_rng(0)
    given = {"s": draws.standard_normal((300, 400)) + 2000, "v": draws.standard_normal((400, 8))}
    weights = np.exp(given["s"] - given["s"].max(1, keepdims=True))
    exact = weights @ given["v"] / weights.sum(1, keepdims=True)
    assert np.allclose(evaluate(mean.value, given, (I, E)), exact)


def test_masked_parts_are_absent():
    kept = where(load(Tensor("p", "bool", (400,)), iota(J)), exp(s) * v, const(0.0))
    scores, weight = exponential_parts(sum_over(J, kept))
    assert scores.op == "where" and scores.args[1] is s and weight is v
    assert exponential_parts(sum_over(J, exp(s) * exp(v))) is None


def test_an_exponential_without_its_logarithm_is_refused():
    result = _softmax(s, v)
    sums = list(logarithms(dict.fromkeys([result], FREE), (I, E)))
    bounded = Bounded(sums, [result], Normaliser((*NORMAL, *GATHERED)))
    shift, log = (load(part.tensor, iota(I)) for part in sums[0].parts)
    bounded.check([exp(s - shift - log) * v])
    for wrong in (exp(s), exp(log), exp(s - log), exp(s - shift - log - log), exp(v - shift - log)):
        with pytest.raises(NotDifferentiable, match="could overflow"):
            bounded.check([wrong * v])


def test_a_sum_over_fewer_elements_has_weights_of_0():
    p, r = (load(Tensor(name, "bool", (400,)), iota(J)) for name in "pr")
    whole = where(p, s, const(-np.inf))
    assert weight_of(sum_over(J, where(p & r, exp(s) * v, const(0.0))), whole) is where(r, v, const(0.0))
    assert weight_of(sum_over(J, where(r, exp(s) * v, const(0.0))), whole) is None


def test_a_weight_is_what_stands_beside_the_exponential():
    t = load(Tensor("t", "float64", (300,)), iota(I))
    assert weight_of(sum_over(J, exp(s) * v), s) is v and weight_of(sum_over(J, exp(s)), s) is const(1.0)
    assert weight_of(sum_over(J, (v * exp(t + s)) / t), s) is (v * exp(t)) / t
    assert weight_of(sum_over(J, exp(t) * v), s) is None
    kept = lt(const(0.0), v)
    chosen = where(kept, v * exp(s), const(0.0)) / t
    assert weight_of(sum_over(J, chosen), s) is where(kept, v, const(0.0)) / t


def test_a_mean_without_elements_is_0_where_the_divisor_has_more():
    j = Dim("j", 3)
    score = where(load(Tensor("p", "bool", (3,)), iota(j)), load(Tensor("s", "float64", (3,)), iota(j)), const(-np.inf))
    total = sum_over(j, exp(score)) + exp(load(Tensor("sink", "float64", ())))
    log = saved_value("log", load(Tensor("sink", "float64", ())), ())
    mean = Mean(sum_over(j, exp(score) * 2.0), Logarithm(total, (log,), const(0.0)), score, const(2.0))
    given = {"p": np.array([False] * 3), "s": np.ones(3), "sink": np.array(0.5)}
    assert evaluate(mean.value, given, ()) == 0.0


def test_truth_values_that_a_gradient_makes_of_some_rows_are_one_value():
    """Of one row, at any dim; of two rows, they are two values."""
    laws, other = Normaliser(NORMAL), Dim("k", 300)
    low, high = (laws.normal(lt(sum_over(J, x), const(1.0))) for x in (s, s * s))
    rows = {one: (one, one) for one in (low, high)}
    whole = laws.normal(make("and", (make("not", (low,)), high)))
    at = lambda term: laws.normal(rename_dims(term, {I: other}))
    kept = lambda condition: where(condition, load(Tensor("t", "float64", ()), *()), const(0.0))
    assert [*rows_computed_again([kept(at(whole))], rows, laws)] == [whole]
    apart = laws.normal(make("and", (low, at(high))))
    assert {*rows_computed_again([kept(apart)], rows, laws)} == {low, high}
