"""Sums along diagonals, through slots, for tiles of many shapes, against a sum over all pairs."""

import pytest
import torch

from onepass.egraph.terms.ops import const, iota, le, load, where
from onepass.egraph.terms.term import Dim, Tensor
from onepass.lowering.plan.kernel_config import TritonConfig
from onepass.lowering.plan.launch_facts import Facts
from onepass.lowering.plan.records import Kernel, NotPlannable, Plan, Store
from onepass.lowering.tiled.executor import run_tiled
from onepass.lowering.triton.kernel import emit
from onepass.lowering.triton.launch import Launcher
from tests.lowering.triton.test_kernel import DEVICE

B = Dim("b", 2)


def plan_of(rows: int, columns: int, place, dtype="float32"):
    """A kernel that adds a masked matrix along diagonals, at a place by rows i and columns j."""
    i, j = Dim("i", rows), Dim("j", columns)
    x = load(Tensor("x", dtype, (2, rows, columns)), iota(B), iota(i), iota(j))
    term = where(le(iota(j), iota(i) + 5), x, const(0.0))
    output = Tensor("sums", dtype, (2, rows + columns - 1))
    store = Store(term, output, (B, i, j), (iota(B), place(iota(i), iota(j), rows, columns)))
    inputs = (Tensor("x", dtype, (2, rows, columns)),)
    kernel = Kernel("kernel0", (B,), i, "i_tile", (), (), (store,), inputs, columns=(j,))
    return Plan((kernel,), inputs, (output,))


PLACES = {
    "columns - rows": lambda i, j, n, m: j - i + (n - 1),
    "rows - columns": lambda i, j, n, m: i - j + (m - 1),
}


@pytest.mark.sampled(2)
@pytest.mark.parametrize("tile", [(16, 16), (64, 16), (16, 64), (32, 32)])
@pytest.mark.parametrize("rows, columns", [(1, 1), (1, 70), (70, 1), (50, 70), (70, 50), (64, 64)])
@pytest.mark.parametrize("name", PLACES)
def test_each_place_has_the_sum_of_its_pairs(name, rows, columns, tile):
    torch.manual_seed(0)
    plan = plan_of(rows, columns, PLACES[name])
    x = torch.randn(2, rows, columns, device=DEVICE)
    i, j = torch.arange(rows, device=DEVICE)[:, None], torch.arange(columns, device=DEVICE)
    kept = torch.where(j <= i + 5, x, 0).double().flatten(1)
    place = PLACES[name](i, j, rows, columns).broadcast_to(rows, columns).flatten()
    expected = torch.zeros(2, rows + columns - 1, dtype=torch.double, device=DEVICE).index_add_(1, place, kept)
    for found in (run_tiled(plan, {"x": x}), Launcher(plan, TritonConfig(*tile, 4, 1))({"x": x})):
        torch.testing.assert_close(found.double(), expected, rtol=1e-5, atol=1e-5)


def test_what_is_not_a_number_stays_on_its_diagonal():
    plan, x = plan_of(40, 40, PLACES["columns - rows"]), torch.ones(2, 40, 40, device=DEVICE)
    x[0, 3, 1], x[1, 8, 8] = torch.nan, torch.inf
    for found in (run_tiled(plan, {"x": x}), Launcher(plan, TritonConfig(16, 16, 4, 1))({"x": x})):
        assert [(b.item(), p.item() - 39) for b, p in (~found.isfinite()).nonzero()] == [(0, -2), (1, 0)]


def test_double_precision_is_kept():
    plan = plan_of(40, 40, PLACES["columns - rows"], "float64")
    x = torch.randn(2, 40, 40, dtype=torch.double, device=DEVICE)
    first, second = run_tiled(plan, {"x": x}), Launcher(plan, TritonConfig(16, 16, 4, 1))({"x": x})
    torch.testing.assert_close(first, second, rtol=1e-14, atol=1e-14)


def test_other_places_have_no_kernel():
    plan = plan_of(40, 40, lambda i, j, n, m: i + j)
    with pytest.raises(NotPlannable, match="no diagonals"):
        emit(plan.kernels[0], plan, Facts())
