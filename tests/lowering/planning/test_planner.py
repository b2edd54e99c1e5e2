"""What a plan looks like: loops, sharing, guards as limits, kernels that are split off, and what is refused."""

from math import inf

import pytest
import torch

from onepass.egraph.terms.ops import (
    const,
    exp,
    iota,
    le,
    load,
    log,
    logical_not,
    lt,
    mantissa,
    max_over,
    reduce,
    rescaled_sum,
    scale,
    sum_over,
    where,
)
from onepass.egraph.terms.term import Dim, Tensor
from onepass.egraph.terms.traversal import tensors
from onepass.lowering.masks.loop_ranges import conjuncts
from onepass.lowering.plan.records import NotPlannable, Store
from onepass.lowering.planning.planner import build_plan, plan_stores
from onepass.lowering.tiled.executor import tiled_results
from tests.support.attention_terms import attention, one_pass, three_pass


def plan(case, **options):
    return build_plan(case.term, case.output, case.order, **options)


def dims_of(kernel):
    return [d.name for d in kernel.grid], kernel.rows and kernel.rows.name, [d.name for d in kernel.held]


def test_attention_is_one_kernel_with_one_loop_and_one_state():
    (kernel,) = plan(attention()).kernels
    assert dims_of(kernel) == (["b0", "b1"], "i", ["d", "e"])
    ((state,),) = (loop.accumulators for loop in kernel.loops)
    assert (state.monoid, len(state.values), state.gauge.dims) == (
        "rescaled",
        2,
        {*kernel.grid, kernel.rows, kernel.loops[0].dim},
    )
    assert [t.name for t in kernel.inputs] == ["q", "k", "v"]


def test_attention_without_rescaling_has_three_loops():
    made = plan(attention(queries=300, keys=300, form=three_pass))
    assert made.passes == 3
    assert [[a.monoid for a in loop.accumulators] for loop in made.kernels[0].loops] == [["max"], ["sum"], ["sum"]]


@pytest.mark.parametrize(
    "mask, uppers, lowers, only",
    [
        ("causal", ["i + 1"], [], True),
        ("window", ["i + 1"], ["i - 36"], True),
        ("shifted", ["i - 19"], [], True),
        ("blocks", ["i // 16 · 16 + 16"], [], True),
        ("strided", [], [], False),
    ],
)
def test_guards_become_limits(mask, uppers, lowers, only):
    (loop,) = plan(attention(mask=mask)).kernels[0].loops
    assert loop.guard is not None and not any("where" in repr((a.gauge, a.values)) for a in loop.accumulators)
    assert [repr(x.bound) for x in loop.uppers] == uppers
    assert [repr(x.bound) for x in loop.lowers] == lowers
    assert loop.limits_only is only and all(x.rising for x in (*loop.uppers, *loop.lowers))


def test_accumulators_with_different_guards_keep_their_own():
    case = attention(mask="causal")
    i, j = case.order[-2], Dim("j", 90)
    x = load(Tensor("x", "float32", (70, 90)), iota(i), iota(j))
    both = where(le(iota(j), iota(i)), where(lt(iota(j), const(50)), x, -inf), -inf)
    term = mantissa(rescaled_sum(j, both, 1.0)) + mantissa(rescaled_sum(j, where(le(iota(j), iota(i)), x, -inf), 1.0))
    (loop,) = build_plan(term, Tensor("out", "float32", (70,)), (i,)).kernels[0].loops
    assert repr(loop.guard) == "j ≤ i" and len(loop.accumulators) == 2
    assert "where(j" in repr(loop.accumulators[0].gauge) and "where(j" not in repr(loop.accumulators[1].gauge)


def test_a_maximum_over_the_gauge_is_the_scale():
    i, j = Dim("i", 40), Dim("j", "s0")
    x = load(Tensor("x", "float32", (40, "s0")), iota(i), iota(j))
    made = build_plan(max_over(j, x) + mantissa(rescaled_sum(j, x, 1.0)), Tensor("out", "float32", (40,)), (i,))
    assert [a.monoid for loop in made.kernels[0].loops for a in loop.accumulators] == ["rescaled"]
    assert scale(rescaled_sum(j, x, 1.0)) in made.kernels[0].result.args


