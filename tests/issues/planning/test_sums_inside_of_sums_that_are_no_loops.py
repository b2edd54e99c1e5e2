"""A sum over the batch inside of a short sum, beside loops around the batch: no tile had the batch's index.

Found by tests/end_to_end/test_gradcheck.py, in float32 by test_training.py there: the variant of several tokens.
"""

import pytest
import torch

from onepass.compiler import compiled_region
from onepass.compiler.options import Options
from onepass.graph.trace import program_of
from onepass.training.plans import training
from tests.variants.mixtures import several_tokens

pytestmark = pytest.mark.usefixtures("fresh")
NAMES = ("q", "k", "v", "weight")


def tensors(batch):
    shapes = (batch, 2, 40, 8), (batch, 2, 300, 8), (batch, 2, 300, 8), (2, 2, 3)
    return [torch.randn(shape, generator=torch.Generator().manual_seed(n)) for n, shape in enumerate(shapes)]


def derived(batch):
    text = compiled_region.make(program_of(several_tokens, *tensors(batch)), Options()).text
    return training(text, [True] * 4)


def test_no_loop_runs_around_a_dim_of_one_index():
    kernels = derived(1).every.region.plan.kernels
    assert any(kernel.loops for kernel in kernels) and not any(kernel.around for kernel in kernels)


def test_a_dim_that_a_loop_runs_around_and_a_tile_holds_has_no_plan():
    found = derived(2)
    assert isinstance(found, str) and "which the kernel has elsewhere, too" in found


@pytest.mark.parametrize("batch", [1, 2])
def test_gradients_are_right(batch):
    compiled = torch.compile(several_tokens, backend="onepass", options={"inner": "eager", "strict": True})
    found = []
    for function, cast in ((compiled, torch.Tensor.float), (several_tokens, torch.Tensor.double)):
        leaves = [cast(x).clone().requires_grad_() for x in tensors(batch)]
        found.append(torch.autograd.grad(function(*leaves).square().sum(), leaves))
    for name, mine, exact in zip(NAMES, *found, strict=True):
        assert (mine.double() - exact).abs().max() <= 5e-5 * exact.abs().max(), name
