"""Scores and weights mixed over a batch inside of a kernel's loop: tiles of three dims, against float64.

What two kernels store for each other never has rows and columns at once, and no product is done again for a mixture.
"""

import math

import pytest
import torch

from onepass.graph.trace import program_of
from onepass.lowering.plan.kernel_config import TritonConfig
from onepass.lowering.plan.records import NotPlannable
from onepass.lowering.tiled.executor import run_tiled
from onepass.lowering.triton.kernel import emit
from onepass.lowering.triton.launch import Launcher
from onepass.translate.translate import translate
from tests.support.plans import own_plan

ROWS, COLUMNS, WIDTH = 20, 300, 64
SMALL = TritonConfig(16, 32, 4, 1)


def mixed(q, k, v, before, after, causal=False):
    score = torch.einsum("hg,bgij->bhij", before, q @ k.mT / math.sqrt(q.shape[-1]))
    if causal:
        columns, rows = torch.arange(k.shape[-2], device=q.device), torch.arange(q.shape[-2], device=q.device)
        score = score.masked_fill(columns > rows[:, None] + COLUMNS - ROWS, -math.inf)
    return torch.einsum("hg,bgij->bhij", after, torch.softmax(score, -1)) @ v


def inputs_for(before, after=None, dtype=torch.float16, width=WIDTH):
    """Queries of as many heads as the first mixture has, values of as many as the second one makes."""
    after, middle = after or before, before + (after or 0)
    heads = (before, before, after)
    own = [torch.randn(1, h, n, width, dtype=dtype) for h, n in zip(heads, (ROWS, COLUMNS, COLUMNS), strict=True)]
    sizes = [(middle, before), (after, middle)]
    return own + [torch.randn(*size, dtype=dtype) / math.sqrt(size[1]) for size in sizes]


def planned(function, inputs):
    program = program_of(function, *inputs)
    plan = own_plan(translate(program).results)
    return plan, {entry.name: x for entry, x in zip(program.inputs, inputs, strict=True)}


@pytest.mark.sampled(1)
@pytest.mark.parametrize("before, after", [(4, None), (6, None), (16, None), (3, 5)], ids=str)
@pytest.mark.parametrize("causal", [False, True])
def test_kernels_mix_what_they_multiply(before, after, causal):
    torch.manual_seed(0)
    inputs = inputs_for(before, after)
    function = lambda *tensors: mixed(*tensors, causal=causal)
    plan, named = planned(function, inputs)
    between = [store for kernel in plan.kernels[:-1] for store in kernel.stores]
    assert len(plan.kernels) == 2 and all(COLUMNS not in [d.size for d in store.order] for store in between)
    wanted, own = function(*(x.double() for x in inputs)), run_tiled(plan, named)
    torch.testing.assert_close(own.double(), wanted, rtol=2e-3, atol=2e-3)
    found = Launcher(plan, SMALL)(named)
    torch.testing.assert_close(found.double(), wanted, rtol=2e-2, atol=1e-2)


def test_what_is_not_a_number_stays_in_its_row():
    inputs = inputs_for(4)
    inputs[0][0, 1, 5, 7] = math.nan
    plan, named = planned(lambda *tensors: mixed(*tensors), inputs)
    found = Launcher(plan, SMALL)(named).isnan()
    assert found[:, :, 5].all() and found.sum() == found[:, :, 5].numel()


@pytest.mark.slow
def test_no_kernel_for_single_precision_or_for_what_no_tile_holds():
    plan, _ = planned(lambda *tensors: mixed(*tensors), inputs_for(4, dtype=torch.float32))
    for kernel in plan.kernels:
        with pytest.raises(NotPlannable, match="left to torch"):
            emit(kernel, plan)
    plan, _ = planned(lambda *tensors: mixed(*tensors), inputs_for(2))  # one pass: a state for every pair of heads
    with pytest.raises(NotPlannable, match="dims of a tile at once"):
        emit(plan.kernels[0], plan)
    with pytest.raises(NotPlannable, match="done again for each"):
        planned(lambda *tensors: mixed(*tensors), inputs_for(32, width=128))