def test_independent_reductions_share_a_loop():
    i, j = Dim("i", 40), Dim("j", 1000)
    x = load(Tensor("x", "float32", (40, 1000)), iota(i), iota(j))
    made = build_plan(max_over(j, x) + sum_over(j, x) * reduce("min", j, x), Tensor("out", "float32", (40,)), (i,))
    assert [len(loop.accumulators) for loop in made.kernels[0].loops] == [3]


def linear_attention(n=4096, d=64):
    b, i, j, d, e = Dim("b", 2), Dim("i", n), Dim("j", n), Dim("d", d), Dim("e", d)
    q, k, v = (
        load(Tensor(name, "float32", (2, n, 64)), *map(iota, dims))
        for name, dims in (("q", (b, i, d)), ("k", (b, j, d)), ("v", (b, j, e)))
    )
    return sum_over(d, q * sum_over(j, k * v)), Tensor("out", "float32", (2, n, 64)), (b, i, e)


def test_what_is_the_same_for_all_rows_is_a_kernel_of_its_own():
    made = build_plan(*linear_attention())
    assert [k.rows.name for k in made.kernels] == ["e", "i"]
    assert [t.name for t in made.kernels[1].inputs] == ["q", "part0"] and [t.name for t in made.inputs] == [
        "q",
        "k",
        "v",
    ]
    assert (
        made.kernels[0].output == Tensor("part0", "float32", (2, 64, 64)) and "stored between kernels" in made.notes[0]
    )


@pytest.mark.parametrize("size", ["s0", 4096])
def test_a_long_output_dim_that_no_loop_depends_on_splits_the_loops_off(size):
    i, j = Dim("i", 40), Dim("j", size)
    x = load(Tensor("x", "float32", (40, size)), iota(i), iota(j))
    state = rescaled_sum(j, x, 1.0)
    made = build_plan((x - scale(state)) / mantissa(state), Tensor("out", "float32", (40, size)), (i, j))
    assert [k.rows.name for k in made.kernels] == ["i", "j"] and not made.kernels[-1].loops


def test_queries_that_share_keys_are_the_rows():
    b, h, g, j, d, e = Dim("b", 2), Dim("h", 4), Dim("g", 8), Dim("j", "s0"), Dim("d", 16), Dim("e", 16)
    q = load(Tensor("q", "float32", (2, 4, 8, 16)), *map(iota, (b, h, g, d)))
    k, v = (load(Tensor(n, "float32", (2, 4, "s0", 16)), *map(iota, (b, h, j, x))) for n, x in (("k", d), ("v", e)))
    made = build_plan(one_pass(j, sum_over(d, q * k), v), Tensor("out", "float32", (2, 4, 8, 16)), (b, h, g, e))
    assert dims_of(made.kernels[0]) == (["b", "h"], "g", ["d", "e"])


def test_a_single_query_has_no_rows():
    j, d, e = Dim("j", 300), Dim("d", 16), Dim("e", 16)
    q, k = load(Tensor("q", "float32", (16,)), iota(d)), load(Tensor("k", "float32", (300, 16)), iota(j), iota(d))
    v = load(Tensor("v", "float32", (300, 16)), iota(j), iota(e))
    (kernel,) = build_plan(one_pass(j, sum_over(d, q * k), v), Tensor("out", "float32", (16,)), (e,)).kernels
    assert dims_of(kernel) == ([], None, ["d", "e"])


def test_a_loop_inside_a_loop_is_stored_between_kernels():
    i, j, m = Dim("i", 500), Dim("j", 600), Dim("m", 3000)
    x, w = load(Tensor("x", "float32", (600, 3000)), iota(j), iota(m)), load(Tensor("w", "float32", (3000,)), iota(m))
    term = max_over(j, sum_over(m, x * w) * iota_as_float(i))
    made = build_plan(term, Tensor("out", "float32", (500,)), (i,))
    assert [loop.dim.name for k in made.kernels for loop in k.loops] == ["m", "j"]


def iota_as_float(i):
    return load(Tensor("y", "float32", (500,)), iota(i))


