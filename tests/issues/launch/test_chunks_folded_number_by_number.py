"""A sum over many products of two numbers had the tiles of a product of matrices: 512 numbers a thread.

ptxas took more than 100 seconds for one kernel, which was refused then, as it kept thousands of registers in memory.
Example: the gradient of a factor of one row of weights that are a result, Σ_i Σ_b Σ_j g[b, i, j] · p[b, i, j]. Found by
random programs with gradients.
"""

import pytest
import torch

from onepass.compiler.optimize import optimize_all
from onepass.graph.trace import program_of
from onepass.lowering.triton.default_config import default_for, of_chunks
from onepass.translate.translate import translate
from tests.support.triton_runs import run_triton


def folded(x, y):
    return (x * y).sum(-1).sum(0).sum(-1)


def multiplied(x, y):
    return (x @ y.mT).logsumexp(-1)


def both(x, y):
    return (x @ y.mT + (x[:, None] - y).abs().sum(-1)).logsumexp(-1)


def plan_of(function, *given):
    return optimize_all(translate(program_of(function, *given)).results).plan


def test_a_thread_has_few_numbers():
    first, *_ = plan_of(folded, *(torch.empty(2, 1, 723, 723) for _ in range(2))).kernels
    config, places = default_for(first, "sm_90", 1), 32
    assert config.row_tile * config.loop_tile * places <= 16 * 32 * config.warps


@pytest.mark.parametrize("count", [1, 64])
@pytest.mark.parametrize("function", [multiplied, both])
def test_products_of_matrices_keep_theirs(function, count):
    *_, kernel = plan_of(function, torch.empty(64, 1024), torch.empty(640, 1024)).kernels
    assert default_for(kernel, "sm_90", count) == of_chunks(4, few=count < 16)


@pytest.mark.parametrize("heads", [1, 3])
def test_what_is_computed_is_right(heads):
    torch.manual_seed(0)
    x, y = torch.randn(2, 2, heads, 5, 600)
    plan = plan_of(folded, x, y)
    found = run_triton(plan, {t.name: given for t, given in zip(plan.inputs, (x, y), strict=True)})
    torch.testing.assert_close(found.double(), folded(x.double(), y.double()), rtol=1e-5, atol=1e-3)
