"""torch.cdist of which only reductions are read: the nearest code of a vector quantiser, Chamfer's distance.

Before, the distances were stored: cdist was no product of which reductions are looked for.
"""

import math

import pytest
import torch
import torch.nn.functional as F

from tests.support.one_product import fused


def quantised(x, codes):
    """A vector quantiser with its commitment loss."""
    nearest = codes[torch.cdist(x, codes).argmin(-1)]
    return x + (nearest - x).detach(), F.mse_loss(x.detach(), nearest) + 0.25 * F.mse_loss(nearest.detach(), x)


def chamfer(x, codes):
    distances = torch.cdist(x, codes)
    return (distances.amin(1).mean() + distances.amin(0).mean(),)


def soft_least(x, codes):
    return (-(-torch.cdist(x, codes)).logsumexp(-1),)


PROGRAMS = [quantised, chamfer, soft_least]


def rows_and_codes(rows, codes, width=24):
    generator = torch.Generator().manual_seed(0)
    return [torch.randn(n, width, generator=generator).requires_grad_() for n in (rows, codes)]


@pytest.mark.parametrize("sizes", [(70, 100), (12, 20)], ids=["by a product", "by differences"])
@pytest.mark.parametrize("program", PROGRAMS)
def test_no_distances_are_stored(program, sizes, monkeypatch):
    mine = rows_and_codes(*sizes)
    exact = [x.detach().double().requires_grad_() for x in mine]
    found, report = fused(program, *mine, monkeypatch=monkeypatch)
    wanted = program(*exact)
    for one, other in zip(found, wanted, strict=True):
        torch.testing.assert_close(one.double(), other, atol=1e-5, rtol=1e-5)
    assert report.fused == 1 and not report.refusals
    stored = [math.prod(s.output.shape) for r in report.regions for k in r.data.plan.kernels for s in k.stores]
    assert max(stored) <= max(sizes)
    for results in (found, wanted):
        sum(x.sum() for x in results).backward()
    for one, other in zip(mine, exact, strict=True):
        torch.testing.assert_close(one.grad.double(), other.grad, atol=1e-5, rtol=1e-5)


@pytest.mark.sampled(1)
@pytest.mark.parametrize("executor", ["tiled", "triton"])
@pytest.mark.parametrize("order", [1.0, 2.0, math.inf])
def test_the_nearest_of_equal_and_hostile_codes(order, executor, monkeypatch):
    """Whole numbers, codes that are equal, a row of NaN, an infinite number: eager's positions."""
    generator = torch.Generator().manual_seed(0)
    x, codes = (torch.randint(-2, 3, (n, 24), generator=generator).float() for n in (20, 24))
    codes[7], codes[9], x[3], x[4, 2] = codes[3], codes[3], math.nan, math.inf
    x[0] = codes[9]
    nearest = lambda x, codes: torch.cdist(x, codes, p=order).argmin(-1)
    found, _ = fused(nearest, x, codes, executor=executor, monkeypatch=monkeypatch)
    assert torch.equal(found, nearest(x, codes))
