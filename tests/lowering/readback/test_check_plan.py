"""A plan that is read back says how; any other is refused with a reason. Results may be stored with other axes."""

from dataclasses import replace

import pytest

from onepass.egraph.terms.ops import const, iota, le, load, mantissa, rescaled_sum, sum_over, where
from onepass.egraph.terms.term import Dim, Tensor
from onepass.lowering.launch.axis_order import in_memory_order
from onepass.lowering.launch.split_loops import split_to_run
from onepass.lowering.plan.records import NotPlannable, Store
from onepass.lowering.planning.planner import plan_stores
from onepass.lowering.readback.check_plan import check, checked, differs, differs_in_order
from tests.support.plan_mutants import mutants


def attention(heads, rows, columns, width, shared=1):
    """Causal attention, aligned at the ends, whose query heads share keys: as stores and their plan."""
    h, i, j, d, e = (Dim(n, s) for n, s in zip("hijde", (heads, rows, columns, width, width), strict=True))
    own = lambda name, shape: Tensor(name, "float32", shape)
    groups = heads // shared if isinstance(heads, int) else heads
    group = iota(h) // const(shared) if shared > 1 else iota(h)
    q = load(own("q", (heads, rows, width)), iota(h), iota(i), iota(d))
    k = load(own("k", (groups, columns, width)), group, iota(j), iota(d))
    v = load(own("v", (groups, columns, width)), group, iota(j), iota(e))
    last = iota(i) + const(columns - rows) if isinstance(rows, int) else iota(i)
    scores = where(le(iota(j), last), sum_over(d, q * k) * const(0.25), const(-float("inf")))
    term = mantissa(rescaled_sum(j, scores, v)) / mantissa(rescaled_sum(j, scores, const(1.0)))
    stores = [Store(term, own("out", (heads, rows, width)), (h, i, e))]
    return stores, plan_stores(stores)


SHAPES = {
    "small": (2, 30, 30, 4),
    "long": (2, 100_000, 100_000, 64),
    "symbolic": ("h", "s0", "2*s0", 64),
    "grouped": (8, 1, 4096, 64, 4),
}


@pytest.mark.parametrize("name", SHAPES)
def test_a_plan_says_how_it_was_read_back(name):
    stores, plan = attention(*SHAPES[name])
    same = name != "grouped"
    assert checked(plan, stores).read_back.endswith("1 term as asked for" if same else "at sampled indices")
    assert {len(kernel.stores[0].order) for kernel in plan.kernels} == ({3} if same else {4})
    for kernel in plan.kernels:
        assert split_to_run(kernel) is not None


def test_a_plan_of_something_else_is_refused():
    stores, plan = attention(*SHAPES["small"])
    other = [replace(stores[0], term=stores[0].term * const(1.0000001))]
    for asked in (other, [], [replace(stores[0], output=replace(stores[0].output, dtype="float16"))]):
        with pytest.raises(NotPlannable, match="was not read back"):
            checked(plan, asked)
    assert "it was not read back" in differs(attention(*SHAPES["small"][:3], 8)[1], plan)


@pytest.mark.sampled(2)
@pytest.mark.parametrize("name", SHAPES)
def test_no_change_of_a_record_goes_unseen(name):
    """But for what changes nothing here: an exact range that is tested all the same, a finite mask where each row keeps
    something, what is added to zeros, totals that are only added up, rows that a tile holds whole, how limits of a
    single row move."""
    single = ("uppers: direction",) if name == "grouped" else ()
    harmless = (*single, "exact flag", "finite mask flag", "combined otherwise", "other totals", "rows are held")
    stores, plan = attention(*SHAPES[name])
    every = [(what, mutant) for what, mutant in mutants(plan) if what not in harmless]
    changed = [one for n, one in enumerate(every) if [what for what, _ in every[:n]].count(one[0]) < 2]
    unseen = []
    for what, mutant in changed:
        try:
            checked(mutant, stores)
            unseen.append(what)
        except NotPlannable:
            pass
    assert not unseen
    assert {"values reversed", "gauge scaled", "loop dropped"} <= {what for what, _ in changed}


def test_other_orders_of_axes_are_held_against_the_plan():
    stores, plan = attention(*SHAPES["small"])
    turned = in_memory_order(plan, {"k": (120, 1, 30), "out": (120, 1, 30)})
    assert {*turned.orders} == {"k", "out"}
    assert not differs_in_order(turned.plan, plan, turned.orders)
    assert differs_in_order(turned.plan, plan, {"k": turned.orders["k"]})
    assert differs_in_order(plan, plan, turned.orders)
    check(plan, stores)
