"""Masked weights that are divided by their own sum were rounded to float16 before the division, and lost there.

Where the largest score is masked, the others have weights near 1e-9; float16 has no number below 6e-8. The result was
off by half. Such a product is one of float32 now; those of a softmax, one of whose weights is 1, stay in float16.
"""

import pytest
import torch

from onepass import onepass_backend
from onepass.compiler.optimize import optimize
from onepass.graph.trace import program_of
from onepass.lowering.triton.kernel import emit
from onepass.translate.translate import translate

pytestmark = pytest.mark.usefixtures("fresh")


def attention(q, k, v, keep):
    weights = torch.softmax((q @ k.mT).float() / 4, -1)
    weights = torch.where(keep, weights, 0.0)
    return (weights / weights.sum(-1, keepdim=True)).to(v.dtype) @ v


def inputs(dtype=torch.float16, largest: float = 11.0):
    torch.manual_seed(0)
    q, k, v = torch.randn(1, 2, 24, 16).abs(), 0.3 * torch.randn(1, 2, 24, 16), torch.randn(1, 2, 24, 16)
    k[..., 0, :] = largest
    keep = torch.ones(24, 24, dtype=torch.bool)
    keep[:, 0] = False
    return [*(x.to(dtype) for x in (q, k, v)), keep]


@pytest.mark.parametrize(("dtype", "rounded"), [(torch.float16, False), (torch.bfloat16, True)], ids=str)
def test_only_bfloat16_is_rounded_before_the_division(dtype, rounded):
    region = translate(program_of(attention, *inputs(dtype)))
    plan = optimize(region.term, region.output, region.order).plan
    text = "".join(emit(kernel, plan).text for kernel in plan.kernels)
    assert (f".to(tl.{str(dtype)[6:]}), v_tile" in text) == rounded


@pytest.mark.sampled(2)
@pytest.mark.parametrize("largest", [4.0, 11.0])
@pytest.mark.parametrize("executor", ["tiled", "triton"])
def test_weights_of_billionths_count(executor, largest):
    given = inputs(largest=largest)
    exact = attention(*(x.double() if x.is_floating_point() else x for x in given))
    options = {"executor": executor, "inner": "eager", "strict": True}
    on_device = [x.cuda() if torch.cuda.is_available() else x for x in given]
    found = torch.compile(attention, backend=onepass_backend, options=options)(*on_device).cpu()
    assert (found.double() - exact).abs().max() < 1e-3
