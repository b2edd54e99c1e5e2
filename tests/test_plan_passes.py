"""The passes of planning: their order, where each is, what the verifiers find, and what is printed."""

import inspect
from dataclasses import replace

import pytest

from onepass.egraph.terms.ops import exp, iota, load, sum_over
from onepass.egraph.terms.term import Dim, Tensor, Term
from onepass.lowering.plan.records import Store
from onepass.lowering.planning import pipeline
from onepass.lowering.planning.kernel_shape import ROW_PREFERENCES, DimFacts, kernel_shape
from onepass.lowering.planning.planner import build_plan
from onepass.lowering.planning.planning_state import KernelShape, Planning
from onepass.lowering.planning.verify import CHECKS, WrongPlanning, verify
from tests.attention_terms import attention

ORDER = {
    "terms": """split_flattened_dims rename_shadowed_dims reassociate_divisors merge_summed_dims unroll_short_sums
        rename_bound_dims share_softmax_scales""",
    "shape": "group_rows merge_value_dims choose_kernel_shape",
    "cuts": """tabulate_lookups store_cross_batch_scores store_nested_loops store_blocking_products store_other_rows
        store_row_invariants tabulate_relative_values""",
    "kernels": """group_stores build_loops finite_masks_as_guards attach_block_maps inline_producers
        mark_exact_products""",
}


def test_the_passes_are_these_in_this_order():
    assert [(p.stage, p.name) for p in pipeline.PASSES] == [(s, n) for s, names in ORDER.items() for n in names.split()]
    assert set(CHECKS) == set(ORDER)


@pytest.mark.parametrize("one", pipeline.PASSES, ids=lambda one: one.name)
def test_a_pass_is_one_function_of_one_module_of_planning(one):
    module = inspect.getmodule(one.run)
    assert module.__name__.startswith("onepass.lowering.planning.")
    assert one.run.__name__ == one.name and one.run.__doc__.startswith("A pass:") and one.invariant


# Verifiers

I, J, E = Dim("i", 40), Dim("j", 30), Dim("e", 8)
X = load(Tensor("x", "float32", (40, 30)), iota(I), iota(J))
OUT = Tensor("out", "float32", (40,))


def state(term: Term, output: Tensor = OUT, order: tuple[Dim, ...] = (I,), **values) -> Planning:
    return replace(Planning.of([Store(term, output, order)], [term], 256), **values)


def shadowed() -> Term:
    """Σ_j x[i, j] · Σ_e y[e, j] · Σ_j x[i, j]: the innermost sum binds j, which is free in the sum around it."""
    y = load(Tensor("y", "float32", (8, 30)), iota(E), iota(J))
    return sum_over(J, X * sum_over(E, y * sum_over(J, X)))


GOOD = sum_over(J, X)
SHAPE = {"out": KernelShape(I, (), ())}
KERNELS = pipeline.run_passes(state(GOOD)).kernels
WRONG = [
    ("terms", state(X), "the store of out depends on j"),
    ("terms", state(GOOD, Tensor("out", "float32", (40, 40)), (I, I)), "the store of out has 2 axes for the dims i, i"),
    ("terms", state(GOOD * Term("var", attrs=("x",))), "the store of out has the free variables x"),
    (
        "terms",
        state(sum_over(I, X), order=(J, I), output=Tensor("out", "float32", (30, 40))),
        "the axis i, which a red",
    ),
    ("terms", state(shadowed()), "the store of out has two reductions over j"),
    ("shape", state(GOOD), "the store of out has no shape"),
    ("shape", state(GOOD, shapes={"out": KernelShape(I, (I,), ())}), "the shape of the store of out does not give"),
    ("kernels", state(GOOD, kernels=()), "the store of out is in 0 kernels"),
    ("kernels", state(GOOD, kernels=(*KERNELS, *KERNELS)), "the store of out is in 2 kernels"),
    ("kernels", state(GOOD, kernels=(replace(KERNELS[0], grid=(I,)),)), "kernel0 has i both as grid and as rows"),
    ("kernels", state(GOOD, kernels=(replace(KERNELS[0], rows=None),)), "kernel0 gives i of the store of out no role"),
]


