"""A mask of half of the keys has a symbol of its own: taken for a width, it made every length compile anew."""

import pytest
import torch

from tests.support.one_graph import serves_all

pytestmark = pytest.mark.usefixtures("fresh")


def halves(q, k, v, mask):
    """Keys cut at k // 2, and a mask for each half's scores."""
    n = k.shape[1] // 2
    scores = (q @ part.mT for part in (k[:, :n], k[:, n:]))
    first, second = (s.masked_fill(~mask, -1e4).softmax(-1) for s in scores)
    return first @ v[:, :n] + second @ v[:, n:]


def biased(q, k, v, mask):
    n = k.shape[1] // 2
    return (q @ k[:, :n].mT + mask.float()).softmax(-1) @ v[:, :n]


@pytest.mark.sampled(1)
@pytest.mark.parametrize("function", [halves, biased])
def test_one_graph_serves_all_lengths(function):
    def call(rows, keys):
        tensors = torch.randn(2, rows, 16), torch.randn(2, keys, 16), torch.randn(2, keys, 12)
        return *tensors, torch.rand(rows, keys // 2) > 0.2

    serves_all(function, (call(*sizes) for sizes in ((7, 20), (7, 10), (11, 44))))
