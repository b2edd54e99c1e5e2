"""The linear normal form of a body is the body, with coefficients that do not depend on the dim; it proves sums."""

import numpy as np
import pytest

from onepass import rule
from onepass.egraph import independent
from onepass.egraph.rewrite.rule import variables_of
from onepass.egraph.terms.evaluate import evaluate
from onepass.egraph.terms.ops import const, exp, make, max_over, maximum, sum_over, var, where
from onepass.proofs.check import check
from onepass.proofs.provers.linear_sums import MAX_PRODUCTS, as_operation, parts

X, Y, C, P = var("x"), var("y"), var("c"), var("p", "bool")
VALUES = {"x": np.array(1.5), "y": np.array(-0.75), "c": np.array(3.0), "p": np.array(True)}
BODIES = [
    (X - C) * (X - C),
    (X + Y) * C + 2.0,
    -(X / C - Y) * X,
    (X - C) ** 2.0,
    exp(X + C) * Y,
    where(P, (X + C) * Y, const(0.0)),
    C * C,
]


def depends(term) -> bool:
    return bool(variables_of(term) & {"x", "y", "p"})


@pytest.mark.parametrize("body", BODIES, ids=str)
def test_parts_add_up_to_the_body(body):
    found = parts(body, depends)
    assert sum(float(evaluate(part.whole, VALUES)) for part in found) == pytest.approx(float(evaluate(body, VALUES)))
    for part in found:
        assert not depends(part.coefficient)
        assert depends(part.moving) or part.moving is const(1.0)
    assert len({part.moving for part in found}) == len(found)


def test_what_has_the_form_already_or_is_too_large_has_no_parts():
    assert parts(X, depends) is None and parts(const(1.0), depends) is None
    large = X + Y
    for _ in range(4):
        large = large * (X + Y + C)
    assert 3**4 > MAX_PRODUCTS and parts(large, depends) is None


def test_a_magnitude_is_a_maximum():
    assert as_operation(make("abs", (X,)), "maximum") is maximum(X, -X)
    assert as_operation(make("abs", (X,)), "minimum") is make("abs", (X,))


@rule(when=lambda c: independent(c, of="j"), exact="scores are finite")
def moved_squares(x: "j", c):
    """Σ_j (x - c)² = Σ_j x² - 2 · c · Σ_j x + c² · Σ_j 1"""
    return sum_over("j", (x - c) * (x - c)), sum_over("j", x * x) - c * sum_over("j", x) * 2.0 + c * c * sum_over(
        "j", const(1.0)
    )


@rule(exact="scores are finite")
def moved_squares_without_guard(x: "j", c):
    """The same, where c may depend on j"""
    return moved_squares.left, moved_squares.right


@rule(exact="scores are finite")
def magnitude_of_both(x: "j", y: "j"):
    """max_j |x - y| = max(max_j (x - y), max_j (y - x))"""
    return max_over("j", abs(x - y)), maximum(max_over("j", x - y), max_over("j", y - x))


def test_sums_in_linear_form_are_proved_under_their_guards_only():
    assert check(moved_squares).status == check(magnitude_of_both).status == "proved"
    assert check(moved_squares_without_guard).status == "refuted"
