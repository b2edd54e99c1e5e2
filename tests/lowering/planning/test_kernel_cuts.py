"""A cut is the law read(stored(x)) = x: whatever is stored or computed again, a plan is read back as what was asked.

What no kernel can compute with the rest is stored in any case.
"""

import pytest
import torch

from onepass.egraph.terms.ops import exp, iota, load, make, sum_over
from onepass.egraph.terms.term import Dim, Tensor, Term
from onepass.egraph.terms.traversal import subterms, tensors
from onepass.lowering.plan.plan_choice import PlanChoice
from onepass.lowering.plan.records import NotPlannable, Store
from onepass.lowering.planning.planner import normalised, plan_stores, plan_with, prepared
from onepass.lowering.planning.planning_state import StoredPart
from onepass.lowering.readback.check_plan import check
from onepass.lowering.tiled.executor import tiled_results
from tests.support.attention_terms import one_pass
from tests.support.read_plans import plans_of
from tests.variants import every

VARIANTS = ("relative keys and values", "invariant points", "weights beside the output", "talking heads", "T5 bias")
H, I, J, E, K = Dim("h", 4), Dim("i", 600), Dim("j", 500), Dim("e", 16), Dim("k", 700)


def read(name: str, *dims: Dim) -> Term:
    return load(Tensor(name, "float32", tuple(d.size for d in dims)), *map(iota, dims))


def parts(plan) -> list[Store]:
    results = {output.name for output in plan.outputs}
    return [s for kernel in plan.kernels for s in kernel.stores if s.output.name not in results]


@pytest.mark.sampled(2)
@pytest.mark.parametrize("name", VARIANTS)
def test_what_is_stored_to_save_time_may_be_computed_again(name):
    """Each set alone, then all of them: fewer parts, and the same results."""
    (variant,) = (one for one in every() if one.name == name)
    tried = 0
    for stores, _ in plans_of(variant.functions[0], variant.inputs(), derivatives=False):
        planning = prepared(normalised(stores))
        own = plan_with(planning)
        for sets in ([one.terms] for one in own.saving):
            plan = plan_with(planning, choice=PlanChoice(computed=frozenset(term for one in sets for term in one)))
            assert len(parts(plan)) < len(parts(own))
            check(plan, stores)
            tried += 1
        all_again = frozenset(term for one in own.saving for term in one.terms)
        check(plan_with(planning, choice=PlanChoice(computed=all_again)), stores)
    assert tried or name == "T5 bias"  # 300 rows are too few for a table


def test_a_loop_inside_of_a_loop_is_stored_whatever_is_chosen():
    """A loop knows no index of another one: each row j of a softmax over k is weighed by x[i, j], for long j and k."""
    total = sum_over(J, read("x", I, J) * one_pass(K, read("s", I, J, K), read("v", K, E)))
    store = Store(total, Tensor("out", "float32", (600, 16)), (I, E))
    own = plan_stores([store])
    assert parts(own) and own.saving == ()
    assert [note for note in own.notes if note.endswith("around it, and no kernel can compute it with the rest")]
    every_term = frozenset(node for part in parts(own) for node in subterms(part.term))
    again = plan_with(prepared(normalised([store])), choice=PlanChoice(computed=every_term | {*subterms(total)}))
    assert again.kernels == own.kernels


def test_a_stored_sum_is_read_by_every_store_under_other_names_of_dims():
    first, second = (sum_over(d, read("x", H, d, E) * read("y", H, d, E)) for d in (J, Dim("l", 500)))
    stores = [
        Store(exp(first) * read("a", H, I, E), Tensor("one", "float32", (4, 600, 16)), (H, I, E)),
        Store(exp(-second) * read("b", H, I, E), Tensor("two", "float32", (4, 600, 16)), (H, I, E)),
    ]
    planning = prepared(normalised(stores)).with_stored(StoredPart(first, "is stored by a test"))
    (name,) = {store.output.name for store in planning.stores} - {"one", "two"}
    readers = [store.output.name for store in planning.stores if name in {t.name for t in tensors(store.term)}]
    assert planning.stores[0].output.name == name and readers == ["one", "two"]


def test_what_no_store_has_is_not_stored():
    planning = prepared(normalised([Store(exp(read("x", I)), Tensor("out", "float32", (600,)), (I,))]))
    assert planning.with_stored(StoredPart(read("y", I), "is nowhere")) is planning


# Reductions in parts

PARTED = Dim("b", 24)


def in_parts(monoid: str, count: int, dtype: str = "float32", *names: str):
    """The plan of a reduction over 24 in so many parts, and the stores. names: of dims of the result."""
    x = load(Tensor("x", dtype, (24, 40, 30)), iota(PARTED), iota(Dim("i", 40)), iota(Dim("j", 30)))
    axes = (Dim("i", 40), Dim("j", 30), *(Dim(name, 24 // count) for name in names))
    total = make("reduce", (x,), (monoid, PARTED))
    for dim in axes[2:]:
        total = total + load(Tensor(dim.name, dtype, (dim.size,)), iota(dim))
    stores = [Store(total, Tensor("out", dtype, tuple(d.size for d in axes)), axes)]
    return plan_with(prepared(normalised(stores)), choice=PlanChoice(split=(("out", PARTED, count),))), stores


@pytest.mark.parametrize("count", [2, 4, 12])
@pytest.mark.parametrize("monoid", ["sum", "max", "min", "prod"])
def test_a_reduction_in_parts_is_the_reduction(monoid, count):
    plan, stores = in_parts(monoid, count)
    check(plan, stores)
    (part,) = parts(plan)
    assert part.output.shape == (count, 40, 30) and part.order[0].size == count
    values = {"x": torch.randn(24, 40, 30, generator=torch.Generator().manual_seed(0))}
    (found,) = tiled_results(plan, values)
    exact = {"sum": torch.sum, "prod": torch.prod, "max": torch.amax, "min": torch.amin}[monoid]
    torch.testing.assert_close(found, exact(values["x"], 0))


def test_dims_of_parts_have_names_of_their_own():
    plan, stores = in_parts("sum", 4, "float32", "b_rest")
    check(plan, stores)
    assert {d.size for d in parts(plan)[0].order} == {4, 40, 30}


def test_parts_that_are_not_equal_are_refused():
    with pytest.raises(NotPlannable, match="in 7 parts"):
        in_parts("sum", 7)
