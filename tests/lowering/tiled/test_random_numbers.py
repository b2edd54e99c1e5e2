"""Tiles of random numbers are parts of one matrix of them, wherever a tile begins."""

import pytest
import torch

from onepass.egraph.terms import philox
from onepass.lowering.tiled.random_numbers import uniform, uniform_range

SEED = torch.tensor([2**62 + 11, 2**60 + 7])


@pytest.mark.parametrize("start, stop", [(0, 16), (1, 2), (3, 9), (6, 8), (4, 4 * 3 + 1)])
@pytest.mark.parametrize("axis", [0, 1])
def test_a_range_has_the_numbers_of_its_places(start, stop, axis):
    rows, columns = torch.arange(5) + 2**31, torch.arange(start, stop)
    shape = lambda x, a: x[:, None] if a == 0 else x[None]
    found = uniform_range(*SEED, shape(rows, 1 - axis), axis, start, stop)
    assert found.dtype == torch.float32
    assert torch.equal(found, uniform(*SEED, shape(rows, 1 - axis), shape(columns, axis)))


def test_numbers_are_those_of_the_generator():
    found = uniform(*SEED, torch.tensor([[2], [9]]), torch.tensor([[0, 5, 6]]))
    expected = [[philox.uniform(*SEED.tolist(), row, column) for column in (0, 5, 6)] for row in (2, 9)]
    assert found.double().tolist() == expected
