"""Sums directly inside of sums: which are one loop over several dims, in which order, and what such a loop computes."""

import numpy as np
import pytest
import torch

from onepass.egraph.terms.evaluate import evaluate
from onepass.egraph.terms.ops import const, eq, exp, iota, le, load, logical_and, sum_over, where
from onepass.egraph.terms.term import Dim, Tensor
from onepass.lowering.analysis.nested_sums import body_of, dims_around, nest_of, reductions, with_loops_outermost
from onepass.lowering.launch.split_loops import chunk_sizes, with_split_kernels
from onepass.lowering.masks import block_map
from onepass.lowering.plan.kernel_config import TritonConfig
from onepass.lowering.plan.records import NotPlannable
from onepass.lowering.planning.planner import build_plan
from onepass.lowering.tiled.executor import run_tiled, tiled_results
from onepass.lowering.triton.launch import Launcher
from tests.lowering.triton.test_kernel import inputs_of

M, N, I, J, D, E = Dim("m", 3), Dim("n", 2), Dim("i", 290), Dim("j", 300), Dim("d", 16), Dim("e", 16)
ZERO = const(0.0)


def read(name, *dims, dtype="float32"):
    return load(Tensor(name, dtype, tuple(d.size for d in dims)), *map(iota, dims))


SCORES = sum_over(D, read("q", M, I, D) * read("k", J, D))
PRODUCT = SCORES * read("q", M, I, E)
CAUSAL = le(iota(J), iota(I))
DOCUMENTS = logical_and(CAUSAL, eq(read("a", M, I, dtype="int64"), read("b", M, J, dtype="int64")))
FACTOR = read("w", M)
OUTPUT, ORDER = Tensor("out", "float32", (300, 16)), (J, E)


def test_both_orders_become_one():
    one, other = sum_over(M, sum_over(I, PRODUCT)), sum_over(I, sum_over(M, PRODUCT))
    assert with_loops_outermost(one) is other and with_loops_outermost(other) is other
    assert dims_around(other) == (M,) and body_of(other) is PRODUCT and dims_around(one) == (I,)
    assert other in reductions([other]) and other.args[0] not in reductions([other])


def test_guards_and_factors_between_the_sums_go_inside():
    inner = sum_over(I, where(CAUSAL, PRODUCT, ZERO))
    moved = with_loops_outermost(sum_over(M, FACTOR * inner))
    assert dims_around(moved) == (M,) and body_of(moved) is where(CAUSAL, PRODUCT * FACTOR, ZERO)
    between = sum_over(I, where(CAUSAL, sum_over(M, PRODUCT), ZERO))
    assert body_of(with_loops_outermost(between)) is where(CAUSAL, PRODUCT, ZERO)


def test_no_name_is_captured():
    outside = read("x", I, E)  # of another place than the inner sum's
    r = sum_over(E, outside * sum_over(I, SCORES * read("y", M, I)))
    assert nest_of(r).dims == (E,)
    again = sum_over(M, where(CAUSAL, sum_over(I, PRODUCT), ZERO))
    assert nest_of(again).dims == (M,)


def test_what_a_tile_can_hold_stays_as_it_is():
    square = sum_over(I, sum_over(D, read("q", M, I, D) * read("q", M, I, D)))
    no_rows = sum_over(J, sum_over(I, sum_over(M, SCORES)))
    for r in (square, no_rows):
        assert with_loops_outermost(r) is r and dims_around(r) == ()


def test_no_product_is_done_again():
    """Scores of all heads are mixed before their exponential, as talking heads do."""
    mixed = sum_over(N, read("w", M, N) * sum_over(D, read("q", N, I, D) * read("k", J, D)))
    r = sum_over(M, sum_over(I, exp(mixed) * read("x", M, I)))
    assert with_loops_outermost(r) is r and dims_around(sum_over(I, r.args[0].args[0])) == ()


