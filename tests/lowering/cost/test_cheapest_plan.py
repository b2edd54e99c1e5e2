"""The plan of the least estimated time computes what the planner's own does, and is taken only where it pays."""

from collections.abc import Iterator
from contextlib import suppress
from itertools import chain, combinations, product
from math import inf

import numpy as np
import pytest

from onepass.egraph.terms.evaluate import evaluate
from onepass.egraph.terms.ops import make, sum_over
from onepass.egraph.terms.term import Dim, Tensor, Term
from onepass.lowering.cost import cheapest_plan as module
from onepass.lowering.cost import estimated_plan
from onepass.lowering.cost.candidates import candidates, in_order
from onepass.lowering.cost.cheapest_plan import MAX_CANDIDATES_TOGETHER, cheapest_plan
from onepass.lowering.cost.plan_cost import plan_estimate, total_seconds
from onepass.lowering.plan.plan_choice import PlanChoice
from onepass.lowering.plan.records import NotPlannable, Plan, Store
from onepass.lowering.plan.thresholds import MAX_RESIDENT_ELEMENTS, MAX_STORED_BYTES
from onepass.lowering.planning.planner import normalised, plan_stores, plan_with, prepared
from onepass.lowering.planning.verify import WrongPlanning
from tests.support.attention_terms import loaded, one_pass
from tests.support.read_plans import plans_of
from tests.variants import every


def dims(**sizes) -> list[Dim]:
    return [Dim(*item) for item in sizes.items()]


def tensor(name: str, *axes: Dim, dtype: str = "bfloat16") -> Term:
    return loaded(Tensor(name, dtype, tuple(d.size for d in axes)), *axes)


def shared_prefix(sequences, prefix: object = 16384, own: object = 256, dtype: str = "bfloat16") -> list[Store]:
    """One query for each sequence, over keys that all share and over keys of its own; the states are merged."""
    b, h, i, x, y, d, e = dims(b=sequences, h=8, i=1, x=prefix, y=own, d=64, e=64)
    q = tensor("q", b, h, i, d, dtype=dtype)
    attend = lambda j, keys, values: one_pass(j, sum_over(d, q * keys), values)
    shared = attend(x, tensor("kp", h, x, d, dtype=dtype), tensor("vp", h, x, e, dtype=dtype))
    mine = attend(y, tensor("ks", b, h, y, d, dtype=dtype), tensor("vs", b, h, y, e, dtype=dtype))
    return [Store(shared + mine, Tensor("out", "float32", (sequences, 8, 1, 64)), (b, h, i, e))]


def distances(length: int, dtype: str = "bfloat16") -> list[Store]:
    """Softmax of distances over the keys, and over the queries: 64 subtractions a score, in two loops."""
    h, i, j, a, d, c, e = dims(h=8, i=length, j=length, a=length, d=length, c=64, e=64)
    read = lambda name, *axes: tensor(name, *axes, dtype=dtype)
    far = lambda i, j: -sum_over(c, make("abs", (read("x", h, i, c) - read("y", h, j, c),)))
    over_keys, over_queries = one_pass(j, far(i, j), read("v", h, j, e)), one_pass(a, far(a, d), read("w", h, a, e))
    made = lambda name, rows, term: Store(term, Tensor(name, "float32", (8, length, 64)), (h, rows, e))
    return [made("over_keys", i, over_keys), made("over_queries", d, over_queries)]


def attention(length: int) -> list[Store]:
    b, h, i, j, d, e = dims(b=4, h=32, i=length, j=length, d=64, e=64)
    scores = sum_over(d, tensor("q", b, h, i, d) * tensor("k", b, h, j, d))
    output = Tensor("out", "float32", (4, 32, length, 64))
    return [Store(one_pass(j, scores, tensor("v", b, h, j, e)), output, (b, h, i, e))]


def milliseconds(plan: Plan, sizes=None) -> float:
    return 1e3 * total_seconds(plan_estimate(plan, sizes))


def loops(plan: Plan) -> list[list[str]]:
    return [[loop.dim.name for loop in kernel.loops] for kernel in plan.kernels]


def computed(plan: Plan, inputs: dict[str, np.ndarray]) -> list[np.ndarray]:
    """The results of a plan, store by store, in float64."""
    known = dict(inputs)
    for kernel in plan.kernels:
        for store in kernel.stores:
            known[store.output.name] = evaluate(store.term, known, store.order)
    return [known[output.name] for output in plan.outputs]


# What is chosen


