"""Which dims are the rows of a kernel, and the reason."""

from onepass.egraph.terms.ops import iota, load, sum_over
from onepass.egraph.terms.term import Dim, Tensor
from onepass.lowering.plan.records import Store
from onepass.lowering.planning.kernel_shape import ROW_PREFERENCES, DimFacts, kernel_shape
from onepass.lowering.planning.planner import build_plan
from tests.support.attention_terms import attention

I, J = Dim("i", 40), Dim("j", 30)


def test_the_reason_for_the_rows_is_that_of_the_first_preference_that_admits_a_dim():
    case = attention()
    store = Store(case.term, case.output, case.order)
    plan = build_plan(case.term, case.output, case.order)
    assert plan.shape_reasons == (f"{case.output.name}: the rows are i, {ROW_PREFERENCES[0].reason}",)
    facts = DimFacts([store], 256)
    assert [d.name for d in facts.order if ROW_PREFERENCES[0].admits(facts, d)] == ["i"]
    assert len({p.name for p in ROW_PREFERENCES}) == len(ROW_PREFERENCES)


def test_a_scalar_has_no_rows():
    total = sum_over(I, sum_over(J, load(Tensor("x", "float32", (40, 30)), iota(I), iota(J))))
    shape = kernel_shape((Store(total, Tensor("out", "float32", ()), ()),), 256)
    assert (shape.rows, shape.grid) == (None, ()) and "no dim" in shape.reason
