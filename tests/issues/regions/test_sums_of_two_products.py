"""Two products that are added up, of whose sum only reductions are read: each was a region with the same reductions.

The second could not be put into the graph, and the report had a failure.
"""

import pytest
import torch

from tests.support.one_product import fused, in_float64


def added(x, w, u, v):
    return (x @ w.T + u @ v.T).logsumexp(-1)


def times(x, w, u, v):
    return ((x @ w.T) * (u @ v.T)).sigmoid().sum(-1)


@pytest.mark.parametrize("function", [added, times])
@pytest.mark.parametrize("hostile", [0.0, float("inf"), float("nan")])
def test_one_of_them_has_the_reductions(function, hostile, monkeypatch):
    given = [torch.randn(n, 24) / 2 for n in (70, 90, 70, 90)]
    given[0][3, 5] += hostile
    found, report = fused(function, *given, monkeypatch=monkeypatch)
    assert report.fused == 1 and not report.failures
    torch.testing.assert_close(found.double(), in_float64(function, *given), rtol=1e-4, atol=1e-4, equal_nan=True)
