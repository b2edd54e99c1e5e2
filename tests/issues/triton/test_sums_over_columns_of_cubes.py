"""Sums over the columns of tiles of three dims crossed the warps of a program: on one H200 the backward of a kernel of
distances, 8 x 4 x 512 of 64 numbers, took 3.1 ms; with the columns as the first axis it takes 0.19."""

import os
import re

import pytest
import torch

from onepass.graph.trace import program_of
from onepass.lowering.codegen.tile_extents import columns_of_cubes
from onepass.lowering.plan.queries import nodes
from onepass.lowering.triton.default_config import CUBES_OF_HALVES, THREE_DIMS, default_for
from onepass.lowering.triton.kernel import emit
from onepass.translate.translate import translate
from tests.support.backwards import backward_of, drawn, hold_gradients, kernel_of, leaves, parts
from tests.support.plans import own_plan

pytestmark = pytest.mark.usefixtures("fresh")


def distances(q, k, v):
    return torch.exp(-(q[..., None, :] - k[..., None, :, :]).square().sum(-1) / 8) @ v


def additive(q, k, v, w):
    return torch.softmax((torch.tanh(q[..., None, :] + k[..., None, :, :]) * w).sum(-1), -1) @ v


def masked(q, k, v):
    i, j = torch.arange(q.shape[-2])[:, None], torch.arange(k.shape[-2])
    return torch.where(j <= i, torch.exp(-(q[..., None, :] - k[..., None, :, :]).square().sum(-1)), 0.0) @ v


def softmax(q, k, v):
    return torch.softmax(q @ k.mT, -1) @ v


def of(function, *, width=64, length=512, **keywords):
    more = [(width,)] if function is additive else []
    return leaves(*[(2, 4, length, width)] * 3, *more, **keywords)


@pytest.mark.parametrize("function", [distances, additive])
@pytest.mark.parametrize("name", ["grad_q", "grad_k"])
def test_the_columns_are_the_first_axis_of_all_tiles(function, name):
    plan = backward_of(function, *of(function))
    kernel = kernel_of(plan, name)
    (loop,) = kernel.loops
    assert columns_of_cubes(kernel, nodes(kernel)) == {loop.dim}
    text = emit(kernel, plan).text
    over_columns = re.findall(r"tl\.sum\(.*\[:, :, None\].*axis=(\d)\)", text)
    assert over_columns and {*over_columns} == {"0"}
    assert f"_{loop.dim}_{kernel.rows}_" in text  # values are named after their dims, in the order of axes


def test_factors_without_the_resident_dim_are_multiplied_first():
    """One product for each element of the tile of three dims, not two."""
    plan = backward_of(distances, *of(distances))
    text = emit(kernel_of(plan, "grad_q"), plan).text
    sums = [line for line in text.splitlines() if "sub_" in line and "tl.sum(" in line]
    assert sums and all(line.count("[:, :, None]") == 1 for line in sums)


def test_a_product_of_matrices_has_its_rows_first():
    plan = backward_of(softmax, *of(softmax))
    for kernel in plan.kernels:
        assert not columns_of_cubes(kernel, nodes(kernel)) and default_for(kernel, "sm_90") != THREE_DIMS


@pytest.mark.parametrize("width, dtype, config", [
    (32, torch.bfloat16, CUBES_OF_HALVES[64]), (64, torch.float16, CUBES_OF_HALVES[64]),
    (128, torch.bfloat16, CUBES_OF_HALVES[128]), (256, torch.bfloat16, THREE_DIMS), (64, torch.float32, THREE_DIMS),
])  # fmt: skip
def test_tiles_of_halves_are_as_large_as_registers_allow(width, dtype, config):
    plan = backward_of(distances, *of(distances, width=width, dtype=dtype))
    assert {default_for(k, "sm_90") for k in plan.kernels if columns_of_cubes(k, nodes(k))} == {config}


def test_a_tile_that_is_loaded_with_three_dims_is_small():
    """All of it is in registers at once, so that a tile of 32 rows spilled."""

    def pairs(q, k, v):
        return torch.einsum("hij,hijd->hid", torch.softmax(q @ k.mT, -1), v)

    inputs = [torch.empty(*shape, dtype=torch.bfloat16) for shape in ((8, 512, 64), (8, 512, 64), (8, 512, 512, 64))]
    (kernel,) = own_plan(translate(program_of(pairs, *inputs)).results).kernels
    assert columns_of_cubes(kernel, nodes(kernel)) and default_for(kernel, "sm_90") == THREE_DIMS


def test_a_short_batch_of_stored_scores_is_on_the_grid():
    """It is no last axis of a result, and nothing is shared along it."""
    plan = backward_of(additive, *of(additive))
    is_part = lambda kernel: {store.output.name for store in kernel.stores} <= {*parts(plan)}
    stored = [kernel for kernel in plan.kernels if kernel.columns and not kernel.loops and is_part(kernel)]
    assert stored and all({d.name for d in kernel.grid} >= {"b", "h"} for kernel in stored)


@pytest.mark.skipif(os.environ.get("TRITON_INTERPRET") != "1", reason="needs Triton's interpreter")
@pytest.mark.parametrize("function", [distances, additive, masked])
@pytest.mark.parametrize("rows, columns", [(33, 50), (16, 17)])
def test_gradients_are_those_of_float64(function, rows, columns):
    torch.manual_seed(0)
    shapes = [(1, 2, rows, 16), (1, 2, rows if function is masked else columns, 16)]
    inputs = drawn([shapes[0], shapes[1], shapes[1], *([(16,)] if function is additive else [])])
    assert "derived" in hold_gradients(function, inputs, "triton")


@pytest.mark.skipif(os.environ.get("TRITON_INTERPRET") != "1", reason="needs Triton's interpreter")
def test_a_large_common_offset_stays_out_of_gradients():
    torch.manual_seed(0)
    inputs = [x + 100 for x in drawn([(1, 2, 40, 16)] * 2)] + drawn([(1, 2, 40, 16)])
    hold_gradients(distances, inputs, "triton", allowed=1e-3)
