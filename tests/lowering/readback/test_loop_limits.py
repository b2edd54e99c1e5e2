"""Ranges, limits and maps against guards: of masks that programs have, and of each with one number changed."""

from dataclasses import replace

import pytest

from onepass.egraph.terms.ops import const, eq, iota, le, load, logical_and, logical_or, lt, sum_over, where
from onepass.egraph.terms.term import Dim, Tensor
from onepass.lowering.plan.records import Store
from onepass.lowering.planning.planner import plan_stores
from onepass.lowering.readback.loop_limits import demand_limits
from onepass.lowering.readback.plan_meaning import NotReadBack
from onepass.lowering.readback.sample_points import Points, index_ranges, nodes_of, structured_sizes
from onepass.lowering.readback.sampled_values import SampledValues
from tests.support.plan_mutants import mutants

B, I, J, E = Dim("b", 2), Dim("i", 3000), Dim("j", 4000), Dim("e", 16)
P, V = Tensor("p", "float32", (2, 3000, 4000)), Tensor("v", "float32", (2, 4000, 16))
i, j = iota(I), iota(J)
ends = load(Tensor("ends", "int64", (2,)), iota(B))
doc = lambda d, n: load(Tensor(f"doc{n}", "int64", (n,)), iota(d))
MASKS = {
    "none": None,
    "causal": le(j, i),
    "causal, from the end": le(j, i + const(1000)),
    "window": logical_and(le(j, i), lt(i, j + const(128))),
    "lengths": lt(j, ends),
    "prefix": logical_or(lt(j, const(40)), le(j, i)),
    "global and local": logical_or(logical_and(le(i, j + const(64)), le(j, i + const(64))), lt(j, const(32))),
    "blocks": le(j // const(64), i // const(64)),
    "documents": eq(doc(I, 3000), doc(J, 4000)),
}


def kernel_of(mask):
    body = load(P, iota(B), i, j) * load(V, iota(B), j, iota(E))
    term = sum_over(J, body if mask is None else where(mask, body, const(0.0)))
    return plan_stores([Store(term, Tensor("out", "float32", (2, 3000, 16)), (B, I, E))])


def demand(plan):
    for kernel in plan.kernels:
        for loop in kernel.loops:
            terms = [t for t in (loop.guard, *(x.bound for x in loop.limits)) if t is not None]
            points = Points({}, structured_sizes(nodes_of(terms)), lengths=(3000, 4000))
            for trial in range(2):
                demand_limits(kernel, loop, SampledValues(points, index_ranges(nodes_of(terms), {}), {}, trial))


@pytest.mark.parametrize("name", MASKS)
def test_the_limits_of_masks_fit_their_guards(name):
    demand(kernel_of(MASKS[name]))


LIMITS = ("one less", "one more", "direction", "limit dropped")


@pytest.mark.parametrize("name", ["causal", "causal, from the end", "window", "lengths", "blocks"])
def test_no_exact_limit_is_one_off_or_moves_the_other_way(name):
    plan = kernel_of(MASKS[name])
    (loop,) = plan.kernels[0].loops
    assert loop.limits and all(r.exact for r in loop.ranges)
    changed = [(what, mutant) for what, mutant in mutants(plan) if what.endswith(LIMITS)]
    assert changed
    for what, mutant in changed:
        if what.endswith("direction") and not any(I in x.bound.dims for x in loop.limits):
            continue  # a limit that stays moves both ways
        with pytest.raises(NotReadBack):
            demand(mutant)


@pytest.mark.parametrize("name", ["documents", "global and local"])
def test_ranges_and_maps_that_leave_something_out_are_refused(name):
    plan = kernel_of(MASKS[name])
    (kernel,) = plan.kernels
    (loop,) = kernel.loops
    with pytest.raises(NotReadBack, match="leave out"):
        demand(replace(plan, kernels=(replace(kernel, loops=(replace(loop, ranges=loop.ranges[1:]),)),)))
    if loop.map is not None:
        for wrong in (replace(loop.map, guard=~loop.guard), replace(loop.map, rows=()), replace(loop.map, dims=(E,))):
            with pytest.raises(NotReadBack, match="map"):
                demand(replace(plan, kernels=(replace(kernel, loops=(replace(loop, map=wrong),)),)))


def test_a_limit_of_a_column_is_refused():
    plan = kernel_of(MASKS["causal"])
    (kernel,) = plan.kernels
    with pytest.raises(NotReadBack, match="depends on i"):
        demand(replace(plan, kernels=(replace(kernel, rows=None, columns=(), grid=(B,)),)))