def test_a_prefix_is_read_once_for_all_sequences():
    stores = shared_prefix(64)
    own, plan = plan_stores(stores), cheapest_plan(stores)
    assert loops(own) == [["x", "y"]] and sorted(loops(plan)) == [["x"], ["y"]]
    (shared,) = (kernel for kernel in plan.kernels if kernel.loops[0].dim.name == "x")
    assert shared.rows == Dim("b", 64)  # a tile of sequences reads the shared keys together
    assert milliseconds(plan) < milliseconds(own) / 5
    assert any("takes less time in a kernel of its own" in note for note in plan.notes)
    (saved,) = plan.saving
    assert saved.by_cost and saved.share == pytest.approx(milliseconds(own) / milliseconds(plan))
    assert str(saved).startswith(f"without {', '.join(saved.names)} the plan would take {saved.share:.3g} times as")


def test_one_sequence_has_nothing_to_share():
    stores = shared_prefix(1, prefix=512)
    assert cheapest_plan(stores) == plan_stores(stores)


def test_scores_that_two_loops_compute_are_stored():
    stores = distances(1024)
    own, plan = plan_stores(stores), cheapest_plan(stores)
    assert loops(own) == [["j"], ["a"]]
    (scores,) = {s.output for k in plan.kernels for s in k.stores} - {s.output for s in stores}
    assert scores.shape == (8, 1024, 1024) and milliseconds(plan) < milliseconds(own) / 1.2


def test_scores_that_take_much_memory_are_not_stored():
    stores = distances(4096)
    assert 4 * 8 * 4096**2 > MAX_STORED_BYTES and cheapest_plan(stores) == plan_stores(stores)


@pytest.mark.parametrize("length", [64, 1024, 4096, 16384])
def test_attention_stays_one_kernel_and_nothing_else_is_planned(length, monkeypatch):
    """No store could pay: its bytes alone take longer."""
    monkeypatch.setattr(module._Search, "_planned", None)
    assert len(cheapest_plan(attention(length)).kernels) == 1


def test_symbolic_sizes_need_a_gain_at_every_size():
    assert sorted(loops(cheapest_plan(shared_prefix("n")))) == [["x"], ["y"]]
    assert loops(cheapest_plan(shared_prefix("n", prefix="m", own="m"))) == [["x", "y"]]  # 128 keys do not pay


def test_an_estimate_that_is_no_better_changes_nothing(monkeypatch):
    monkeypatch.setattr(estimated_plan, "LEAST_GAIN", inf)
    assert cheapest_plan(shared_prefix(64)) == plan_stores(shared_prefix(64))


def test_what_was_tried_and_not_taken_is_said(monkeypatch):
    taken = cheapest_plan(shared_prefix(64))
    assert all(one.stored or one.rows for one in taken.alternatives)
    assert min(one.share for one in taken.alternatives) * estimated_plan.LEAST_GAIN >= 1
    monkeypatch.setattr(module._Found, "pays", lambda *_: False)
    kept = cheapest_plan(shared_prefix(64))
    assert kept == plan_stores(shared_prefix(64)) and min(one.share for one in kept.alternatives) < 1 / 5


def state_of_keys(length: int) -> list[Store]:
    """Linear attention: the products of keys and values are summed for each head, then queries read the sums."""
    b, h, i, j, d, e = dims(b=8, h=32, i=length, j=length, d=64, e=64)
    output = Tensor("out", "float32", (8, 32, length, 64))
    moved = sum_over(d, tensor("q", b, h, i, d) * sum_over(j, tensor("k", b, h, j, d) * tensor("v", b, h, j, e)))
    total = sum_over(d, tensor("q", b, h, i, d) * sum_over(j, tensor("k", b, h, j, d)))
    return [Store(moved / total, output, (b, h, i, e))]


def test_rows_are_changed_where_two_loops_then_are_one():
    """The sums of keys times values, and of keys, over the same loop: with d as rows, one kernel computes both."""
    stores = state_of_keys(2048)
    own, plan = plan_stores(stores), cheapest_plan(stores)
    assert len(own.kernels) == 3 and len(plan.kernels) == 2
    assert milliseconds(plan) * estimated_plan.LEAST_GAIN < milliseconds(own)
    assert any(note.startswith("rows chosen by estimated time") for note in plan.notes)


def test_rows_of_plans_as_short_as_launches_stay():
    """Estimates of small kernels are off by a factor, so they decide nothing."""
    b, h, i, j, d, e = dims(b=1, h=4, i=64, j=64, d=64, e=64)
    far = sum_over(d, make("abs", (tensor("x", b, h, i, d) - tensor("y", b, h, j, d),)))
    output = Tensor("out", "float32", (1, 4, 64, 64))
    plan = cheapest_plan([Store(one_pass(j, -far, tensor("v", b, h, j, e)), output, (b, h, i, e))])
    assert plan.kernels[0].rows == i and not any(one.rows for one in plan.alternatives)


def test_a_plan_without_a_text_is_not_taken(monkeypatch):
    monkeypatch.setattr(module._Found, "has_texts", False)
    assert cheapest_plan(state_of_keys(2048)) == plan_stores(state_of_keys(2048))


