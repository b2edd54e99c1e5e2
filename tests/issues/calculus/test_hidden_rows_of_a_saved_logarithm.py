"""Rows hidden by a large negative number had weights of 1 in the backward, where eager's are one by their number.

-3.4e38 + log n is -3.4e38 in float32, so the saved logarithm had lost the sum. Now the shift and the logarithm of what
it leaves are two saved values where a shift may be as large. Found by `python -m tests.fuzz --gradients --seed 0`.
"""

import pytest
import torch

from onepass.compiler import compiled_region
from onepass.compiler.options import Options
from onepass.graph.trace import program_of
from onepass.lowering.tiled.executor import tiled_results
from onepass.lowering.triton.launch import launcher
from onepass.training.plans import training

pytestmark = pytest.mark.usefixtures("fresh")


def chosen(q, k, v, keep, bias):
    return torch.softmax(torch.where(keep, q @ k.mT, LEAST), -1) @ v


def added(q, k, v, keep, bias):
    return torch.softmax(q @ k.mT + torch.zeros_like(keep, dtype=q.dtype).masked_fill(~keep, LEAST), -1) @ v


def given(q, k, v, keep, bias):
    return torch.softmax(q @ k.mT + bias, -1) @ v


def moderate(q, k, v, keep, bias):
    return torch.softmax(torch.where(keep, q @ k.mT, -torch.inf), -1) @ v


LEAST = torch.finfo(torch.float32).min
INPUTS = ("q", "k", "v", "keep", "bias")


def tensors():
    torch.manual_seed(0)
    q, k, v = (torch.randn(2, n, 16) for n in (40, 300, 300))
    keep, bias = torch.rand(40, 300) < 0.5, torch.zeros(40, 300)
    keep[3], bias[5] = False, LEAST
    return [q, k, v, keep, bias]


def trained(function):
    text = compiled_region.make(program_of(function, *tensors()), Options()).text
    return training(text, (True, True, True, False, False))


def by_triton(plan, values):
    return launcher(plan).results(values, {}, {})


@pytest.mark.sampled(1)
@pytest.mark.parametrize("function", [chosen, added, given])
def test_shift_and_logarithm_are_saved_apart(function):
    assert [store.output.name for store in trained(function).stores.saved] == ["shift", "log"]


def test_one_number_is_saved_where_shifts_are_moderate():
    assert [store.output.name for store in trained(moderate).stores.saved] == ["log"]


@pytest.mark.sampled(1)
@pytest.mark.parametrize("run", [tiled_results, by_triton])
@pytest.mark.parametrize("function", [chosen, added, given])
def test_gradients_are_right(function, run):
    found, inputs = trained(function), tensors()
    outputs = run(found.forward.plan, dict(zip(INPUTS, inputs, strict=True)))
    cotangent = torch.randn_like(outputs[0])
    backward = found.every
    values = (*inputs, *(outputs[k] for k in backward.kept), cotangent)
    gradients = run(backward.region.plan, dict(zip(backward.region.names, values, strict=True)))
    leaves = [x.double().requires_grad_() for x in inputs[:3]]
    exact = torch.autograd.grad(function(*leaves, inputs[3], inputs[4].double()), leaves, cotangent.double())
    for mine, right in zip(gradients, exact, strict=True):
        torch.testing.assert_close(mine.double(), right, atol=2e-5 * right.abs().max().item(), rtol=0)
