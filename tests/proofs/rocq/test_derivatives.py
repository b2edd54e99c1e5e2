"""Statements of derivatives are written from the rows."""

import re

import pytest

from onepass.egraph.calculus.partials import PARTIALS
from onepass.proofs.rocq import derivatives
from onepass.proofs.rocq.statements import NotStated
from onepass.proofs.rocq_audit import committed


def said(op: str) -> list[str]:
    return [re.sub(r"\s+", " ", s.proposition) for s in derivatives.of_operation(op)]


def test_a_row_is_stated_for_each_operand():
    by_x, by_y = said("mul")
    assert by_x == (
        "forall (g : R) (y : R) (d : R) (x : R), "
        "derivable_pt_lim (fun x => real (times (Number x) (Number y))) x d -> "
        "is_finite (times (Number x) (Number y)) = true -> "
        "refines (times (Number g) (Number y)) (times (Number g) (Number d))"
    )
    assert "derivable_pt_lim (fun y => " in by_y


def test_a_choice_has_no_derivative_by_its_condition():
    assert len(said("where")) == 2 and all("(p : bool)" in text for text in said("where"))


@pytest.mark.parametrize("op", derivatives.operations())
def test_every_row_is_stated_or_listed_with_a_reason(op):
    try:
        assert said(op)
    except NotStated:
        assert f"derivative_of_{op}" in committed().unchecked


def test_a_number_that_no_operation_gives_has_a_hypothesis():
    (text,) = said("erf")
    assert "c = 2 / sqrt PI -> derivable_pt_lim (fun x => real (error_function (Number x))) x d ->" in text


def test_a_cast_changes_nothing_there_and_back():
    (text,) = said("cast")
    assert "changes_nothing to_float16 -> changes_nothing to_float32 -> derivable_pt_lim" in text
    assert "refines (to_float16 (Number g)) (times (Number g) (Number d))" in text


def test_a_wrong_row_differs_in_its_right_side():
    (right,), (wrong,) = (list(derivatives.of_operation("exp", times)) for times in (1.0, 2.0))
    assert wrong.proposition == right.proposition.replace("(Number d))", "(times (Number d) (Number 2)))")


def test_rows_of_constants_are_left_out():
    assert PARTIALS["floor"].op not in derivatives.operations() and "exp" in derivatives.operations()
