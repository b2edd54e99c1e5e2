"""Reverse mode on small terms: what is broadcast is summed, what is summed is broadcast, each use adds up."""

import pytest

from onepass.egraph.calculus.adjoint import cotangents_of_loads, rows_used
from onepass.egraph.calculus.partials import NotDifferentiable
from onepass.egraph.terms.ops import exp, iota, load, max_over, sum_over
from onepass.egraph.terms.term import Dim, Tensor

I, J, D = Dim("i", 4), Dim("j", 5), Dim("d", 3)
q = load(Tensor("q", "float64", (4, 3)), iota(I), iota(D))
k = load(Tensor("k", "float64", (5, 3)), iota(J), iota(D))
g = load(Tensor("g", "float64", (4, 5)), iota(I), iota(J))
SCORES = sum_over(D, q * k)


def _of(results, *names):
    return {node.attrs[0].name: cotangent for node, cotangent in cotangents_of_loads(results, names)}


def test_a_product_of_matrices():
    assert _of({SCORES: g}, "q", "k") == {"q": sum_over(J, g * k), "k": sum_over(I, g * q)}


def test_only_what_is_wanted():
    assert _of({SCORES: g}, "k").keys() == {"k"}
    assert _of({SCORES: g}, "other") == {}


def test_each_use_adds_up():
    power = exp(SCORES)
    assert _of({power * SCORES: g}, "k")["k"] == sum_over(I, (g * power + g * SCORES * power) * q)


def test_results_that_share_a_value_add_up():
    assert _of({SCORES * 2.0: g, SCORES: g}, "k")["k"] == sum_over(I, (g + g * 2.0) * q)


def test_a_joint_is_simplified_once():
    asked = []
    keep = lambda node, cotangent: asked.append(node) or cotangent
    cotangents_of_loads({SCORES * SCORES: g}, ["q"], keep)
    assert asked.count(SCORES) == 1 and asked[-1] is q


def test_a_maximum_is_refused_where_a_cotangent_reaches_it():
    row = load(Tensor("r", "float64", (4,)), iota(I))
    with pytest.raises(NotDifferentiable, match="a largest element"):
        _of({max_over(J, SCORES): row}, "q")
    assert _of({max_over(J, SCORES) + sum_over(D, q): row}, "other") == {}


def test_rows_are_counted_where_something_changes():
    power = exp(SCORES)
    assert rows_used([power * g + power], {"q"}) == {"add": 1, "mul": 2, "exp": 1, "reduce": 1}
    assert rows_used([power * g], {"g"}) == {"mul": 1}
    assert not rows_used([power], {"other"})
