"""Which products a tile sums chunk by chunk: long ones in loops that keep one number for each row, and no others."""

import pytest
import torch

from onepass.compiler.optimize import optimize_all
from onepass.graph.trace import program_of
from onepass.lowering.analysis.chunks import chunks, keeps_numbers
from onepass.lowering.plan.queries import nodes
from onepass.translate.translate import translate

ROWS, COLUMNS = 512, 4096


def kernel_of(function, width, dtype=torch.bfloat16, *more):
    given = [torch.empty(ROWS, width, dtype=dtype), torch.empty(COLUMNS, width, dtype=dtype), *more]
    return optimize_all(translate(program_of(function, *given)).results).plan.kernels[0]


def found(kernel):
    return {dim.size: places for dim, places in chunks(kernel, nodes(kernel)).items()}


@pytest.mark.parametrize("width", [257, 1040, 4096])
def test_long_products_are_summed_in_chunks(width):
    of = lambda dtype: found(kernel_of(lambda x, w: (x @ w.T).logsumexp(-1), width, dtype))
    assert of(torch.bfloat16) == {width: 64} and of(torch.float32) == {width: 32}


def test_short_products_are_held_whole():
    kernel = kernel_of(lambda x, w: (x @ w.T).amax(-1), 256)
    assert keeps_numbers(kernel) and not found(kernel)


def test_a_sum_for_each_row_of_the_same_dim_does_not_hinder():
    program = lambda x, w: (x @ w.T).logsumexp(-1) + (x.float() * w[:ROWS].float()).sum(-1)
    assert 520 in found(kernel_of(program, 520))


def test_beside_values_rows_are_held_whole():
    values = torch.empty(COLUMNS, 64, dtype=torch.bfloat16)
    kernel = kernel_of(lambda x, w, v: (x @ w.T).softmax(-1) @ v, 576, torch.bfloat16, values)
    assert not keeps_numbers(kernel) and not found(kernel)
