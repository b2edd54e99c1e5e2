"""Slots of a launch are added up: each number goes to the place of its diagonal, in one order."""

import pytest
import torch

from onepass.lowering.plan.kernel_config import TritonConfig
from onepass.lowering.triton.slot_sums import SlotSum
from tests.lowering.triton.test_diagonal_sums import PLACES, plan_of
from tests.lowering.triton.test_kernel import DEVICE


def slots_of(name, rows, columns, tile):
    (kernel,) = plan_of(rows, columns, PLACES[name]).kernels
    return SlotSum.of(kernel, kernel.stores[0], TritonConfig(*tile, 4, 1), {}, {})


@pytest.mark.parametrize("tile", [(16, 16), (32, 16), (16, 32)])
@pytest.mark.parametrize("name", PLACES)
def test_each_number_of_a_slot_goes_to_its_place(name, tile):
    rows, columns = 50, 70
    found = slots_of(name, rows, columns, tile)
    torch.manual_seed(0)
    slots = found.made(torch.device(DEVICE))
    expected = torch.zeros(2, rows + columns - 1, dtype=torch.double, device=DEVICE)
    for point, row, column in torch.cartesian_prod(*map(torch.arange, found.shape)).tolist():
        for number in range(sum(tile) - 1):
            far = column * tile[1] - row * tile[0] + number - (tile[0] - 1)
            if 1 - rows <= far <= columns - 1:
                slots[point, row, column, number] = value = torch.randn(())
                place = far + rows - 1 if name == "columns - rows" else columns - 1 - far
                expected[point, place] += value
    sums = torch.full_like(expected, torch.nan, dtype=torch.float32)
    found.add(slots, sums)
    torch.testing.assert_close(sums.double(), expected, rtol=1e-5, atol=1e-5)


def test_slots_are_few():
    found = slots_of("columns - rows", 4096, 4096, (64, 64))
    points, *tiles = found.shape
    assert (points, *tiles) == (2, 64, 64) and 32 * sum(found.tile) <= found.tile[0] * found.tile[1]
