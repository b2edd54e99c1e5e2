"""Tiles of random numbers are parts of one matrix of them, wherever a tile begins."""

import pytest
import torch

from onepass.egraph.terms import philox
from onepass.lowering.tiled import random_numbers
from onepass.lowering.tiled.random_numbers import Places, uniform, uniform_tile

SEED = torch.tensor([2**62 + 11, 2**60 + 7])
MATRICES = torch.tensor([3, 2**31 + 5])


@pytest.mark.parametrize("columns", [(0, 16), (5, 21), (48, 100), (17, 33)])
@pytest.mark.parametrize("rows", [(0, 64), (3, 20), (2**31 - 3, 2**31 + 40)])
@pytest.mark.parametrize("axes", [(1, 2), (2, 1)])
def test_a_tile_has_the_numbers_of_its_places(axes, rows, columns):
    at = lambda values, axis: values.view([-1 if k == axis else 1 for k in range(3)])
    found = uniform_tile(*SEED, at(MATRICES, 0), Places(axes[0], *rows), Places(axes[1], *columns))
    assert found.dtype == torch.float32
    each = uniform(*SEED, at(MATRICES, 0), at(torch.arange(*rows), axes[0]), at(torch.arange(*columns), axes[1]))
    assert torch.equal(found, each)


def test_many_numbers_are_made_in_parts(monkeypatch):
    made = lambda: uniform_tile(*SEED, MATRICES[:, None, None], Places(1, 5, 90), Places(2, 16, 64))
    whole = made()
    monkeypatch.setattr(random_numbers, "MAX_COUNTERS_ON_A_CPU", 1)
    assert torch.equal(made(), whole)


def test_numbers_are_those_of_the_generator():
    found = uniform(*SEED, torch.tensor(1), torch.tensor([[2], [9]]), torch.tensor([[0, 5, 12]]))
    expected = [[philox.uniform(*SEED.tolist(), 1, row, column) for column in (0, 5, 12)] for row in (2, 9)]
    assert found.double().tolist() == expected
