"""The forward of a loss found the logarithms of its rows twice: once for the loss, which sums them over its rows, and
once for the backward, where these rows are an axis. The two had other names. They share a kernel now.
"""

import pytest
import torch
import torch.nn.functional as F

from onepass import onepass_backend
from onepass.compiler import compiled_region
from onepass.compiler.options import Options
from onepass.graph import reduced_products
from onepass.graph.trace import program_of
from onepass.training.plans import training

pytestmark = pytest.mark.usefixtures("fresh")


def of_a_layer(x, w, y):
    return F.cross_entropy(F.linear(x, w), y)


def drawn(rows=64, classes=300):
    torch.manual_seed(0)
    return torch.randn(rows, 16).requires_grad_(), torch.randn(classes, 16).requires_grad_(), torch.arange(rows)


def test_one_loop_over_the_classes():
    found = compiled_region.make(program_of(of_a_layer, *drawn()), Options(), (), {})
    plan = training(found.text, [True, True, False]).forward.plan
    (kernel,) = (k for k in plan.kernels if any(loop.dim.size == 300 for loop in k.loops))
    assert [s.output.name for s in kernel.stores] == ["part0", "log"] and "name_axes_alike" in plan.plan_passes


def test_the_loss_and_its_gradients(monkeypatch):
    monkeypatch.setattr(reduced_products, "LEAST_ELEMENTS", 1)
    x, w, y = drawn()
    options = {"inner": "eager", "libraries": False, "executor": "tiled"}
    loss = torch.compile(of_a_layer, backend=onepass_backend, options=options)(x, w, y)
    wide = [t.detach().double().requires_grad_() for t in (x, w)]
    right = of_a_layer(*wide, y)
    torch.testing.assert_close(loss.double(), right)
    pairs = zip(torch.autograd.grad(loss, (x, w)), torch.autograd.grad(right, wide), strict=True)
    for found, expected in pairs:
        torch.testing.assert_close(found.double(), expected, rtol=1e-4, atol=1e-6)
