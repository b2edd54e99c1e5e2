"""A choice of two reductions by a predicate that does not vary along them was not decided: no theorem has two arms."""

import pytest

from onepass import check, independent, rule
from onepass.egraph.ops import max_over, sum_over, where


@rule(when=lambda p: independent(p, of="j"))
def choice_of_sums(p: "predicate", s: "j", t: "j"):
    """Σ_j where(p, s, t) = where(p, Σ_j s, Σ_j t) when p does not depend on j"""
    return sum_over("j", where(p, s, t)), where(p, sum_over("j", s), sum_over("j", t))


@rule(when=lambda p, q: (independent(p, of="j"), independent(q, of="j")))
def choice_by_two(p: "predicate", q: "predicate", s: "j", t: "j"):
    """max_j where(p ∧ q, s, t) = where(p, where(q, max_j s, max_j t), max_j t)"""
    high = max_over("j", t)
    return max_over("j", where(p & q, s, t)), where(p, where(q, max_over("j", s), high), high)


@pytest.mark.parametrize("law", [choice_of_sums, choice_by_two], ids=lambda law: law.name)
def test_a_choice_of_two_is_proved(law):
    assert check(law).status == "proved"


@rule
def choice_that_varies(p: "predicate", s: "j", t: "j"):
    """The same without the guard. Wrong: p may vary with j"""
    return sum_over("j", where(p, s, t)), where(p, sum_over("j", s), sum_over("j", t))


@rule(when=lambda p: independent(p, of="j"))
def choice_along_another_dim(p: "predicate", s: "j k", t: "j k"):
    """Σ_k Σ_j where(p, s, t) = where(p, Σ_k Σ_j s, Σ_k Σ_j t). Wrong: p may vary with k"""
    one, other = (sum_over("k", sum_over("j", x)) for x in (s, t))
    return sum_over("k", sum_over("j", where(p, s, t))), where(p, one, other)


@rule(when=lambda p: independent(p, of="j"))
def choice_with_swapped_arms(p: "predicate", s: "j", t: "j"):
    """Σ_j where(p, s, t) = where(p, Σ_j t, Σ_j s). Wrong"""
    return sum_over("j", where(p, s, t)), where(p, sum_over("j", t), sum_over("j", s))


@pytest.mark.parametrize("law", [choice_that_varies, choice_along_another_dim, choice_with_swapped_arms], ids=str)
def test_a_wrong_choice_is_refuted(law):
    assert check(law).status == "refuted"
