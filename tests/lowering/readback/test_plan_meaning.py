"""A plan's tensors as terms over its inputs; what is not known, or not there in time, is refused."""

from dataclasses import replace

import pytest

from onepass.egraph.terms.ops import const, iota, le, load, mantissa, rescaled_sum, stored, sum_over, where
from onepass.egraph.terms.term import Dim, Tensor
from onepass.lowering.plan.records import Plan, Store
from onepass.lowering.planning.planner import plan_stores
from onepass.lowering.readback.canonical_terms import Canonical
from onepass.lowering.readback.plan_meaning import NotReadBack, part_of, read_back

I, J, D = Dim("i", 300), Dim("j", 300), Dim("d", 16)
Q, K, V = (Tensor(name, "float32", (300, 16)) for name in "qkv")
scores = sum_over(D, load(Q, iota(I), iota(D)) * load(K, iota(J), iota(D)))
causal = where(le(iota(J), iota(I)), scores, const(-float("inf")))
state = lambda value: mantissa(rescaled_sum(J, causal, value))
term = state(load(V, iota(J), iota(D))) / state(const(1.0))


def plan_of(*terms) -> tuple[Plan, list[Store]]:
    outputs = [Tensor(f"out{n}", "float32", (300, 16)) for n in range(len(terms))]
    stores = [Store(one, output, (I, D)) for one, output in zip(terms, outputs, strict=True)]
    return plan_stores(stores), stores


def test_a_plan_of_one_loop_is_the_very_term():
    plan, (store,) = plan_of(term)
    found = read_back(plan).stored["out0"]
    assert found.axes == (I, D) and found.term is Canonical()(store.term)


def test_what_is_stored_between_kernels_is_put_where_it_is_read():
    first, second = Tensor("part", "float32", (300, 300)), Tensor("out", "float32", (300, 300))
    plan = plan_stores([Store(scores, first, (I, J))])
    (kernel,) = plan.kernels
    read = load(first, iota(J), iota(I)) * const(2.0)
    other = replace(kernel, name="other", stores=(Store(read, second, (I, J)),), inputs=(first,))
    found = read_back(replace(plan, kernels=(kernel, other), outputs=(first, second))).stored["out"]
    turned = sum_over(D, load(Q, iota(J), iota(D)) * load(K, iota(I), iota(D)))
    assert found.term is Canonical()(stored(turned, "part") * const(2.0))


def test_a_part_of_a_loop_is_whatever_its_number_says():
    plan, _ = plan_of(term)
    (kernel,) = plan.kernels
    (loop,) = kernel.loops
    parted = replace(loop, part=Dim("part", "parts"))
    changed = replace(kernel, loops=(parted,), grid=(*kernel.grid, parted.part))
    with pytest.raises(NotReadBack, match="depends on part"):
        read_back(replace(plan, kernels=(changed,)))
    assert part_of(parted).shape == (300,)


def broken(plan: Plan):
    """Plans that cannot be read, by what they are refused for."""
    (kernel,) = plan.kernels
    (loop,) = kernel.loops
    (one,) = loop.accumulators
    put = lambda **fields: replace(plan, kernels=(replace(kernel, **fields),))
    with_loop = lambda **fields: put(loops=(replace(loop, **fields),))
    with_one = lambda **fields: with_loop(accumulators=(replace(one, **fields),))
    yield "in time", put(loops=())
    yield "not among its inputs", put(inputs=kernel.inputs[1:])
    yield "in two roles", put(held=(*kernel.held, kernel.rows))
    yield "no place for", put(rows=None)
    yield "does not fit", with_one(monoid="sum")
    yield "does not fit", with_one(gauge=None)
    yield "other dims", with_one(gauge=one.gauge + load(Tensor("w", "float32", (9,)), iota(Dim("w", 9))))
    yield "totals", with_one(added_to=tuple(range(1, 1 + len(one.values))))
    yield "values", with_one(values=one.values[1:])
    store = kernel.stores[0]
    yield "is stored from", put(stores=(replace(store, output=replace(store.output, dtype="int32")),))
    yield "another shape", put(stores=(replace(store, order=store.order[::-1]),))
    yield "other axes", put(stores=(replace(store, order=store.order[:1]),))
    yield "known already", put(stores=(store, store))


@pytest.mark.parametrize("number", range(13))
def test_what_is_not_known_is_refused(number):
    reason, changed = [*broken(plan_of(term)[0])][number]
    with pytest.raises(NotReadBack, match=reason):
        read_back(changed)


def test_a_kernel_that_reads_before_it_is_stored_is_refused():
    part, out = Tensor("part", "float32", (300, 300)), Tensor("out", "float32", (300, 300))
    plan = plan_stores([Store(scores, part, (I, J))])
    (kernel,) = plan.kernels
    other = replace(kernel, name="other", stores=(Store(load(part, iota(I), iota(J)), out, (I, J)),), inputs=(part,))
    plan = replace(plan, kernels=(kernel, other), outputs=(out,))
    read_back(plan)
    with pytest.raises(NotReadBack, match="not stored like that"):
        read_back(replace(plan, kernels=plan.kernels[::-1]))
