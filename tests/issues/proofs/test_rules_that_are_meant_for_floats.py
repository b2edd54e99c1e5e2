"""A rule about floats was unknown with "sqrt does not take an operand of dtype int64", and nothing else was said.

A rule is for every dtype unless a guard says another thing. The reason says what is proved, what is not, and the guard.
"""

import numpy as np
import pytest

from onepass import check, rule
from onepass.egraph import Tensor, has_dtype
from onepass.egraph.ops import load, make, maximum, sqrt
from onepass.egraph.rewrite.match import rewrite
from onepass.egraph.terms.evaluate import evaluate


def absolute(x):
    return make("abs", (x,))


@rule
def of_any(a):
    """|a| = √(a · a)"""
    return absolute(a), sqrt(a * a)


@rule
def of_two(a, b):
    """max(|a|, |b|) = √max(a · a, b · b)"""
    return maximum(absolute(a), absolute(b)), maximum(sqrt(a * a), sqrt(b * b))


@rule(when=lambda a: has_dtype(a, "float32"))
def of_floats(a):
    """|a| = √(a · a) for float32"""
    return absolute(a), sqrt(a * a)


@pytest.mark.parametrize(
    ("law", "guard"),
    [
        (of_any, 'when=lambda a: has_dtype(a, "float32")'),
        (of_two, 'when=lambda a, b: (has_dtype(a, "float32"), has_dtype(b, "float32"))'),
    ],
)
def test_what_is_undecided_is_said_with_the_way_out(law, guard):
    verdict = check(law)
    assert verdict.status == "unknown"
    assert verdict.reason.startswith("over the real numbers the sides are proved equal; but a rule is for every dtype")
    assert guard in verdict.reason


def test_the_way_out_is_one():
    assert check(of_floats).status == "proved"
    x = Tensor("x", "float32", ())
    found = rewrite(of_floats, absolute(load(x)))
    values = {"x": np.array(-2.5)}
    assert evaluate(found, values) == evaluate(absolute(load(x)), values) == 2.5
    assert rewrite(of_floats, absolute(load(Tensor("x", "int64", ())))) is None


def test_sides_of_unlike_values_are_not_called_equal():
    @rule
    def wrong(a):
        """|a| = √(a · a) + 10^-30"""
        return absolute(a), sqrt(a * a) + 1e-30

    verdict = check(wrong)
    assert verdict.status != "proved" and "proved equal" not in verdict.reason
