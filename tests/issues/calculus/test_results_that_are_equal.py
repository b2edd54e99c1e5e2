"""Of two results with one term, one cotangent was lost: the gradients were those of the other alone.

A matrix product that a program writes twice is two results of one region. Found by `tests.fuzz --gradients --seed
4000`.
"""

import pytest
import torch

from onepass.compiler import compiled_region
from onepass.compiler.options import Options
from onepass.egraph.terms.traversal import tensors as tensors_of
from onepass.graph.trace import program_of
from onepass.training.plans import training

pytestmark = pytest.mark.usefixtures("fresh")


def attended_twice(q, k, v):
    weights = torch.softmax(q @ k.mT, -1)
    return weights @ v, weights @ v


def tensors():
    return [torch.randn(2, n, 8) for n in (40, 300, 300)]


@pytest.mark.sampled(1)
@pytest.mark.parametrize("given", [(True, True), (True, False), (False, True)])
def test_gradients_read_the_cotangents_that_are_given(given):
    text = compiled_region.make(program_of(attended_twice, *tensors()), Options()).text
    stores = training(text, [True] * 3).backward((True, True, True), given).region.plan.kernels
    read = {t.name for kernel in stores for store in kernel.stores for t in tensors_of(store.term)}
    assert [name in read for name in ("grad_output", "grad_output1")] == [*given]


@pytest.mark.sampled(1)
@pytest.mark.parametrize("given", [(True, True), (True, False), (False, True)])
def test_gradients_are_right(given):
    inputs = tensors()
    compiled = torch.compile(attended_twice, backend="onepass", options={"inner": "eager", "strict": True})
    cotangents = [torch.randn(2, 40, 8) for g in given if g]
    found = []
    for function, cast in ((compiled, torch.Tensor.float), (attended_twice, torch.Tensor.double)):
        leaves = [cast(x).clone().requires_grad_() for x in inputs]
        results = [r for r, g in zip(function(*leaves), given, strict=True) if g]
        found.append(torch.autograd.grad(results, leaves, [cast(g) for g in cotangents]))
    for mine, exact in zip(*found, strict=True):
        torch.testing.assert_close(mine.double(), exact, atol=5e-5, rtol=0)
