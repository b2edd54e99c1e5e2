"""What axes are made of was divided by a length of 0, outside of what keeps a model running when something fails."""

import pytest
import torch

from onepass.api.backend import onepass_backend
from onepass.graph_passes import replace
from onepass.report import records

pytestmark = pytest.mark.usefixtures("fresh")


def heads(q, k, v):
    weights = torch.softmax(torch.matmul(q * 0.3, k.mT), -1)
    return weights @ v, weights[:, 0]


def grouped(q, k, v):
    q, k, v = (x.flatten(0, 1).unflatten(0, (3, 2)) for x in (q, k, v))
    return torch.softmax(q @ k.mT, -1) @ v


@pytest.mark.parametrize("rows, keys", [(0, 0), (0, 5), (5, 0)])
@pytest.mark.parametrize("function", [heads, grouped])
def test_nothing_is_divided(function, rows, keys):
    inputs = [torch.randn(3, 2, n, 8) for n in (rows, keys, keys)]
    run = torch.compile(function, backend=onepass_backend, options={"strict": True, "inner": "eager"})
    torch.testing.assert_close(run(*inputs), function(*inputs), equal_nan=True)


def test_a_walk_that_fails_leaves_the_graph(monkeypatch):
    def fail(graph):
        raise ZeroDivisionError("in the walk")

    monkeypatch.setattr(replace, "survey", fail)
    inputs = [torch.randn(3, 2, 7, 8) for _ in range(3)]
    run = torch.compile(heads, backend=onepass_backend, options={"inner": "eager"})
    torch.testing.assert_close(run(*inputs), heads(*inputs))
    said = records.reports()[-1]
    assert not said.regions and "in the walk" in said.failures[0]
