"""The places of a table of distances, 2n + 1 for n rows, were taken for a width: every length compiled anew."""

import pytest
import torch

from tests.support.one_graph import serves_all

pytestmark = pytest.mark.usefixtures("fresh")


def clamped(q, k, v, table):
    at = torch.arange(q.shape[-2])
    return torch.softmax(q @ k.mT + table[:, (at[:, None] - at).clamp(-3, 3) + 3], -1) @ v


def picked(q, k, v, table):
    at = torch.arange(q.shape[-2])
    return torch.softmax(q @ k.mT + table[0].index_select(0, at), -1) @ v


@pytest.mark.sampled(1)
@pytest.mark.parametrize("function", [clamped, picked])
def test_one_graph_serves_all_lengths(function):
    def call(n):
        return *(torch.randn(1, 1, n, d) for d in (8, 8, 16)), torch.randn(1, 2 * n + 1)

    serves_all(function, map(call, (20, 29, 7)))