def test_a_wide_contraction_inside_a_loop_is_held():
    (kernel,) = plan(attention(queries=400, keys=400, width=512, value_width=64)).kernels
    assert dims_of(kernel)[2] == ["d", "e"] and len(kernel.loops) == 1


def test_what_has_no_plan_says_why():
    case = attention()
    with pytest.raises(NotPlannable, match="depends on e, which the output has no axis for"):
        build_plan(case.term, case.output, (*case.order[:-1], Dim("n", 16)))
    with pytest.raises(NotPlannable, match="has 4 axes"):
        build_plan(case.term, case.output, (*case.order, Dim("n", 16)))
    i, j = Dim("i", 4), Dim("j", 5)
    state = rescaled_sum(j, load(Tensor("x", "float32", (4, 5)), iota(i), iota(j)), 1.0)
    with pytest.raises(NotPlannable, match="pair of scale and mantissa"):
        build_plan(state, Tensor("out", "float32", (4,)), (i,))


def test_negated_guards():
    i, j = Dim("i", 9), Dim("j", 9)
    outside = logical_not(le(iota(j), iota(i)))
    assert [repr(c) for c in conjuncts(outside)] == ["i + 1 ≤ j"]
    assert [repr(c) for c in conjuncts(logical_not(logical_not(outside)))] == ["i + 1 ≤ j"]


def test_every_input_is_named_once():
    case = attention(form=three_pass, queries=300, keys=300)
    assert plan(case).inputs == tuple(tensors(case.term))


def test_results_that_share_their_states_are_one_kernel_and_one_pass():
    """The weighted sum, the log of the total and the largest score: one loop, two mantissas under one scale."""
    i, j, d, e = Dim("i", 300), Dim("j", 300), Dim("d", 16), Dim("e", 16)
    q, k, v = (
        load(Tensor(n, "float32", (300, 16)), iota(x), iota(y)) for n, x, y in (("q", i, d), ("k", j, d), ("v", j, e))
    )
    score = sum_over(d, q * k)
    total = rescaled_sum(j, score, 1.0)
    terms = {
        "out": (mantissa(rescaled_sum(j, score, v)) / mantissa(total), (i, e)),
        "lse": (scale(total) + log(mantissa(total)), (i,)),
        "top": (max_over(j, score), (i,)),
    }
    stores = [Store(t, Tensor(n, "float32", tuple(x.size for x in order)), order) for n, (t, order) in terms.items()]
    made = plan_stores(stores)
    (kernel,) = made.kernels
    (loop,) = kernel.loops
    (accumulator,) = loop.accumulators
    assert len(accumulator.values) == 2 and kernel.rows == i and [t.name for t in made.outputs] == [*terms]
    inputs = {n: torch.randn(300, 16) for n in "qkv"}
    scores = inputs["q"].double() @ inputs["k"].double().T
    exact = scores.softmax(-1) @ inputs["v"].double(), scores.logsumexp(-1), scores.amax(-1)
    for result, expected in zip(tiled_results(made, inputs), exact, strict=True):
        torch.testing.assert_close(result.double(), expected, rtol=1e-5, atol=1e-5)


def test_a_result_with_the_looped_dim_loads_the_states_that_the_other_stores():
    i, j, e = Dim("i", 40), Dim("j", 300), Dim("e", 16)
    x = load(Tensor("x", "float32", (40, 300)), iota(i), iota(j))
    v = load(Tensor("v", "float32", (300, 16)), iota(j), iota(e))
    total = rescaled_sum(j, x, 1.0)
    weights = Store(exp(x - scale(total)) / mantissa(total), Tensor("weights", "float32", (40, 300)), (i, j))
    value = mantissa(rescaled_sum(j, x, v)) / mantissa(total)
    made = plan_stores([Store(value, Tensor("out", "float32", (40, 16)), (i, e)), weights])
    assert [len(k.stores) for k in made.kernels] == [3, 1] and made.passes == 1
    inputs = {"x": torch.randn(40, 300), "v": torch.randn(300, 16)}
    out, found = tiled_results(made, inputs)
    torch.testing.assert_close(found, inputs["x"].softmax(-1))
    torch.testing.assert_close(out, inputs["x"].softmax(-1) @ inputs["v"])
