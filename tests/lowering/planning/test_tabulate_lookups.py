"""What a place of rows and columns picks from a table: products once for each row of the table, and skewed weights.

Computed by both executors, the emitted kernels in Triton's interpreter where there is no GPU, beside float64.
"""

import math

import pytest
import torch

import onepass
from onepass.egraph.terms.ops import const, iota, load, maximum, minimum, reduce
from onepass.egraph.terms.term import Dim, Tensor
from onepass.lowering.analysis.relative_index import is_relative, relative_factors, relative_scores, relative_values
from onepass.lowering.cost import estimated_plan
from onepass.lowering.plan.kernel_config import TritonConfig
from onepass.lowering.planning.tabulate_lookups import lookup_table
from onepass.lowering.tiled.executor import tiled_results
from onepass.lowering.triton.kernel import emit
from onepass.lowering.triton.launch import Launcher
from tests.lowering.planning.test_inline_producers import named, planned

FAR = 5


def _apart(q, k):
    return torch.arange(k.shape[-2]) - torch.arange(q.shape[-2])[:, None]


def _near(q, k):
    return _apart(q, k).clamp(-FAR, FAR) + FAR


def values_of_places(q, k, v, table):
    weights = torch.softmax(q @ k.mT, -1)
    return weights @ v + torch.einsum("bhlr,lrd->bhld", weights, table[_near(q, k)])


def values_of_every_distance(q, k, v, table):
    weights = torch.softmax(q @ k.mT, -1)
    return torch.einsum("bhlr,lrd->bhld", weights, table[_apart(q, k) + q.shape[-2] - 1])


def values_before(q, k, v, table):
    """Under a mask that leaves out tiles; of a row without any key nothing is asked."""
    scores = (q @ k.mT).masked_fill(_apart(q, k) > 0, -math.inf)
    return torch.einsum("bhlr,lrd->bhld", torch.softmax(scores, -1), table[_near(q, k)])


def values_without_a_softmax(q, k, v, table):
    weights = torch.sigmoid(q @ k.mT) * (_apart(q, k) <= 3)
    return weights @ v + torch.einsum("bhlr,lrd->bhld", weights, table[_near(q, k)] * 0.5)


def values_for_each_head(q, k, v, table):
    tables = torch.stack([table, table.flip(0)])
    return torch.einsum("bhlr,hlrd->bhld", torch.softmax(q @ k.mT, -1), tables[:, _near(q, k)])


def keys_of_two_tables(q, k, v, table):
    """Places of queries and of keys, in one score without a product of matrices beside them."""
    places = table[_near(q, k)]
    scores = torch.einsum("bhld,lrd->bhlr", q, places) + torch.einsum("bhrd,lrd->bhlr", k, places)
    return torch.softmax(scores, -1) @ v


def keys_of_every_distance(q, k, v, table):
    """Of rows and of columns: products over differences, skewed back."""
    places = table[_apart(q, k) + q.shape[-2] - 1]
    scores = torch.einsum("bhld,lrd->bhlr", q, places) + torch.einsum("bhrd,lrd->bhlr", k, places * 0.5)
    return torch.softmax(q @ k.mT + scores, -1) @ v


def keys_by_distance(q, k, v, table):
    """A fold that is no product."""
    places = table[_near(q, k)]
    return torch.softmax(q @ k.mT - (q[:, :, :, None] - places).abs().sum(-1), -1) @ v


def keys_without_a_softmax(q, k, v, table):
    return torch.sigmoid(q @ k.mT + torch.einsum("bhld,lrd->bhlr", q, table[_near(q, k)])) @ v


VALUES = [values_of_places, values_of_every_distance, values_before, values_without_a_softmax, values_for_each_head]
KEYS = [keys_of_two_tables, keys_of_every_distance, keys_by_distance, keys_without_a_softmax]


def inputs(function, rows, columns, dtype=torch.float32, dim=16):
    torch.manual_seed(rows + columns)
    length = rows + columns - 1 if "every" in function.__name__ else 2 * FAR + 1
    shapes = (2, 2, rows, dim), (2, 2, columns, dim), (2, 2, columns, dim), (length, dim)
    return [torch.randn(shape).to(dtype) for shape in shapes]


def computed(function, given):
    plan = planned(function, given)
    values = named(function, plan, given)
    return plan, (tiled_results(plan, values)[0], Launcher(plan).results(values)[0])


@pytest.mark.sampled(1)
@pytest.mark.parametrize("rows, columns", [(1, 40), (40, 1), (33, 70), (128, 64), (130, 129)])
@pytest.mark.parametrize("function", VALUES + KEYS)
def test_they_compute_the_same(function, rows, columns):
    given = inputs(function, rows, columns)
    _, found = computed(function, given)
    exact = function(*(x.double() for x in given))
    for result in found:
        torch.testing.assert_close(result.double(), exact, atol=2e-5, rtol=2e-5)