def test_what_a_cut_stores_is_computed_again_where_that_takes_less_time(monkeypatch):
    """Each of the planner's own cuts is tried, and named among what was not taken; here one of them is made to pay."""
    (variant,) = (one for one in every() if one.name == "weights beside the output")
    ((stores, _),) = plans_of(variant.functions[0], variant.inputs(), derivatives=False)
    own = plan_stores(stores)
    monkeypatch.setattr(estimated_plan, "LAUNCHES_OF_SHORT_PLANS", 0)
    kept = cheapest_plan(stores)
    assert own.saving and kept.kernels == own.kernels
    assert any({*own.saving[0].terms} <= {*one.computed} and one.share > 1 for one in kept.alternatives)
    assert any(one.share == saved.share > 1 for one in kept.alternatives for saved in kept.saving)
    assert all(one.share is None and not str(one) for one in own.saving)
    monkeypatch.setattr(module._Found, "pays", lambda one, other: len(one.choice.computed) > len(other.choice.computed))
    taken = cheapest_plan(stores)
    assert {one.terms for one in taken.saving} < {one.terms for one in own.saving}
    assert any("what is stored chosen" in note for note in taken.notes)


def test_no_plan_is_an_error_as_ever():
    b, d = dims(b=4, d=8)
    with pytest.raises(NotPlannable, match="no axis"):
        cheapest_plan([Store(tensor("q", b, d), Tensor("out", "float32", (4,)), (b,))])


# One change after another, and all of them


LARGE = {
    "a prefix of many": shared_prefix(64), "a prefix of one": shared_prefix(1), "distances": distances(512),
    "a short prefix": shared_prefix(8, 2048), "short distances": distances(64), "attention": attention(2048),
}  # fmt: skip


def all_choices(stores: list[Store]) -> Iterator[PlanChoice]:
    """Every set of up to three candidates, with every dim as the rows of the kernels of each set of dims."""
    results = dict.fromkeys(frozenset(store.order) for store in stores)
    each = [[(), *(((over, dim),) for dim in sorted(over))] for over in results]
    for rows in (tuple(chain.from_iterable(some)) for some in product(*each)):
        planning = prepared(normalised(stores), PlanChoice(rows=rows))
        single = candidates(planning.terms, MAX_RESIDENT_ELEMENTS)
        for chosen in chain.from_iterable(combinations(single, count) for count in range(MAX_CANDIDATES_TOGETHER + 1)):
            yield PlanChoice(rows=rows, stored=in_order((t for one in chosen for t in one), planning.terms))


@pytest.mark.parametrize("name", LARGE)
def test_one_change_after_another_finds_what_all_choices_have(name):
    """A change has to gain more than the estimates' own error: so far off the best may be."""
    stores, best, count = LARGE[name], inf, 0
    for choice in all_choices(stores):
        with suppress(NotPlannable, WrongPlanning):
            plan = plan_with(prepared(normalised(stores), PlanChoice(rows=choice.rows)), choice=choice)
            best, count = min(best, milliseconds(plan)), count + 1
    assert count >= 3
    assert milliseconds(cheapest_plan(stores)) <= 1.1 * best


# Each set of candidates is a plan of the same results

SMALL = {"prefix": shared_prefix(3, 40, 24, "float64"), "distances": distances(24, "float64")}


@pytest.mark.parametrize("name", SMALL)
def test_every_set_of_candidates_computes_the_results(name):
    stores, random = SMALL[name], np.random.default_rng(0)
    own = plan_stores(stores)
    inputs = {t.name: random.standard_normal(t.shape) for t in own.inputs}
    right = computed(own, inputs)
    planning = prepared(normalised(stores))
    single = candidates(planning.terms, MAX_RESIDENT_ELEMENTS)
    sets = [chosen for count in (1, 2) for chosen in combinations(single, count)]
    assert len(sets) >= 3
    for chosen in sets:
        stored = in_order((t for one in chosen for t in one), planning.terms)
        plan = plan_with(planning, choice=PlanChoice(stored=stored))
        for mine, theirs in zip(computed(plan, inputs), right, strict=True):
            np.testing.assert_allclose(mine, theirs, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("name", SMALL)
def test_every_choice_of_rows_computes_the_results(name):
    """Tiles of any dim are all of its places. Rows that no plan has are refused, not wrong."""
    stores, random = SMALL[name], np.random.default_rng(0)
    own, planned = plan_stores(stores), 0
    inputs = {t.name: random.standard_normal(t.shape) for t in own.inputs}
    right = computed(own, inputs)
    for store in stores:
        for rows in store.order:
            try:
                plan = plan_with(prepared(normalised(stores), PlanChoice(rows=((frozenset(store.order), rows),))))
            except NotPlannable:
                continue
            planned += 1
            for mine, theirs in zip(computed(plan, inputs), right, strict=True):
                np.testing.assert_allclose(mine, theirs, rtol=1e-12, atol=1e-12)
    assert planned >= 3
