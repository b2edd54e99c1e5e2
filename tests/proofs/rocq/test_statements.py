"""Statements are what the record says: texts of a few, and what no statement may forget."""

import re

import pytest

from onepass.egraph import independent, nonzero, positive, rule
from onepass.egraph.terms.ops import const, eq, exp, make, mantissa, max_over, rescaled_sum, sum_over, where
from onepass.proofs.rocq.laws import claimed
from onepass.proofs.rocq.meanings import OPERATIONS
from onepass.proofs.rocq.statements import NotStated, literal, statements
from onepass.proofs.unsound_rules import ZOO
from onepass.rules import ALL, streaming

ONE_LINE = re.compile(r"\s+")


def said(law, nonempty=False, finite_backward=False) -> list[str]:
    return [ONE_LINE.sub(" ", s.proposition) for s in statements(law, nonempty, finite_backward)]


@rule(when=lambda c: independent(c, of="j"), both=True)
def factor(s: "j", c):
    """Σ_j s · c = (Σ_j s) · c"""
    return sum_over("j", s * c), sum_over("j", s) * c


def test_a_law_in_both_directions_is_two_statements():
    assert said(factor, nonempty=True, finite_backward=True) == [
        "forall (size_j : nat) (s : nat -> option R) (c : option R), (0 < size_j)%nat -> "
        "refines (sum_over size_j (fun j => (times (score (s j)) (score c)))) "
        "(times (sum_over size_j (fun j => (score (s j)))) (score c))",
        "forall (size_j : nat) (s : nat -> R) (c : R), (0 < size_j)%nat -> "
        "refines (times (sum_over size_j (fun j => (Number (s j)))) (Number c)) "
        "(sum_over size_j (fun j => (times (Number (s j)) (Number c))))",
    ]


def test_a_rescaled_sum_of_scores_that_may_be_absent():
    highest = "(highest_over size_j (fun j => (score (s j))))"
    stated = [ONE_LINE.sub(" ", s.proposition) for s in claimed(streaming.rescale_weighted_sum)]
    assert stated == [
        "forall (size_j : nat) (s : nat -> option R) (w : nat -> R), (0 < size_j)%nat -> (sum_over size_j (fun j => "
        f"(times (exponential (minus (score (s j)) {highest})) (Number (w j))))) = "
        "(mantissa_of (merged_over size_j (fun j => (scaled (score (s j)) (Number (w j))))))"
    ]


@rule
def without_guard(s: "j", c):
    """Σ_j s · c = (Σ_j s) · c, which is wrong"""
    return sum_over("j", s * c), sum_over("j", s) * c


def test_a_variable_without_a_guard_changes_along_the_dim_and_has_a_place_outside():
    (stated,) = said(without_guard)
    assert "(c : nat -> option R)" in stated and "forall j : nat, (j < size_j)%nat ->" in stated
    assert stated.count("(score (c j))") == 2


@rule(exact="bitwise")
def chosen(p: "predicate", a: "index", b: "index"):
    """where(p, a, b) + 1 = where(p, a + 1, b + 1)"""
    return where(p, a, b) + const(1), where(p, a + const(1), b + const(1))


def test_integers_and_truth_values_are_no_numbers():
    assert said(chosen) == [
        "forall (p : bool) (a : Z) (b : Z), "
        "(Z.add (choice p a b) (1)%Z) = (choice p (Z.add a (1)%Z) (Z.add b (1)%Z))"
    ]


@rule(when=lambda c, d: (positive(c), nonzero(d)), exact="scores are finite")
def signs(x, c: "constant", d: "constant"):
    """exp(x) · c / d = c · exp(x) / d"""
    return exp(x) * c / d, c * exp(x) / d


def test_guards_are_hypotheses():
    assert said(signs)[0].startswith("forall (x : R) (c : R) (d : R), 0 < c -> d <> 0 -> ")


@rule(exact="scores are finite")
def compared(s: "j"):
    """where(max_j s = 0, 1, 1) = 1 + (max_j s = 0 ? 0 : 0)"""
    asked = eq(max_over("j", s), const(0.0))
    return where(asked, const(1.0), const(1.0)), const(1.0) + where(asked, const(0.0), const(0.0))


def test_a_comparison_of_an_undefined_value_is_unknown():
    (stated,) = said(compared)
    assert "(unknown : value -> value -> bool)" in stated and "(equals unknown (highest_over" in stated


@rule
def named_like_a_definition(plus, score, unknown):
    """(plus · score) · unknown = plus · (score · unknown)"""
    return (plus * score) * unknown, plus * (score * unknown)


def test_no_variable_hides_a_definition():
    (stated,) = said(named_like_a_definition)
    assert "(times (score plus') (score score'))" in stated and "unknown'" in stated


@rule
def of_whole_numbers(a: "index"):
    """floor(-a) = -floor(a)"""
    return make("floor", (-a,)), -make("floor", (a,))


def test_an_operation_without_a_meaning_is_not_stated():
    with pytest.raises(NotStated, match="floor of Z"):
        said(of_whole_numbers)


def test_literals_are_exact():
    assert [literal(x) for x in (0.1, -2.0, 0.5, float("inf"), float("-inf"), float("nan"), True, -3)] == [
        "(Number (3602879701896397 / 36028797018963968))",
        "(Number (-2))",
        "(Number (1 / 2))",
        "Above",
        "Below",
        "Undefined",
        "true",
        "(-3)%Z",
    ]


@pytest.mark.parametrize("law", ALL, ids=lambda law: law.name)
def test_every_shipped_law_is_stated_with_its_variables_and_guards(law):
    stated = claimed(law)
    assert stated and len({s.name for s in stated}) == len(stated)
    for statement in stated:
        binders = statement.proposition.partition(",\n")[0]
        for name, kind in law.variables:
            written = f"(size_{name} :" if kind == "new dim" else f"({name} :"
            assert kind in ("monoid", "name") or written in binders or f"(to_{name} :" in binders
    guards = {g.kind for g in law.guards}
    assert ("0 <" in stated[0].proposition) or "positive" not in guards
    assert ("size_j = (" in stated[0].proposition) == bool(guards & {"in_blocks", "in_two"})
    assert ("<> 0" in stated[0].proposition) or "nonzero" not in guards or law.exact == "sizes are positive"


def test_a_guard_makes_another_statement():
    shipped = {law.name: law for law in ALL}
    twins = [law for law in ZOO if law.name in shipped]
    assert len(twins) >= 5
    for law in twins:
        assert said(law) != said(shipped[law.name])


def test_a_state_has_no_meaning_as_a_number():
    assert "value" not in OPERATIONS["mantissa"] and "value" in OPERATIONS["scaled"]
    assert mantissa(rescaled_sum("j", const(0.0), const(1.0))).op == "mantissa"
