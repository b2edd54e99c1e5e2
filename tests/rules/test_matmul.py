"""Squared distances of bfloat16 become one product, by a law; what other types have keeps its differences."""

import pytest
import torch

from onepass.compiler.optimize import optimize_all
from onepass.graph.trace import program_of
from onepass.lowering.triton.kernel import emit
from onepass.lowering.triton.launch import Launcher
from onepass.rules.matmul import distance_by_product
from onepass.translate.translate import translate

BFLOAT16 = torch.bfloat16


def gaussian(q, k, v):
    return torch.softmax(-(q[:, :, None] - k[:, None]).square().sum(-1) / 8, -1) @ v


def euclidean(q, k, v):
    return torch.softmax(-torch.cdist(q, k), -1) @ v


def norm(q, k, v):
    return torch.softmax(-torch.linalg.vector_norm(q[:, :, None] - k[:, None], dim=-1), -1) @ v


def in_space(q, k, v):
    """Points of three coordinates: Σ over points, too."""
    q, k = (x.unflatten(-1, (-1, 3)) for x in (q, k))
    return torch.softmax(-(q[:, :, None] - k[:, None]).square().sum((-1, -2)), -1) @ v


def tensors(dtype, width=24):
    torch.manual_seed(0)
    return [torch.randn(2, rows, width).to(dtype) for rows in (20, 37, 37)]


def planned(function, inputs):
    return optimize_all(translate(program_of(function, *inputs)).results)


@pytest.mark.sampled(1)
@pytest.mark.parametrize("function", [gaussian, norm, in_space])
def test_distances_of_bfloat16_are_a_product(function):
    inputs = tensors(BFLOAT16)
    found = planned(function, inputs)
    (kernel,) = found.plan.kernels
    text = emit(kernel, found.plan).text
    assert "tl.dot(q_tile" in text and "tl.range(0, 24" not in text
    (result,) = Launcher(found.plan).results(dict(zip("qkv", inputs, strict=True)))
    exact = function(*(x.double() for x in inputs))
    own = (function(*inputs) - exact).abs().max()
    assert (result - exact).abs().max() <= own + torch.finfo(BFLOAT16).eps


@pytest.mark.parametrize("dtype", [torch.float16, torch.float32])
def test_others_keep_their_differences(dtype):
    found = planned(gaussian, tensors(dtype))
    assert "tl.dot(q_tile" not in emit(found.plan.kernels[0], found.plan).text


@pytest.mark.parametrize("function", [norm, euclidean])
def test_a_distance_of_nothing_is_no_root_of_a_negative_number(function):
    """Far from the origin a product may round below zero where a point meets itself."""
    inputs = tensors(torch.bfloat16)
    inputs[0] = inputs[1] = (inputs[1] * 300).round()
    if function is euclidean:  # which torch has for no bfloat16 on a GPU, but on a CPU
        inputs = [x.float() for x in inputs]
    (result,) = Launcher(planned(function, inputs).plan).results(dict(zip("qkv", inputs, strict=True)))
    exact = function(*(x.double() for x in inputs))
    assert result.isfinite().all() and (result - exact).abs().max() < 0.02


def test_it_is_by_the_law_under_its_assumption():
    assert distance_by_product.name in planned(gaussian, tensors(torch.bfloat16)).plan.derivation
    assert distance_by_product.assumption == "half inputs are finite and rounded"


def own_rows(x, v):
    return torch.softmax(-(x[:, :, None] - x[:, None]).square().sum(-1), -1) @ v


def of_two_parts(x, v):
    q, k = x.chunk(2, -1)
    return torch.softmax(-(q[:, :, None] - k[:, None]).square().sum(-1), -1) @ v


@pytest.mark.parametrize("function, product", [(own_rows, False), (of_two_parts, True)])
def test_a_row_and_itself_are_nothing_apart(function, product):
    derivation = planned(function, [torch.randn(2, 37, 24).bfloat16() for _ in range(2)]).plan.derivation
    assert (distance_by_product.name in derivation) == product
