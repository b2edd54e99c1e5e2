"""Verdicts: wrong rules are refuted with numbers, shipped rules are not, nothing is proved for want of an answer."""

import pytest

from onepass import rules
from onepass.egraph import constant, rule
from onepass.egraph.ops import max_over
from onepass.proofs.check import check


@rule(when=lambda c: constant(c))
def factor_out_of_max_unguarded(s: "j", c: "constant"):
    """max_j (s · c) = (max_j s) · c"""
    return max_over("j", s * c), max_over("j", s) * c


def test_a_wrong_rule_is_refuted_with_shapes_values_and_both_sides():
    verdict = check(factor_out_of_max_unguarded)
    assert verdict.status == "refuted" and verdict.seconds < 2
    found = verdict.counterexample
    assert set(found.shapes) == {"j"} and {"s", "c"} <= set(found.values)
    assert found.left != found.right
    assert "left side:" in str(verdict) and "right side:" in str(verdict)


@pytest.mark.parametrize("law", rules.ALL, ids=lambda law: law.name)
def test_no_shipped_rule_is_refuted(law):
    verdict = check(law, budget=0.3)
    assert verdict.status != "refuted", str(verdict)
