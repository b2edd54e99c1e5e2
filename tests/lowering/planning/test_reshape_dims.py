"""Short dims of a tile: sums over them written out, values' dims joined to columns, scores stored between batches."""

import inspect
from dataclasses import replace

import numpy as np
import pytest
import torch

from onepass.compiler.optimize import optimize_all
from onepass.egraph.terms.evaluate import evaluate
from onepass.egraph.terms.ops import cast, iota, load, sum_over
from onepass.egraph.terms.term import Dim, Tensor
from onepass.egraph.terms.traversal import reduces, substitute, subterms
from onepass.graph.trace import program_of
from onepass.lowering.analysis.dim_roles import is_product
from onepass.lowering.plan.records import Store
from onepass.lowering.planning.kernel_cuts import scores_between_batches
from onepass.lowering.planning.normalize_terms import (
    MAX_UNROLLED_SIZE,
    with_addends_multiplied_out,
    with_short_sums_unrolled,
)
from onepass.lowering.planning.planner import normalised, prepared
from onepass.lowering.planning.planning_state import StoredPart
from onepass.lowering.planning.reshape_dims import mergeable_pair, with_rows_as_one
from onepass.lowering.tiled.executor import tiled_results
from onepass.lowering.triton.kernel import emit
from onepass.lowering.triton.launch import Launcher
from onepass.translate.translate import translate

I, J = Dim("i", 5), Dim("j", 7)


def of(name, *dims):
    return load(Tensor(name, "float32", tuple(d.size for d in dims)), *map(iota, dims))


def squares(size):
    d = Dim("d", size)
    apart = of("q", I, d) - of("k", J, d)
    return sum_over(d, apart * apart)


def product(size):
    d = Dim("d", size)
    return sum_over(d, of("q", I, d) * of("k", J, d))


@pytest.mark.parametrize("size", [1, 2, 3, MAX_UNROLLED_SIZE])
def test_a_short_sum_of_differences_is_written_out_and_stays_equal(size):
    term = squares(size)
    values = {"q": torch.randn(5, size).numpy(), "k": torch.randn(7, size).numpy()}
    assert not reduces(with_short_sums_unrolled(term))
    np.testing.assert_allclose(evaluate(with_short_sums_unrolled(term), values), evaluate(term, values), rtol=1e-12)


LONG = squares(MAX_UNROLLED_SIZE + 1)


@pytest.mark.parametrize("term", [LONG, product(3), product(1)], ids=["long", "matrices", "one"])
def test_long_sums_and_products_of_matrices_stay(term):
    assert with_short_sums_unrolled(term) == term


def test_a_sum_over_the_same_dim_inside_stays_whole():
    d = Dim("d", 3)
    apart = of("q", I, d) - of("k", J, d)
    term = sum_over(d, apart * apart * sum_over(d, of("w", d)))
    values = {"q": np.random.randn(5, 3), "k": np.random.randn(7, 3), "w": np.random.randn(3)}
    assert len(reduces(with_short_sums_unrolled(term))) == 1
    np.testing.assert_allclose(evaluate(with_short_sums_unrolled(term), values), evaluate(term, values), rtol=1e-12)


def test_a_sum_of_sums_is_written_out_as_one():
    c, d = Dim("c", 3), Dim("d", 4)
    apart = of("q", I, d, c) - of("k", J, d, c)
    assert not reduces(with_short_sums_unrolled(sum_over(c, sum_over(d, apart * apart))))
    again = Dim("a", 2)
    apart = of("q", I, again, d, c) - of("k", J, again, d, c)
    kept = with_short_sums_unrolled(sum_over(again, sum_over(c, sum_over(d, apart * apart))))
    assert {r.attrs[1] for r in reduces(kept)} == {again}  # 24 differences are too many


# Factors that are sums

B, H, D = Dim("b", 2), Dim("h", 3), Dim("d", 4)


def half(name, *dims):
    return cast(load(Tensor(name, "bfloat16", tuple(d.size for d in dims)), *map(iota, dims)), "float32")