@pytest.mark.parametrize("stage, wrong, message", WRONG)
def test_a_wrong_state_is_found(stage, wrong, message):
    with pytest.raises(WrongPlanning, match=f"after the stage '{stage}' of planning, .*{message}"):
        verify(wrong, stage)


def test_a_store_that_reads_a_later_one_is_found():
    part = Tensor("part0", "float32", (40,))
    reader, writer = Store(load(part, iota(I)), OUT, (I,)), Store(GOOD, part, (I,))
    wrong = Planning.of([reader, writer], [reader.term], 256)
    wrong = replace(wrong, results=("out",), shapes={"out": SHAPE["out"], "part0": SHAPE["out"]})
    verify(replace(wrong, stores=wrong.stores[::-1]), "cuts")
    with pytest.raises(WrongPlanning, match="the store of out reads part0, which is stored later"):
        verify(wrong, "cuts")
    kernels = [
        replace(KERNELS[0], name=s.output.name, stores=(s,), inputs=(part,)[: s is reader]) for s in wrong.stores
    ]
    verify(replace(wrong, kernels=tuple(kernels[::-1])), "kernels")
    with pytest.raises(WrongPlanning, match="out reads part0, which a later kernel stores"):
        verify(replace(wrong, kernels=tuple(kernels)), "kernels")


def test_a_pass_that_breaks_its_stage_is_stopped(monkeypatch):
    broken = lambda planning: planning.with_terms(lambda term: X)
    passes = [replace(p, run=broken) if p.name == "unroll_short_sums" else p for p in pipeline.PASSES]
    monkeypatch.setattr(pipeline, "PASSES", passes)
    with pytest.raises(WrongPlanning, match="after the stage 'terms' of planning, the store of out depends on j"):
        build_plan(GOOD, OUT, (I,))


# What is printed and noted


def test_the_variable_prints_the_plan_after_each_pass_that_changed_something(monkeypatch, capsys):
    case = attention()
    monkeypatch.delenv(pipeline.PRINT_PASSES, raising=False)
    plan = build_plan(case.term, case.output, case.order)
    assert capsys.readouterr().err == ""
    monkeypatch.setenv(pipeline.PRINT_PASSES, "1")
    assert build_plan(case.term, case.output, case.order) == plan
    text = capsys.readouterr().err
    headings = [line.split()[2].split("/")[1] for line in text.splitlines() if line.startswith("--- after ")]
    assert tuple(dict.fromkeys(headings)) == plan.plan_passes
    assert {"choose_kernel_shape", "group_stores", "build_loops"} <= {*headings}
    assert "kernel0: grid (b0, b1), rows i, held (d, e), loops over (j)" in text


def test_a_pass_over_a_store_names_the_store_and_a_part_is_finished_before_the_result(monkeypatch, capsys):
    monkeypatch.setenv(pipeline.PRINT_PASSES, "1")
    k = Dim("k", 4000)
    y = load(Tensor("y", "float32", (4000, 30)), iota(k), iota(J))
    plan = build_plan(sum_over(J, X * exp(sum_over(k, y))), OUT, (I,), held=8)
    assert [kernel.output.name for kernel in plan.kernels] == ["part0", "out"]
    text = capsys.readouterr().err
    assert "--- after cuts/store_nested_loops on out\npart0[j] = " in text
    assert "store_nested_loops" in plan.plan_passes


def test_the_reason_for_the_rows_is_that_of_the_first_preference_that_admits_a_dim():
    case = attention()
    store = Store(case.term, case.output, case.order)
    plan = build_plan(case.term, case.output, case.order)
    assert plan.shape_reasons == (f"{case.output.name}: the rows are i, {ROW_PREFERENCES[0].reason}",)
    facts = DimFacts([store], 256)
    assert [d.name for d in facts.order if ROW_PREFERENCES[0].admits(facts, d)] == ["i"]
    assert len({p.name for p in ROW_PREFERENCES}) == len(ROW_PREFERENCES)


def test_a_scalar_has_no_rows():
    total = sum_over(I, sum_over(J, X))
    shape = kernel_shape((Store(total, Tensor("out", "float32", ()), ()),), 256)
    assert (shape.rows, shape.grid) == (None, ()) and "no dim" in shape.reason
