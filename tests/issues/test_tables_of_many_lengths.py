"""The places of a table of distances, 2n + 1 for n rows, were taken for a width: every length compiled anew."""

import pytest
import torch

from onepass.backend import onepass_backend

pytestmark = pytest.mark.usefixtures("fresh")


def clamped(q, k, v, table):
    at = torch.arange(q.shape[-2])
    return torch.softmax(q @ k.mT + table[:, (at[:, None] - at).clamp(-3, 3) + 3], -1) @ v


def picked(q, k, v, table):
    at = torch.arange(q.shape[-2])
    return torch.softmax(q @ k.mT + table[0].index_select(0, at), -1) @ v


@pytest.mark.parametrize("function", [clamped, picked])
def test_one_graph_serves_all_lengths(function):
    graphs = []

    def backend(module, example_inputs):
        graphs.append(module)
        return onepass_backend(module, example_inputs, options={"strict": True, "inner": "eager"})

    run = torch.compile(function, backend=backend, dynamic=True)
    for n in (20, 29, 7):
        inputs = [*(torch.randn(1, 1, n, d) for d in (8, 8, 16)), torch.randn(1, 2 * n + 1)]
        exact = function(*(x.double() for x in inputs))
        torch.testing.assert_close(run(*inputs), exact, check_dtype=False, atol=1e-5, rtol=1e-4)
    assert len(graphs) == 1
    assert any("onepass" in str(node.target) for node in graphs[0].graph.nodes)