def numbers(*loads):
    tensors = {n.attrs[0] for x in loads for n in subterms(x) if n.op == "load"}
    return {t.name: np.random.default_rng(0).normal(size=t.shape) for t in tensors}


def test_addends_are_multiplied_apart_where_each_makes_a_product_of_matrices():
    q, k, r = half("q", B, H, I, D), half("k", B, H, J, D), half("r", I, J, D)
    for term in (sum_over(D, q * (k + r)), sum_over(D, (k - r) * q), sum_over(D, q * (k + (half("x", J, D) - r)))):
        found = with_addends_multiplied_out(term)
        assert len(reduces(found)) > 1 and all(map(is_product, reduces(found)))
        np.testing.assert_allclose(evaluate(found, numbers(term)), evaluate(term, numbers(term)), rtol=1e-9)


def test_addends_of_one_product_of_matrices_stay_together():
    bias = half("k", B, H, J, D) + half("bias", D)
    assert with_addends_multiplied_out(sum_over(D, half("q", B, H, I, D) * bias)) == sum_over(
        D, half("q", B, H, I, D) * bias
    )
    single = sum_over(D, of("q", B, H, I, D) * (of("k", B, H, J, D) + of("r", I, J, D)))  # cancels in float32 alone
    assert with_addends_multiplied_out(single) == single


# Rows of a stored part as one


def test_dims_of_one_side_become_one_dim_of_rows():
    part = sum_over(D, of("q", B, H, I, D) * of("r", I, J, D))
    table = with_rows_as_one(part, [part], (B, H, I))
    ((rows, index),) = table.places
    assert rows.size == 6 and table.values.dims == {rows, I, J}
    again = substitute(table.values, {iota(rows): index})
    np.testing.assert_allclose(evaluate(again, numbers(part)), evaluate(part, numbers(part)), rtol=1e-12)
    stored = StoredPart(part, "", values=table.values, places=table.places)
    assert stored.axes((B, H, I)) == (rows, I, J)
    assert replace(stored, last=I).axes((B, H, I)) == (rows, J, I)


def test_one_dim_and_dims_of_unknown_length_stay():
    part = sum_over(D, of("q", H, I, D) * of("r", I, J, D))
    assert with_rows_as_one(part, [part], (H, I)) is None
    several = Dim("n", "n")
    part = sum_over(D, of("q", several, H, I, D) * of("r", I, J, D))
    assert with_rows_as_one(part, [part], (several, H, I)) is None
    part = sum_over(D, of("q", B, H, I, D) * of("r", I, J, D))
    assert with_rows_as_one(part, [part], (H, I)) is None


# Folds of pairs over a longer dim, place by place


def squared(q, k, v):
    return torch.softmax(-(q[:, :, None] - k[:, None]).square().sum(-1), -1) @ v


def largest(q, k, v):
    return torch.softmax(-(q[:, :, None] - k[:, None]).abs().amax(-1), -1) @ v


def least(q, k, v):
    return torch.softmax((q[:, :, None] * 2 - k[:, None]).abs().amin(-1), -1) @ v


def additive(q, k, v):
    return torch.softmax((torch.tanh(q[:, :, None] + k[:, None]) * v[:, :1, None]).sum(-1), -1) @ v


def beside_a_product(q, k, v):
    return torch.softmax(q @ k.mT - (q[:, :, None] - k[:, None]).square().sum(-1).sqrt(), -1) @ v


def neighbours(q, k, v):
    """Each place meets the one before it: no place of its own to step over."""
    return torch.softmax(-(q[:, :, None, 1:] - k[:, None, :, :-1]).square().sum(-1), -1) @ v


