"""A guard that depends on a dim of which programs take tiles got a block map with a place for each index of it, and a
kernel read the place of its tile's first index: what other columns keep was left out."""

from onepass.egraph.terms.ops import const, iota, load, logical_and, lt, sum_over, where
from onepass.egraph.terms.term import Dim, Tensor
from onepass.lowering.plan.records import Store
from onepass.lowering.planning.planner import plan_stores
from onepass.lowering.readback.check_plan import check

J, I, D, E = Dim("j", 300), Dim("i", 300), Dim("d", 16), Dim("e", 256)


def stores_of(guard):
    q, k, g = (Tensor(n, "float32", (300, s)) for n, s in (("q", 16), ("k", 16), ("g", 256)))
    scores = sum_over(D, load(q, iota(I), iota(D)) * load(k, iota(J), iota(D)))
    body = where(guard, scores * load(g, iota(I), iota(E)), const(0.0))
    return [Store(sum_over(I, body), Tensor("out", "float32", (300, 256)), (J, E))]


KEPT = Tensor("kept", "bool", (300, 300))
ROW = Tensor("row", "bool", (300, 256))
ENDS = Tensor("ends", "int64", (256,))


def test_a_map_has_no_place_for_a_column():
    by_data = logical_and(load(KEPT, iota(I), iota(J)), load(ROW, iota(I), iota(E)))
    by_limit = lt(iota(I), load(ENDS, iota(E)))
    for guard in (by_data, by_limit):
        stores = stores_of(guard)
        plan = plan_stores(stores)
        check(plan, stores)
        for kernel in plan.kernels:
            for loop in kernel.loops:
                known = {*kernel.grid, kernel.rows, *loop.outer, loop.dim}
                assert loop.map is None or loop.map.guard.dims <= known
                assert all(limit.bound.dims <= known for limit in loop.limits)