@pytest.mark.sampled(1)
@pytest.mark.parametrize("function", VALUES)
def test_values_are_multiplied_as_matrices_in_one_kernel(function, monkeypatch):
    monkeypatch.setattr(estimated_plan, "LEAST_GAIN", math.inf)  # no scores of so few rows are stored to save time
    given = inputs(function, 128, 128, torch.bfloat16)
    plan, found = computed(function, given)
    source = emit(plan.kernels[-1], plan)
    assert len(plan.kernels) == 1 and "tl.gather(" in source.text and "tl.dot(skewed" in source.text
    once_more, first = source.text.split("def kernel0(")
    assert "skewed" not in once_more and first.count("kernel0_exactly(") == 1  # where a sum is not finite
    assert source.may_run_again
    eager, exact = function(*given), function(*(x.double() for x in given))
    for result in found:
        assert (result - exact).abs().max() <= 2 * (eager - exact).abs().max() + 1e-3


def test_keys_of_every_distance_take_one_kernel():
    given = inputs(keys_of_every_distance, 128, 128, torch.bfloat16)
    plan, found = computed(keys_of_every_distance, given)
    (kernel,) = plan.kernels
    source = emit(kernel, plan)
    assert source.text.count("tl.gather(tl.dot(") == 4  # of rows and of columns, in whole tiles and the last
    assert not source.may_run_again  # a row meets no place but its own
    eager, exact = keys_of_every_distance(*given), keys_of_every_distance(*(x.double() for x in given))
    for result in found:
        assert (result - exact).abs().max() <= 2 * (eager - exact).abs().max() + 1e-3


def odd_values_without_a_softmax(q, k, v, table):
    """Weights of both signs, and 0 between them."""
    scores = q @ k.mT
    return torch.einsum("bhlr,lrd->bhld", scores.relu() - (-scores - 1).relu(), table[_near(q, k)])


@pytest.mark.slow
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("values", [[math.nan], [math.inf], [-math.inf], [math.inf, -math.inf]], ids=str)
@pytest.mark.parametrize("function", [*VALUES, odd_values_without_a_softmax])
def test_what_a_value_is_stays_in_the_rows_that_weigh_it(function, values, dtype):
    given = inputs(function, 40, 70, dtype)
    for place, value in enumerate(values):
        given[3][place, 1:] = value  # the first columns are finite in all rows
    _, found = computed(function, given)
    eager, exact = function(*given), function(*(x.double() for x in given))
    assert exact[..., 1:].isfinite().any() and not exact.isfinite().all() and exact[..., 0].isfinite().all()
    for result in found:
        assert torch.equal(result.isnan(), exact.isnan()) and torch.equal(result.isinf(), exact.isinf())
        error, own = ((x.double() - exact).nan_to_num().abs().max() for x in (result, eager))
        assert error <= 2 * own + 2e-5 + torch.finfo(dtype).eps * exact[exact.isfinite()].abs().max()


def values_in_a_window(q, k, v, table):
    keep = _apart(q, k).abs() <= 21
    weights = torch.softmax((q @ k.mT).masked_fill(~keep, -math.inf), -1)
    return torch.einsum("bhlr,lrd->bhld", weights, table[_near(q, k)])


def values_of_ranges(q, k, v, table):
    """Columns of a window, and the first ones: a loop that counts through pieces."""
    keep = (_apart(q, k).abs() <= 21) | (torch.arange(k.shape[-2]) < 19)
    weights = torch.softmax((q @ k.mT).masked_fill(~keep, -math.inf), -1)
    return torch.einsum("bhlr,lrd->bhld", weights, table[_near(q, k)])


@pytest.mark.slow
@pytest.mark.parametrize("parts", [1, 3])
@pytest.mark.parametrize("function", [values_of_places, values_of_every_distance, values_in_a_window, values_of_ranges])
def test_one_column_at_a_time_is_of_the_same_columns(function, parts):
    """Some programs find what is not finite, others of the same rows do not: each has the columns that it had."""
    given = inputs(function, 40, 150)
    given[3][50 if "every" in function.__name__ else 0, 3] = math.nan
    plan = planned(function, given)
    (kernel,) = plan.kernels
    launcher = Launcher(plan, {kernel.name: TritonConfig(16, 16, 4, 1, chunks=parts)})
    (result,) = launcher.results(named(function, plan, given))
    exact = function(*(x.double() for x in given))
    (expected,) = tiled_results(plan, named(function, plan, given))
    assert result.isnan().any() and not result.isnan().all() and bool(launcher.shared) == (parts > 1)
    torch.testing.assert_close(result, expected, atol=2e-5, rtol=2e-5, equal_nan=True)
    seen = exact.isfinite()
    torch.testing.assert_close(result[seen].double(), exact[seen], atol=2e-5, rtol=2e-5)


