"""Additive scores a[b, i, None] + c[b, None, j] are made of tensors whose last axis is a length. It was taken for the
width of rows and became a number, so that every length compiled again where torch.compile alone compiles once. Found by
`make fuzz`, seed 77.
"""

import pytest
import torch
import torch.nn.functional as F

import onepass

WIDTH = 16


def additive(q, k, v, a):
    scores = F.leaky_relu((q @ a)[..., None] + (k @ a)[:, None], 0.2)
    return scores.softmax(-1) @ v


def of_numbers(q, k, v):
    """The numbers of rows and columns are inputs themselves."""
    return torch.softmax(torch.tanh(q[..., :, None] + k[..., None, :]), -1) @ v


def biased(q, k, v, bias):
    return torch.softmax((q @ k.mT + bias[:, None]).relu(), -1) @ v


CASES = {  # function, shapes at lengths of rows and columns
    "additive": (additive, lambda i, j: [(2, i, WIDTH), (2, j, WIDTH), (2, j, WIDTH), (WIDTH,)]),
    "as many rows as columns of values": (additive, lambda i, j: [(2, i, WIDTH), (2, j, WIDTH), (2, j, 13), (WIDTH,)]),
    "numbers": (of_numbers, lambda i, j: [(2, i), (2, j), (2, j, WIDTH)]),
    "a bias of columns": (biased, lambda i, j: [(2, i, WIDTH), (2, j, WIDTH), (2, j, WIDTH), (2, j)]),
}


@pytest.mark.sampled(2)
@pytest.mark.parametrize("name", CASES)
def test_another_length_is_no_other_graph(name):
    function, shapes = CASES[name]
    torch._dynamo.reset()
    before = len(onepass.reports())
    options = {"inner": "eager", "strict": True}
    run = torch.compile(function, backend="onepass", dynamic=True, options=options)
    lengths = ((12, 24), (18, 31), (7, 5)) if "as many" not in name else ((13, 24),)
    for i, j in lengths:
        torch.manual_seed(i)
        given = [torch.randn(shape, dtype=torch.float64) for shape in shapes(i, j)]
        torch.testing.assert_close(run(*given), function(*given), rtol=1e-9, atol=1e-9)
    (report,) = onepass.reports()[before:]  # each graph has one
    assert not report.refusals and len(report.regions) == 1 and len(report.regions[0].kernels) == 1
