"""softmax(q @ k.permute(p) / 4) @ v for every permutation of a k with equal dims: none is taken for another."""

from itertools import permutations

import pytest
import torch

from onepass.api.backend import onepass_backend
from onepass.report import records

ORDERS = sorted(permutations(range(4)))


pytestmark = pytest.mark.usefixtures("fresh")


@pytest.mark.sampled(1)
@pytest.mark.parametrize("order", ORDERS)
def test_each_permutation_equals_eager(order):
    def attention(q, k, v):
        return torch.softmax(q @ k.permute(order) / 4, dim=-1) @ v

    torch.manual_seed(0)
    arguments = [torch.randn(8, 8, 8, 8) for _ in range(3)]
    result = torch.compile(attention, backend=onepass_backend, options={"inner": "eager"})(*arguments)
    (graph,) = records.reports()
    assert [note for region in graph.regions for note in region.notes] == []
    assert graph.regions or graph.refusals
    torch.testing.assert_close(result, attention(*arguments), rtol=1e-4, atol=1e-5)


@pytest.mark.sampled(1)
@pytest.mark.parametrize("order", [(0, 1, 3, 2), (1, 2, 0, 3), (2, 3, 1, 0)])
def test_inductor_does_not_undo_it(order):
    def attention(q, k, v):
        return torch.softmax(q @ k.permute(order) / 4, dim=-1) @ v

    arguments = [torch.randn(8, 8, 8, 8) for _ in range(3)]
    result = torch.compile(attention, backend=onepass_backend)(*arguments)
    torch.testing.assert_close(result, attention(*arguments), rtol=1e-4, atol=1e-5)
