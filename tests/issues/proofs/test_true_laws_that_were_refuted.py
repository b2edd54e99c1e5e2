"""Rounding of float64 refuted true laws: 1 - sigmoid(50) is 0 there, and a product of tiny numbers is.

Where noise in the last places makes a finite result infinite, or a product of non-zero numbers vanishes, an instance
says nothing about real numbers.
"""

import pytest

from onepass import rule
from onepass.egraph.terms.ops import const, log, make, reduce, sum_over
from onepass.proofs.check import check


def sigmoid(x):
    return make("sigmoid", (x,))


@rule(exact="scores are finite")
def logit_of_sigmoid(x):
    """log(sigmoid(x) / (1 - sigmoid(x))) = x"""
    return log(sigmoid(x) / (1.0 - sigmoid(x))), x


@rule
def log_of_product(s: "j"):
    """Σ_j log s = log Π_j s where there are all logarithms"""
    return sum_over("j", log(s)), log(reduce("prod", "j", s))


@pytest.mark.parametrize("law", [logit_of_sigmoid, log_of_product], ids=lambda law: law.name)
def test_a_true_law_is_proved(law):
    assert check(law).status == "proved"


@rule(exact="scores are finite")
def logit_with_two(x):
    """log(sigmoid(x) / (2 - sigmoid(x))) = x. Wrong: x = 0"""
    return log(sigmoid(x) / (2.0 - sigmoid(x))), x


@rule
def log_of_any_product(s: "j"):
    """log Π_j s = Σ_j log s. Wrong: two negative numbers"""
    return log(reduce("prod", "j", s)), sum_over("j", log(s))


@rule(exact="scores are finite")
def quotient_of_itself(x):
    """x / x = 1, defined alike. Wrong: x = 0, however it is rounded"""
    return x / x, const(1.0)


@pytest.mark.parametrize("law", [logit_with_two, log_of_any_product, quotient_of_itself], ids=lambda law: law.name)
def test_a_false_one_beside_it_is_still_refuted(law):
    assert check(law).status == "refuted"