@pytest.mark.slow
@pytest.mark.parametrize("executor", ["tiled", "triton"])
@pytest.mark.parametrize("function", [*VALUES[:3], *KEYS[:2]])
def test_one_compilation_serves_every_length(function, executor):
    options = {"inner": "eager", "executor": executor, "strict": True, "libraries": False}
    torch._dynamo.reset()
    compiled = torch.compile(function, backend="onepass", options=options, dynamic=True)
    before = torch._dynamo.utils.counters["stats"]["unique_graphs"]
    for rows, columns in ((40, 60), (33, 70), (71, 29)):
        given = inputs(function, rows, columns)
        exact = function(*(x.double() for x in given))
        torch.testing.assert_close(compiled(*given).double(), exact, atol=2e-5, rtol=2e-5)
    assert torch._dynamo.utils.counters["stats"]["unique_graphs"] == before + 1


# Which terms are such products

i, j, d, e = Dim("i", 30), Dim("j", 20), Dim("d", 8), Dim("e", 4)


def table_at(index, rows, dim=d):
    return load(Tensor("table", "float32", (rows, dim.size)), index, iota(dim))


def of_rows(dim=i):
    return load(Tensor("q", "float32", (dim.size, d.size)), iota(dim), iota(d))


def picked_from(rows, index=None):
    return reduce("sum", d, of_rows() * table_at(iota(j) - iota(i) + 29 if index is None else index, rows))


@pytest.mark.parametrize("rows", [9, 20, 4000])
def test_only_rows_of_a_table_that_a_place_can_be_are_multiplied(rows):
    index = minimum(maximum(iota(j) - iota(i), const(-4)), const(4)) + 4
    found = lookup_table(picked_from(rows, index), j)
    ((dim, place),) = found.places
    assert dim.size == 9 and found.values.dims == {i, dim} and place is index


def test_what_the_difference_picks_from_a_long_table_stays_in_the_loop():
    assert lookup_table(picked_from(49), j) is None
    (i_, t) = (load(Tensor("q", "float32", (30, d.size)), iota(i), iota(d)), table_at(iota(j) - iota(i) + 29, 49))
    found = relative_scores([i_, t], i, j, d)
    assert found.others == (i_,) and found.dim.size == 49
    assert relative_scores([i_, of_rows(j), t], i, j, d) is None and relative_scores([t], i, j, d) is None


def test_a_table_of_which_any_row_may_be_picked_is_not_multiplied_whole():
    data = load(Tensor("places", "int64", (30, 20)), iota(i), iota(j))
    assert lookup_table(picked_from(80, data), j) is not None
    assert lookup_table(picked_from(81, data), j) is None


def test_both_sides_may_be_read_at_places():
    flat = iota(i) * 20 + iota(j) + 7
    body = load(Tensor("q", "float32", (9, d.size)), flat // 80, iota(d)) * table_at(flat % 80, 80)
    found = lookup_table(reduce("sum", d, body), j)
    assert [dim.size for dim, _ in found.places] == [8, 80] and not {i, j} & found.values.dims
    assert lookup_table(reduce("sum", d, body * load(Tensor("w", "float32", (30, 20)), iota(i), iota(j))), j) is None


def test_a_place_of_rows_alone_picks_nothing():
    assert lookup_table(picked_from(49, iota(i) + 3), j) is None
    assert lookup_table(reduce("sum", d, table_at(iota(j) - iota(i) + 29, 49) * of_rows(j) * of_rows()), j) is None


def test_only_what_the_difference_alone_picks_is_skewed():
    weight, apart = load(Tensor("w", "float32", (30, 20)), iota(i), iota(j)), iota(j) - iota(i) + 29
    assert is_relative(table_at(apart, 49, e), i, j)
    found = relative_values([weight, table_at(apart, 49, e)], i, j)
    assert found.others == (weight,) and found.dim.size == 49 and all(v.dims == {found.dim, e} for v in found.values)
    assert not relative_factors([weight, table_at(iota(j) + iota(i), 49, e)], i, j)
    assert not relative_factors([weight, load(Tensor("t", "float32", (49,)), apart)], i, j)
    assert not relative_factors([table_at(apart, 49, e)], i, j)


def places_under_a_sigmoid(q, k, v, table):
    """Keys and values of every distance: both products weight what is made of the scores."""
    places = _apart(q, k) + q.shape[-2] - 1
    weights = torch.sigmoid(q @ k.mT + torch.einsum("bhld,lrd->bhlr", q, table[places]))
    return weights @ v + torch.einsum("bhlr,lrd->bhld", weights, table[places] * 0.5)


@pytest.mark.slow
@pytest.mark.parametrize("rows, columns", [(40, 30), (30, 300)])
def test_two_products_of_weights_without_a_reduction_are_one_region(rows, columns):
    given = [*inputs(keys_of_every_distance, rows, columns)]
    found = onepass.explain(places_under_a_sigmoid, *given)
    assert not found.refusals and [len(region.kernels) for region in found.regions] == [1]
    torch._dynamo.reset()
    options = {"inner": "eager", "executor": "tiled", "strict": True, "libraries": False}
    result = torch.compile(places_under_a_sigmoid, backend="onepass", options=options)(*given)
    exact = places_under_a_sigmoid(*(x.double() for x in given))
    torch.testing.assert_close(result.double(), exact, atol=2e-5, rtol=2e-5)
