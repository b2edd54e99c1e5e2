"""Several results of a product whose rows are short enough for a tile come from one kernel.

Each had a kernel of its own, which read the rows and made the product again. Example: a router's largest score over 64
experts, and which expert it is.
"""

import pytest
import torch

from onepass import explain
from onepass.graph import reduced_products
from tests.support.one_product import fused, in_float64


def statistics(x, w):
    score = x @ w.T
    return score.amax(-1), score.amin(-1), score.logsumexp(-1)


def confidence(x, w):
    score = x @ w.T
    return score.argmax(-1), score.softmax(-1).amax(-1)


PROGRAMS = {"router": lambda x, w: (x @ w.T).max(-1), "statistics": statistics, "confidence": confidence}


def given(columns):
    torch.manual_seed(0)
    return torch.randn(70, 32), torch.randn(columns, 32)


@pytest.mark.parametrize("columns", [7, 64, 200])
@pytest.mark.parametrize("name", PROGRAMS)
def test_one_kernel_makes_all_results(name, columns, monkeypatch):
    monkeypatch.setattr(reduced_products, "LEAST_ELEMENTS", 1)
    torch._dynamo.reset()
    (region,) = explain(PROGRAMS[name], *given(columns), options={"executor": "tiled"}).regions
    (kernel,) = region.kernels
    assert len(kernel.products) == 1 and len(kernel.stores) == len(PROGRAMS[name](*given(columns)))


@pytest.mark.parametrize("executor", ["tiled", pytest.param("triton", marks=pytest.mark.slow)])
@pytest.mark.parametrize("columns", [7, 200])
@pytest.mark.parametrize("name", PROGRAMS)
def test_it_computes_the_right_thing(name, columns, executor, monkeypatch):
    x, w = given(columns)
    x[3] = 0  # ties
    found, _ = fused(PROGRAMS[name], x, w, executor=executor, monkeypatch=monkeypatch)
    exact, eager = in_float64(PROGRAMS[name], x, w), PROGRAMS[name](x, w)
    for mine, true, plain in zip(found, exact, eager, strict=True):
        if mine.is_floating_point():
            torch.testing.assert_close(mine.double(), true, rtol=1e-5, atol=1e-5, equal_nan=True)
        else:
            assert torch.equal(mine, plain)
