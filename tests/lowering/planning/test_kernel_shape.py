"""Which dims are the rows of a kernel, and the reason."""

from onepass.egraph.terms.ops import iota, load, sum_over
from onepass.egraph.terms.term import Dim, Tensor
from onepass.lowering.plan.plan_choice import PlanChoice
from onepass.lowering.plan.records import Store
from onepass.lowering.planning.kernel_shape import SUITABLE, kernel_shape
from onepass.lowering.planning.planner import build_plan, normalised, plan_with, prepared
from onepass.lowering.planning.planning_state import Planning
from tests.support.attention_terms import attention

I, J = Dim("i", 40), Dim("j", 30)


def test_the_first_rows_have_a_reason():
    case = attention()
    plan = build_plan(case.term, case.output, case.order)
    assert plan.shape_reasons == (f"{case.output.name}: the rows are i, {SUITABLE[-1]}",)


def test_rows_that_were_chosen_are_those_of_kernels_with_these_results():
    case = attention()
    store = Store(case.term, case.output, case.order)
    values = case.order[-1]
    *_, kernel = plan_with(prepared(normalised([store]), PlanChoice(rows=((frozenset(case.order), values),)))).kernels
    assert kernel.rows == values and "i" in map(str, (*kernel.grid, *kernel.columns))
    others = frozenset(case.order[1:])  # of no kernel here
    (kernel,) = plan_with(prepared(normalised([store]), PlanChoice(rows=((others, values),)))).kernels
    assert str(kernel.rows) == "i"


def test_a_scalar_has_no_rows():
    total = sum_over(I, sum_over(J, load(Tensor("x", "float32", (40, 30)), iota(I), iota(J))))
    store = Store(total, Tensor("out", "float32", ()), ())
    shape = kernel_shape((store,), Planning.of([store], [total], 256))
    assert (shape.rows, shape.grid) == (None, ()) and "no dim" in shape.reason
