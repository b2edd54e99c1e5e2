"""Sigmoid attention with one row had its value dim as rows, and the row on the grid: no product of matrices, keys read
once a query head, and under the option invariant other powers of two for its values than the same row in a prefill has.
"""

import math

import pytest
import torch

from onepass.compiler.optimize import optimize_all
from onepass.graph.trace import program_of
from onepass.lowering.tiled.executor import tiled_results
from onepass.translate.translate import translate


def sigmoids(q, k, v):
    k, v = (x.repeat_interleave(q.shape[1] // x.shape[1], 1) for x in (k, v))
    return torch.sigmoid(q @ k.mT / q.shape[-1] ** 0.5) @ v


def softmaxes(q, k, v):
    k, v = (x.repeat_interleave(q.shape[1] // x.shape[1], 1) for x in (k, v))
    return torch.softmax(q @ k.mT / q.shape[-1] ** 0.5, -1) @ v


def inputs(shared):
    torch.manual_seed(0)
    return [torch.randn(2, heads, n, 24) for heads, n in ((2 * shared, 40), (2, 700), (2, 700))]


def planned(function, given, invariant=False):
    captured = translate(program_of(function, *given))
    plan = optimize_all(captured.results, invariant=invariant).plan
    return plan, lambda: tiled_results(plan, dict(zip([t.name for t in captured.inputs], given, strict=True)))[0]


def shape_of(function, given):
    (kernel,) = planned(function, given)[0].kernels
    return kernel.rows.name, [d.name for d in kernel.held], [d.name for d in kernel.grid]


@pytest.mark.parametrize("shared", [1, 4])
def test_one_row_has_the_shape_that_a_softmax_gives_it(shared):
    q, k, v = inputs(shared)
    assert shape_of(sigmoids, (q[:, :, :1], k, v)) == shape_of(softmaxes, (q[:, :, :1], k, v))


@pytest.mark.parametrize("shared", [1, 4])
def test_and_it_computes_the_right_thing_with_the_bits_of_a_prefill(shared):
    q, k, v = inputs(shared)
    v *= torch.logspace(-3, 3, 24)  # what is cut off is below a part of the largest
    whole = planned(sigmoids, (q, k, v), invariant=True)[1]()
    for row in (0, 39):
        alone = planned(sigmoids, (q[:, :, row : row + 1], k, v), invariant=True)[1]()
        assert torch.equal(alone, whole[:, :, row : row + 1])
        exact = sigmoids(*(x.double() for x in (q[:, :, row : row + 1], k, v)))
        scale = math.sqrt(700) * torch.logspace(-3, 3, 24)
        torch.testing.assert_close(alone / scale, (exact / scale).float(), rtol=1e-4, atol=1e-4)
