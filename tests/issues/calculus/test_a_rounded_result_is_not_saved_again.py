"""A result times a number, stored as a half, was saved once more in float32 for the backward: twice its size."""

import pytest
import torch

import onepass
from onepass.compiler import compiled_region
from onepass.compiler.options import Options
from onepass.graph.trace import program_of
from onepass.training.plans import training

pytestmark = pytest.mark.usefixtures("fresh")


def weighted(q, k, v):
    return torch.softmax(q @ k.mT / 4, -1) * 0.7 @ v


def scaled(q, k, v):
    return weighted(q.float(), k.float(), v.float()).bfloat16()


def inputs():
    torch.manual_seed(0)
    return [torch.randn(1, 2, 300, 16, dtype=torch.bfloat16) for _ in range(3)]


def test_the_backward_reads_the_result():
    found = compiled_region.make(program_of(scaled, *inputs()), Options(executor="tiled"))
    stores = training(found.text, (True, True, True)).stores
    assert [store.output.name for store in stores.saved] == ["log"] and stores.read == (0,)


def test_the_gradients_are_right():
    leaves = [x.requires_grad_() for x in inputs()]
    exact = [x.detach().double().requires_grad_() for x in leaves]
    run = torch.compile(scaled, backend="onepass", options={"inner": "eager", "strict": True})
    run(*leaves).float().square().sum().backward()
    weighted(*exact).square().sum().backward()
    assert onepass.reports()[-1].regions[0].backward.startswith("derived")
    for ours, right in zip(leaves, exact, strict=True):
        torch.testing.assert_close(ours.grad.double(), right.grad, rtol=0.02, atol=0.02)
