"""Gradients of biases that a batch shares had tiles of 128 x 128, which kept 100 registers of a thread in memory.

Their sum over the batch is a tile of rows and columns, and no number of each row, which leaves registers. Where larger
tiles are too few for a device, they stay: the sum is done in parts, as a test of plans of biases says.
"""

import pytest
import torch

from onepass.compiler import compiled_region
from onepass.compiler.options import Options
from onepass.graph.trace import program_of
from onepass.lowering.plan.kernel_config import TritonConfig
from onepass.lowering.triton.default_config import default_for
from onepass.training.plans import training


def with_bias(q, k, v, bias):
    return torch.softmax(q @ k.mT / 8 + bias, -1) @ v


def log_sums(x, w):
    return torch.logsumexp(x @ w.mT, -1)


def inputs(batch, heads, length, width):
    of = lambda *sizes: torch.randn(*sizes, dtype=torch.bfloat16)
    return [*(of(batch, heads, length, width) for _ in range(3)), of(heads, length, length)]


SQUARE, TALL = TritonConfig(64, 64, 4, 3), TritonConfig(128, 64, 8, 3)


@pytest.mark.parametrize("width, tiles", [(32, SQUARE), (64, SQUARE), (128, TALL)])
def test_tiles_of_the_sum_over_a_batch(width, tiles):
    given = inputs(4, 16, 512, width)
    found = compiled_region.make(program_of(with_bias, *given), Options(), (), {})
    plan = training(found.text, [True] * 4).every.region.plan
    (kernel,) = [one for one in plan.kernels if one.stores[0].output.name == "grad_bias"]
    assert kernel.columns and default_for(kernel, "sm_90") == tiles
    assert default_for(kernel, "gfx942").row_tile == 128, "256 programs do not fill it"


def test_numbers_of_each_row_still_have_wide_tiles():
    given = [torch.randn(n, 64, dtype=torch.bfloat16) for n in (4096, 8192)]
    plan = compiled_region.make(program_of(log_sums, *given), Options()).plan
    assert default_for(plan.kernels[0], "sm_90") == TritonConfig(128, 128, 8, 3)


def test_the_gradient_is_that_of_float64(fresh):
    given = [x.float().requires_grad_() for x in inputs(3, 2, 70, 16)]
    compiled = torch.compile(with_bias, backend="onepass", options={"executor": "tiled", "libraries": False})
    exact = [x.detach().double().requires_grad_() for x in given]
    pairs = [
        torch.autograd.grad(function(*leaves).square().sum(), leaves)
        for function, leaves in ((compiled, given), (with_bias, exact))
    ]
    torch.testing.assert_close(*pairs, check_dtype=False, atol=1e-4, rtol=1e-4)