def test_the_tile_is_along_a_masked_or_the_longest_dim():
    long, short = Dim("l", 4096), Dim("s", 600)
    scores = sum_over(D, read("p", long, short, D) * read("k", J, D)) * read("x", long)
    assert dims_around(with_loops_outermost(sum_over(short, sum_over(long, scores)))) == (short,)
    masked = where(le(iota(J), iota(short)), scores, ZERO)
    assert dims_around(with_loops_outermost(sum_over(short, sum_over(long, masked)))) == (long,)


SUMS = {
    "plain": sum_over(M, sum_over(I, PRODUCT)),
    "causal": sum_over(M, sum_over(I, where(CAUSAL, PRODUCT, ZERO))),
    "documents": sum_over(M, sum_over(I, where(DOCUMENTS, PRODUCT, ZERO))),
    "a factor of the dim around": sum_over(M, FACTOR * sum_over(I, where(CAUSAL, PRODUCT, ZERO))),
    "beside another loop": sum_over(M, sum_over(I, PRODUCT)) * sum_over(I, read("z", I, J)),
}


def given(plan):
    tensors = inputs_of(plan, {})
    for name, axis in (("a", 290), ("b", 300)):
        tensors[name] = (torch.arange(axis) * torch.tensor([[2], [3], [7]]) // axis).to(tensors["q"].device)
    return {t.name: tensors[t.name] for t in plan.inputs}


@pytest.mark.slow
@pytest.mark.parametrize("name", SUMS)
def test_a_loop_around_which_another_dim_runs_is_right(name, monkeypatch, tiles):
    monkeypatch.setattr(block_map, "MIN_TILES", 1)
    plan = build_plan(SUMS[name], OUTPUT, ORDER)
    (kernel,) = plan.kernels
    assert kernel.around == (M,) and M not in kernel.held and all(loop.dim == I for loop in kernel.loops)
    tensors = given(plan)
    arrays = {n: (x.double() if x.is_floating_point() else x).cpu().numpy() for n, x in tensors.items()}
    expected = evaluate(SUMS[name], arrays, ORDER)
    runs = {"tiled": [run_tiled(plan, tensors)]}
    for parts in (1, 3):
        runs[f"triton in {parts}"] = Launcher(plan, TritonConfig(32, 32, 4, 1, parts)).results(tensors)
    runs["tiled in 3"] = tiled_results(with_split_kernels(plan), tensors, chunk_sizes(plan, 3))
    for how, (found, *_) in runs.items():
        np.testing.assert_allclose(found.double().cpu().numpy(), expected, rtol=1e-4, atol=1e-3, err_msg=how)


def test_a_map_has_the_dim_around():
    (loop,) = build_plan(SUMS["documents"], OUTPUT, ORDER).kernels[0].loops
    assert loop.map.dims == (M,) and [repr(limit.bound) for limit in loop.lowers] == ["j"]


def test_two_dims_around_a_loop_are_one_counter():
    scores = sum_over(D, read("q", M, N, I, D) * read("k", J, D))
    term = sum_over(N, sum_over(M, sum_over(I, where(CAUSAL, scores * read("q", M, N, I, E), ZERO))))
    plan = build_plan(term, OUTPUT, ORDER)
    assert plan.kernels[0].around == (M, N)
    tensors = inputs_of(plan, {})
    expected = evaluate(term, {n: x.double().cpu().numpy() for n, x in tensors.items()}, ORDER)
    for found in (run_tiled(plan, tensors), Launcher(plan, TritonConfig(32, 32, 4, 1)).results(tensors)[0]):
        np.testing.assert_allclose(found.double().cpu().numpy(), expected, rtol=1e-4, atol=1e-3)


def test_a_dim_with_two_places_is_refused():
    once = sum_over(M, sum_over(I, PRODUCT))
    beside = sum_over(M, read("u", M, J) * read("u", M, E))
    with pytest.raises(NotPlannable, match="a loop runs around m"):
        build_plan(once + beside, OUTPUT, ORDER)
