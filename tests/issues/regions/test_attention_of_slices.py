"""One head picked from a batch by an index was taken for rows of a batch, and its product with keys for a layer."""

import pytest
import torch

import onepass

pytestmark = pytest.mark.usefixtures("fresh")


def one_head(q, k, v):
    return torch.softmax(q[0, 1] @ k[0, 1].T, -1) @ v[0, 1]


def selected(q, k, v):
    return torch.softmax(q.select(0, 0)[0] @ k.select(0, 0)[0].T, -1) @ v.select(0, 0)[0]


def vectors(q, k, v):
    return torch.mv(v[0, 1].T, torch.softmax(torch.mv(k[0, 1], q[0, 1, 3]), -1))


def layers(x, first, second):
    return torch.softmax(x.flatten(0, 1) @ first, -1) @ second


def inputs():
    return [torch.randn(1, 2, 24, 16) for _ in range(3)]


@pytest.mark.sampled(1)
@pytest.mark.parametrize("function", [one_head, selected, vectors])
def test_it_is_one_region(function):
    found = onepass.explain(function, *inputs())
    assert [region.passes for region in found.regions] == [(3, 1)] and found.refusals == ()


@pytest.mark.parametrize("function", [one_head, selected, vectors])
def test_it_is_computed_right(function):
    given = inputs()
    backend = onepass.onepass_backend(options={"inner": "eager", "executor": "tiled", "strict": True})
    expected = function(*(x.double() for x in given)).float()
    torch.testing.assert_close(torch.compile(function, backend=backend)(*given), expected)


def test_rows_of_a_batch_are_still_layers():
    found = onepass.explain(layers, torch.randn(2, 20, 16), torch.randn(16, 16), torch.randn(16, 16))
    (refused,) = found.refusals
    assert "a product of a batch of rows with one matrix, which is taken for a layer" in refused.reason
