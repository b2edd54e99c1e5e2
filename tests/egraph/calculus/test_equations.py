"""Equations of named values: each in the normal form that those before it leave, and none for what is a value."""

import pytest

from onepass.egraph.calculus.equations import Equations, Laws, as_stored, require_none
from onepass.egraph.calculus.partials import NotDifferentiable
from onepass.egraph.calculus.reverse_mode import Result
from onepass.egraph.calculus.saved import Saved, read
from onepass.egraph.terms.ops import cast, exp, iota, load, max_over, maximum, sum_over
from onepass.egraph.terms.term import Dim, Tensor
from onepass.rules import GATHERED, NORMAL, SHIFT_FREE

I, J = Dim("i", 4), Dim("j", 5)
s = load(Tensor("s", "float64", (4, 5)), iota(I), iota(J))
LAWS = Laws(NORMAL, SHIFT_FREE, GATHERED)
TOTAL = sum_over(J, exp(s))


def _saved(name, term):
    return Saved(Tensor(name, "float64", (4,)), term, (I,))


def _known():
    known = Equations(LAWS)
    log = _saved("log", TOTAL)
    known.add(TOTAL, exp(read(log.tensor, log.order)), log)
    return known, read(log.tensor, log.order)


def test_a_form_becomes_its_named_value():
    known, log = _known()
    assert known.normaliser().normal(exp(s) / TOTAL) is exp(s - log)
    assert [rule.name for rule in known.rules] == ["saved_log"]


def test_a_later_equation_is_about_what_the_earlier_ones_leave():
    known, log = _known()
    row = _saved("row", TOTAL * 3.0)
    more = known.with_all([(TOTAL * 3.0, read(row.tensor, row.order), row)])
    assert more.rules[-1].left is exp(log) * 3.0 and len(known.rules) == 1


def test_a_value_needs_no_equation():
    known, log = _known()
    again = _saved("again", TOTAL)
    known.add(log, read(again.tensor, again.order), again)
    assert len(known.rules) == len(known.saved) == 1


def test_a_result_is_read_as_it_was_rounded():
    tensor = Tensor("o", "bfloat16", (4,))
    result = Result(cast(TOTAL, "bfloat16"), tensor, (I,), None)
    assert as_stored(result.term, result) == (TOTAL, cast(read(tensor, (I,)), "float64"))


def test_operations_that_may_not_be_differentiated_are_found():
    form = maximum(s, 0.0)
    with pytest.raises(NotDifferentiable, match="maximum is left"):
        require_none(["maximum"], [form], ["s"])
    require_none(["maximum"], [form, max_over(J, s)], ["other"])
