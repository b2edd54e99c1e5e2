"""Triton writes a product of three dims that is summed over the middle one as a product of matrices in TensorFloat-32.

The gradient of latent attention's values was off by 1e-3 in float32 so, and its kernels were not used. Found by random
programs on a GPU. Run as a program, this file prints what Triton makes of the kernels, without its interpreter.
"""

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from onepass.api.backend import onepass_backend
from onepass.compiler import compiled_region
from onepass.compiler.options import Options
from onepass.graph.trace import program_of
from onepass.lowering.triton.kernel import emit
from onepass.training.plans import training

pytestmark = pytest.mark.usefixtures("fresh")
ROOT = Path(__file__).parents[3]


def latent(q, z, up, values):
    s = torch.einsum("bhid,hld,bjl->bhij", q, up, z)
    return (s * 0.1).softmax(-1) @ values


def inputs(dtype=torch.float32):
    torch.manual_seed(0)
    shapes = (1, 3, 6, 16), (1, 6, 9), (3, 9, 16), (1, 3, 6, 16)
    return [torch.randn(shape, dtype=dtype) for shape in shapes]


def backward_of(dtype):
    found = compiled_region.make(program_of(latent, *inputs(dtype)), Options())
    return training(found.text, [False, False, False, True]).every.region.plan


@pytest.mark.sampled(1)
@pytest.mark.parametrize("dtype, kept", [(torch.float32, True), (torch.bfloat16, False)])
def test_what_is_emitted(dtype, kept):
    (kernel,) = (plan := backward_of(dtype)).kernels
    lines = [line for line in emit(kernel, plan).text.splitlines() if "tl.sum(sum_c" in line]
    assert lines and all((" + 0.0" in line) == kept for line in lines)


@pytest.mark.slow
def test_no_product_is_in_less_precision_than_was_asked_for():
    environment = {**os.environ, "TRITON_INTERPRET": "0", "PYTHONPATH": str(ROOT)}
    done = subprocess.run([sys.executable, __file__], env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert "tt.dot" in done.stdout and "tf32" not in done.stdout


@pytest.mark.sampled(1)
@pytest.mark.parametrize("executor", ["tiled", "triton"])
def test_the_gradient_is_right(executor):
    given = inputs()
    given[3].requires_grad_()
    options = {"strict": True, "inner": "eager", "executor": executor, "libraries": False}
    result = torch.compile(latent, backend=onepass_backend, dynamic=False, options=options)(*given)
    cotangent = torch.randn_like(result)
    (found,) = torch.autograd.grad(result, given[3], cotangent)
    exact = [x.detach().double() for x in given]
    (right,) = torch.autograd.grad(latent(*exact[:3], exact[3].requires_grad_()), exact[3], cotangent.double())
    torch.testing.assert_close(found.double(), right, rtol=0, atol=2e-6)


if __name__ == "__main__":
    from tests.support.ahead_of_time import compiled_kernel

    plan = backward_of(torch.float32)
    print(*(compiled_kernel("sm_90", plan, kernel).asm["ttir"] for kernel in plan.kernels))