@pytest.mark.sampled(1)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64])
@pytest.mark.parametrize("function, steps", [
    (squared, True), (largest, True), (least, True), (additive, True), (beside_a_product, None), (neighbours, False),
])  # fmt: skip
def test_longer_folds_of_pairs_step_over_their_dim(function, steps, dtype):
    torch.manual_seed(0)
    tensors = [torch.randn(2, rows, 33).to(dtype) for rows in (20, 37, 37)]
    plan = planned(function, tensors)
    (kernel,) = plan.kernels
    text = emit(kernel, plan).text
    steps = steps and not (function is squared and dtype == torch.bfloat16)  # which is a product
    assert steps is None or ("in tl.range(0, 33, num_stages=1" in text) == steps
    assert not steps or "None, :, :" not in text
    (result,) = Launcher(plan).results(dict(zip("qkv", tensors, strict=True)))
    exact = function(*(x.double() for x in tensors))
    most = {torch.float32: 1e-4, torch.bfloat16: 3e-2, torch.float64: 1e-11}[dtype]
    assert (result - exact).abs().max() < most


# Columns of two dims


def attend(q, k, v):
    return torch.einsum("bhij,bjhpx->bihpx", torch.softmax(torch.einsum("bihc,bjhc->bhij", q, k), -1), v)


def attend_weighted(q, k, v, weight):
    return attend(q, k, v) * weight


def inputs(dtype=torch.float32):
    torch.manual_seed(0)
    return [torch.randn(2, 20, 3, *last).to(dtype) for last in ((16,), (16,), (5, 3))]


def planned(function, tensors):
    return optimize_all(translate(program_of(function, *tensors)).results).plan


@pytest.mark.parametrize("run", [tiled_results, lambda plan, values: Launcher(plan).results(values)])
def test_two_dims_of_values_are_columns_of_one_matrix(run):
    tensors = inputs()
    plan = planned(attend, tensors)
    (kernel,) = plan.kernels
    assert [d.size for d in kernel.held] == [16, 15]
    (result,) = run(plan, dict(zip(inspect.signature(attend).parameters, tensors, strict=True)))
    torch.testing.assert_close(result, attend(*tensors), rtol=1e-4, atol=1e-5)


def test_dims_of_which_something_has_one_alone_stay_two():
    plan = planned(attend_weighted, [*inputs(), torch.randn(3)])
    assert {5, 3} <= {d.size for d in plan.kernels[0].held}


def test_columns_that_no_tile_holds_stay_two():
    rows, first, second = Dim("r", 9), Dim("f", 32), Dim("s", 16)
    term = of("v", rows, first, second) + 1.0
    store = Store(term, Tensor("output", "float32", (9, 32, 16)), (rows, first, second))
    assert mergeable_pair([store], store, {first, second}, 256) is None
    assert mergeable_pair([store], store, {second}, 512) is None
    assert mergeable_pair([store], store, {first, second}, 512) == (first, second)


# Scores between products of different batches


def with_pairs(q, k, pair):
    """Scores for each head, and values for each query: of no dim are both products ones of matrices."""
    weights = torch.softmax(torch.einsum("ihc,jhc->hij", q, k), -1)
    return torch.einsum("hij,ijc->ihc", weights, pair)


def pairs(rows, heads, columns, dtype=torch.float32):
    torch.manual_seed(0)
    return [torch.randn(*shape).to(dtype) for shape in ((rows, heads, 16), (rows, heads, 16), (rows, rows, columns))]


@pytest.mark.parametrize("dtype, columns, stored", [
    (torch.float32, 8, True), (torch.float32, 7, False), (torch.bfloat16, 16, True), (torch.bfloat16, 15, False),
])  # fmt: skip
def test_scores_are_stored_where_the_pairs_take_as_much_memory(dtype, columns, stored):
    tensors = pairs(20, 8, columns, dtype)
    plan = planned(with_pairs, tensors)
    assert len(plan.kernels) == (2 if stored else 1)
    (result,) = tiled_results(plan, dict(zip(("q", "k", "pair"), tensors, strict=True)))
    exact = with_pairs(*(x.double() for x in tensors))
    assert (result - exact).abs().max() < (1e-4 if dtype is torch.float32 else 2e-2)


def test_scores_with_rows_of_their_own_are_not_stored():
    (result,) = translate(program_of(attend, *inputs())).results
    planning = prepared(normalised([result]))
    shape = replace(planning.shapes[result.output.name], rows=Dim("unknown", 20))
    planning = replace(planning, focus=result.output.name, shapes={result.output.name: shape})
    assert not scores_between_batches(planning)
