"""The passes of planning: their order, where each is, and what is printed after each."""

import inspect
import re
from dataclasses import replace

import pytest

from onepass.egraph.terms.ops import exp, iota, load, sum_over
from onepass.egraph.terms.term import Dim, Tensor
from onepass.egraph.terms.traversal import subterms
from onepass.lowering.planning import pipeline
from onepass.lowering.planning.planner import build_plan
from onepass.lowering.planning.planning_state import StoredPart
from onepass.lowering.planning.verify import CHECKS, WrongPlanning
from tests.support.attention_terms import attention

I, J = Dim("i", 40), Dim("j", 30)
X = load(Tensor("x", "float32", (40, 30)), iota(I), iota(J))
OUT = Tensor("out", "float32", (40,))
ORDER = {
    "terms": """split_flattened_dims rename_shadowed_dims reassociate_divisors multiply_out_addends
        sums_of_one_as_axes halve_sums
        merge_summed_dims order_nested_sums unroll_short_sums rename_bound_dims read_where_chosen
        share_softmax_scales leave_out_hidden_weights""",
    "shape": "group_rows merge_value_dims choose_kernel_shape",
    "cuts": "store_chosen store_parts split_chosen round_stored_sums",
    "kernels": """name_axes_alike group_stores build_loops finite_masks_as_guards attach_block_maps write_pairs_in_loops
        inline_producers share_totals mark_exact_products""",
}


def test_the_passes_are_these_in_this_order():
    assert [(p.stage, p.name) for p in pipeline.PASSES] == [(s, n) for s, names in ORDER.items() for n in names.split()]
    assert set(CHECKS) == set(ORDER)


@pytest.mark.parametrize("one", pipeline.PASSES, ids=lambda one: one.name)
def test_a_pass_is_one_function_of_one_module_of_planning(one):
    module = inspect.getmodule(one.run)
    assert module.__name__.startswith("onepass.lowering.planning.")
    assert one.run.__name__ == one.name and one.run.__doc__.startswith("A pass:") and one.invariant


def test_a_pass_that_breaks_its_stage_is_stopped(monkeypatch):
    broken = lambda planning: planning.with_terms(lambda term: X)
    passes = [replace(p, run=broken) if p.name == "unroll_short_sums" else p for p in pipeline.PASSES]
    monkeypatch.setattr(pipeline, "PASSES", passes)
    with pytest.raises(WrongPlanning, match="after the stage 'terms' of planning, the store of out depends on j"):
        build_plan(sum_over(J, X), OUT, (I,))


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
    assert re.search(r"out\[b0, b1, i, e\] = mantissa\(.* where t0 = ", text) and not re.search("= t0 = ", text)


def test_a_pass_over_a_store_names_the_store_and_a_part_is_finished_before_the_result(monkeypatch, capsys):
    monkeypatch.setenv(pipeline.PRINT_PASSES, "1")
    k = Dim("k", 4000)
    y = load(Tensor("y", "float32", (4000, 30)), iota(k), iota(J))
    plan = build_plan(sum_over(J, X * exp(sum_over(k, y))), OUT, (I,), held=8)
    assert [kernel.output.name for kernel in plan.kernels] == ["part0", "out"]
    text = capsys.readouterr().err
    assert "--- after cuts/store_parts on out\npart0[j] = " in text
    assert "store_parts" in plan.plan_passes


def test_a_part_that_a_pass_stores_goes_through_the_pass_as_well(monkeypatch):
    inner = sum_over(J, X)
    outer, other = exp(inner), exp(-inner)

    def cut(planning):
        parts = (outer, other) if planning.focus == "out" else (inner,) if planning.focus == "part0" else ()
        for part in parts:
            planning = planning.with_stored(StoredPart(part, "is cut by a test", shared=False))
        return planning

    passes = [p for p in pipeline.PASSES if p.stage != "cuts"]
    first = next(n for n, p in enumerate(passes) if p.stage == "kernels")
    passes.insert(first, pipeline.PlanPass("cut", "cuts", cut, "", each_store=True))
    monkeypatch.setattr(pipeline, "PASSES", tuple(passes))
    plan = build_plan(outer + other, OUT, (I,))
    stored = {s.output.name: s.term for kernel in plan.kernels for s in kernel.stores}
    assert {"part0", "part1", "part2", "out"} == set(stored)
    assert stored["part2"] is inner and inner not in set(subterms(stored["part0"]))
