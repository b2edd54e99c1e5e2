"""A learned number as the scale of the scores: in half precision its gradient had no kernel (IndexError), in float64 it
was rounded to float32 before it was stored. Found by random programs with gradients on a GPU."""

import pytest
import torch

from onepass.api.backend import onepass_backend
from onepass.compiler import compiled_region
from onepass.compiler.options import Options
from onepass.graph.trace import program_of
from onepass.lowering.executors import kernel_missing
from onepass.lowering.triton.kernel import emit
from onepass.training.plans import training

pytestmark = pytest.mark.usefixtures("fresh")
HALVES = [torch.bfloat16, torch.float16]


def scaled(q, k, v, scale):
    return torch.softmax(q @ k.mT * scale.exp() * 0.3, -1) @ v


def inputs(dtype, rows=19):
    torch.manual_seed(0)
    shapes = ((3, 2, rows, 8), (3, 2, rows, 8), (3, 2, rows, 16), ())
    return [torch.randn(shape, dtype=dtype, requires_grad=True) for shape in shapes]


def backward_of(dtype):
    found = compiled_region.make(program_of(scaled, *inputs(dtype)), Options())
    return training(found.text, [True] * 4).every.region.plan


@pytest.mark.sampled(1)
@pytest.mark.parametrize("dtype", HALVES, ids=str)
def test_each_kernel_has_a_text(dtype):
    assert kernel_missing(backward_of(dtype)) is None


def test_what_is_stored_in_float64_is_not_in_float32_before():
    plan = backward_of(torch.float64)
    assert not any("float32" in emit(kernel, plan).text for kernel in plan.kernels)


@pytest.mark.sampled(1)
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, *HALVES], ids=str)
@pytest.mark.parametrize("executor", ["tiled", "triton"])
def test_gradients_are_right(dtype, executor):
    given = inputs(dtype)
    options = {"inner": "eager", "strict": True, "executor": executor}
    result = torch.compile(scaled, backend=onepass_backend, dynamic=False, options=options)(*given)
    cotangent = torch.randn_like(result)
    found = torch.autograd.grad(result, given, cotangent)
    exact = [x.detach().double().requires_grad_() for x in given]
    right = torch.autograd.grad(scaled(*exact), exact, cotangent.double())
    allowed = 1e-13 if dtype == torch.float64 else 20 * torch.finfo(dtype).eps
    for mine, best in zip(found, right, strict=True):
        assert (mine.double() - best).abs().max() <= allowed * best.abs().max()
