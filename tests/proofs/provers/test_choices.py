"""A rule is split by a predicate only where the predicate has one value along every dim that is reduced around it."""

from onepass.egraph import independent, rule
from onepass.egraph.ops import max_over, sum_over, where
from onepass.proofs.provers.choices import by_value


@rule(when=lambda p: independent(p, of="j"))
def choice(p: "predicate", s: "j", t: "j"):
    """Σ_j where(p, s, t) = where(p, Σ_j s, Σ_j t) when p does not depend on j"""
    return sum_over("j", where(p, s, t)), where(p, sum_over("j", s), sum_over("j", t))


@rule(when=lambda p: independent(p, of="j"))
def choice_inside_another(p: "predicate", s: "j k", t: "j k"):
    """max_k Σ_j where(p, s, t) = max_k where(p, Σ_j s, Σ_j t) when p does not depend on j"""
    split = where(p, sum_over("j", s), sum_over("j", t))
    return max_over("k", sum_over("j", where(p, s, t))), max_over("k", split)


def test_a_choice_is_its_arms():
    true, false = by_value(choice)
    (s, _), (t, _) = choice.variables[1:]
    assert (str(true.left), str(false.left)) == (f"Σ_j {s}", f"Σ_j {t}")
    assert true.left is true.right and false.left is false.right
    assert by_value(true) is None and not true.guards


def test_a_predicate_that_varies_along_an_outer_dim_is_not_split():
    assert by_value(choice_inside_another) is None
