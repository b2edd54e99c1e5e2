"""A sum over the inner dim of low-rank keys moved around the exponential that binds the same dim: no backward was made.

Found by `tests.fuzz --gradients --seed 9102`.
"""

import pytest
import torch

from onepass.compiler import compiled_region
from onepass.compiler.options import Options
from onepass.graph.trace import program_of
from onepass.training.plans import training

pytestmark = pytest.mark.usefixtures("fresh")
NAMES = ("q", "latent", "up", "down")


def attended(q, latent, up, down):
    weights = torch.softmax(torch.einsum("bhid,hld,bjl->bhij", q, up, latent), -1)
    return torch.einsum("bhij,bjl,hle->bhie", weights, latent, down)


def tensors():
    shapes = (2, 3, 40, 8), (2, 300, 12), (3, 12, 8), (3, 12, 4)
    return [torch.randn(shape, generator=torch.Generator().manual_seed(k)) for k, shape in enumerate(shapes)]


def test_a_gradient_that_is_read_as_key_and_as_value_has_a_plan():
    text = compiled_region.make(program_of(attended, *tensors()), Options()).text
    found = training(text, [True] * 4)
    assert not isinstance(found, str), found
    assert "grad_latent" in {tensor.name for tensor in found.every.region.plan.outputs}


def test_gradients_are_right():
    compiled = torch.compile(attended, backend="onepass", options={"inner": "eager", "strict": True})
    found = []
    for function, cast in ((compiled, torch.Tensor.float), (attended, torch.Tensor.double)):
        leaves = [cast(x).clone().requires_grad_() for x in tensors()]
        found.append(torch.autograd.grad(function(*leaves).square().sum(), leaves))
    for name, mine, exact in zip(NAMES, *found, strict=True):
        assert (mine.double() - exact).abs().max() <= 2e-5 * exact.abs().max(), name
