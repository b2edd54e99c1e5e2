"""A choice by a result's own value: behind the sum it held no column back on the grid, and its zeros are no circle."""

import torch
import torch.nn.functional as F

import onepass
from onepass.api.backend import onepass_backend
from tests.variants import heads


def behind(q, k, v):
    return F.leaky_relu(torch.softmax(q @ k.mT, -1) @ v)


def zeros_like_weights(q, k, v):
    weights = torch.softmax(q @ k.mT, -1)
    return torch.where(weights > 0.01, weights, torch.zeros_like(weights)) @ v


def kernels(function):
    found = onepass.explain(function, *heads(2, rows=40, columns=40))
    assert not found.refusals
    return [kernel for region in found.regions for kernel in region.kernels]


def test_columns_of_a_choice_behind_the_sum_are_held():
    (kernel,) = kernels(behind)
    assert kernel.grid == ("b", "h")


def test_zeros_like_the_weights_stay_in_the_region():
    (kernel,) = kernels(zeros_like_weights)
    assert kernel.loops == ("j", "j")


def test_both_are_right():
    torch.manual_seed(0)
    inputs = heads(2, rows=40, columns=40)
    for function in (behind, zeros_like_weights):
        torch._dynamo.reset()
        fast = torch.compile(function, backend=onepass_backend, options={"inner": "eager", "executor": "tiled"})
        torch.testing.assert_close(fast(*inputs), function(*inputs), rtol=1e-4, atol=1e-5)
