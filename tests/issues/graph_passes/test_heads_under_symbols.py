"""With symbolic sizes, torch has one symbol for equal sizes. With as many heads as head dims, the head dim was taken
for a number of heads and stayed symbolic, and all scores were stored. torch's attention with heads that share keys was
refused, since their number was a symbol.
"""

import pytest
import torch
import torch.nn.functional as F

import onepass


def attention(q, k, v):
    return torch.softmax(q @ k.mT / 4, -1) @ v


def by_einsum(q, k, v):
    weight = torch.softmax(torch.einsum("bihd,bjhd->bhij", q, k), -1)
    return torch.einsum("bhij,bjhe->bihe", weight, v)


def grouped(q, k, v):
    return F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)


HEADS, WIDTH = 16, 16
CASES = {  # function, shapes at a length
    "as many heads": (attention, lambda n: [(2, HEADS, n, WIDTH)] * 3),
    "as many heads, behind lengths": (by_einsum, lambda n: [(2, n, HEADS, WIDTH)] * 3),
    "as large a batch": (attention, lambda n: [(WIDTH, 3, n, WIDTH)] * 3),
    "heads that share keys": (grouped, lambda n: [(2, 8, n, WIDTH), (2, 2, n, WIDTH), (2, 2, n, WIDTH)]),
}


@pytest.mark.sampled(1)
@pytest.mark.parametrize("with_gradients", [False, True])
@pytest.mark.parametrize("name", CASES)
def test_scores_are_not_stored(name, with_gradients):
    function, shapes = CASES[name]
    torch._dynamo.reset()
    before = len(onepass.reports())
    compiled = torch.compile(function, backend="onepass", dynamic=True, options={"inner": "eager"})
    for length in (40, 56):
        torch.manual_seed(length)
        given = [torch.randn(shape, dtype=torch.float64, requires_grad=with_gradients) for shape in shapes(length)]
        found, right = compiled(*given), function(*given)
        torch.testing.assert_close(found, right)
        if with_gradients:
            found, right = (torch.autograd.grad(x, given, torch.ones_like(x).cumsum(-1)) for x in (found, right))
            torch.testing.assert_close(found, right)
    (report,) = onepass.reports()[before:]
    assert not report.refusals and len(report.regions) == 1, "lengths stay symbols: one graph serves both"
    (region,) = report.regions
    assert len(region.kernels) == 1
    assert "derived, 3 kernels" in region.backward if with_gradients else "no gradient" in region.backward
