"""Estimates of whole plans: what is faster by more than their error, and where nothing else is tried."""

from dataclasses import replace
from math import inf

import pytest

from onepass.egraph.terms.ops import iota, load, sum_over
from onepass.egraph.terms.term import Dim, Tensor
from onepass.lowering.cost import estimated_plan, plan_cost
from onepass.lowering.cost.estimated_plan import Estimator, another_form_could_pay, nominal_sizes, takes_less_time
from onepass.lowering.plan.records import Store
from onepass.lowering.planning.planner import plan_stores
from tests.support.gluon_ahead_of_time import backward_plan_of


def in_order(first: bool, length: int | str) -> tuple[Store, ...]:
    """q · k · v, either with k · v first, or with a number for each pair."""
    dims = {name: Dim(name, size) for name, size in dict(b=32, i=length, j=length, d=64, e=64).items()}
    b, i, j, d, e = dims.values()
    of = lambda name, *axes: load(Tensor(name, "bfloat16", tuple(x.size for x in axes)), *map(iota, axes))
    q, k, v = of("q", b, i, d), of("k", b, j, d), of("v", b, j, e)
    by_state = sum_over(d, q * sum_over(j, k * v))
    by_pairs = sum_over(j, sum_over(d, q * k) * v)
    return (Store(by_state if first else by_pairs, Tensor("out", "float32", (32, length, 64)), (b, i, e)),)


@pytest.mark.parametrize("length", [4096, "n"])
def test_the_form_of_less_work_takes_less_time(length):
    state, pairs = in_order(True, length), in_order(False, length)
    one, other = plan_stores(state), plan_stores(pairs)
    assert takes_less_time(one, other, state) == (length == 4096), "with 128 rows there is nothing to gain"
    assert not takes_less_time(other, one, state) and not takes_less_time(one, one, state)


def test_short_plans_are_left_alone():
    for length, could in ((64, False), (4096, True)):
        pairs = in_order(False, length)
        assert another_form_could_pay(plan_stores(pairs), pairs) == could


def test_joined_kernels_that_need_their_tiles_are_settled():
    plan = backward_plan_of("full", 64, rows=4096, columns=4096, batch=4, heads=32)
    found = Estimator([{}])(plan)
    assert found.is_settled and found.could_change and found.joined and not another_form_could_pay(plan, ())
    apart = estimated_plan.PlanEstimates(plan, found.kernels)
    assert found.seconds[0] < apart.seconds[0] and found.pays(apart) and not apart.pays(found)
    assert not apart.is_settled and found.share_of(apart) == pytest.approx(1 / apart.share_of(found))


def test_a_plan_that_cannot_be_written_gives_way_to_one_of_twice_its_time(monkeypatch):
    pairs = in_order(False, 4096)
    found = Estimator([{}])(plan_stores(pairs))
    (own,) = found.seconds
    assert found.beaten_by(own / 1.2) and not found.beaten_by(own)
    monkeypatch.setattr(estimated_plan.PlanEstimates, "has_texts", False)
    found = Estimator([{}])(plan_stores(pairs))
    assert found.beaten_by(own) and found.beaten_by(2 * own / 1.2) and not found.beaten_by(2 * own)


def test_texts_are_written_only_where_they_decide(monkeypatch):
    written = []
    monkeypatch.setattr(estimated_plan, "_has_text", lambda kernel: bool(written.append(kernel.name)) or True)
    found = Estimator([{}])(plan_stores(in_order(False, 4096)))
    (own,) = found.seconds
    assert found.beaten_by(own / 2) and not found.beaten_by(3 * own) and not written
    assert not found.beaten_by(own) and written


def test_symbols_have_several_sizes_and_all_count():
    assert nominal_sizes(in_order(True, "n")) == [{"n": 128}, {"n": 1024}, {"n": 8192}]
    assert nominal_sizes(in_order(True, 64)) == [{}]
    found = Estimator(nominal_sizes(in_order(False, "n")))(plan_stores(in_order(False, "n")))
    assert len(found.seconds) == 3 and found.seconds[0] < found.seconds[2] < inf
    assert all(more > less for more, less in zip(found.needed[1:], found.needed, strict=False))


def test_each_kernel_is_estimated_once(monkeypatch):
    plan = plan_stores(in_order(True, 4096))
    first = Estimator([{}])(plan)
    monkeypatch.setattr(plan_cost, "estimate", None)
    again = Estimator([{}])(replace(plan, notes=("the same kernels",)))
    assert again.seconds == first.seconds
    with pytest.raises(TypeError):
        Estimator([{}])(plan_stores(in_order(True, 2048)))


def test_sizes_that_nobody_knows_decide_nothing():
    stores = in_order(False, "n")
    estimator = Estimator([{}])
    with pytest.raises(Exception, match="n"):
        estimator(plan_stores(stores))


@pytest.mark.parametrize(("length", "runs"), [(2048, "joined"), (8192, "apart")])
def test_kernels_that_run_apart_are_estimated_apart(length, runs):
    """One head of long rows has too few programs for one kernel."""
    plan = backward_plan_of("full", 128, batch=1, heads=1, rows=length, columns=length)
    found = Estimator([{}])(plan)
    assert (found.joined == found.kernels) == (runs == "apart")
