"""Where lengths are no multiple of a tile, ptxas made every product of a warpgroup on sm_90 wait for the one before.

A loop of one tile, with nothing to load ahead, has one stage now; accumulators of 512 columns have one loop for all.
tests/lowering/triton/test_kernel_ahead_of_time.py compiles both ("ragged", "latents").
"""

import pytest
import torch

from onepass.lowering.plan.kernel_config import TritonConfig
from onepass.lowering.plan.records import Store
from onepass.lowering.planning.planner import plan_stores
from onepass.lowering.triton.kernel import emit
from onepass.lowering.triton.launch import Launcher
from tests.lowering.triton.test_kernel import DEVICE, attention, inputs_of

CASES = {"two loops": (16, False, 2), "a causal mask": (16, True, 2), "one loop": (512, False, 1)}


@pytest.mark.parametrize(("width", "causal", "loops"), CASES.values(), ids=CASES)
def test_a_loop_of_one_tile_has_one_stage(width, causal, loops):
    plan = plan_stores([Store(*attention(33, 75, value_width=width, causal=causal))])
    heads = [line for line in emit(plan.kernels[0], plan).text.splitlines() if "in tl.range(" in line]
    assert len(heads) == loops
    assert [("num_stages=1" in line) for line in heads] == [False, not causal][:loops], heads


@pytest.mark.parametrize(("width", "causal", "loops"), CASES.values(), ids=CASES)
@pytest.mark.parametrize("columns", [7, 64, 75])
def test_every_column_counts_once(width, causal, loops, columns):
    plan = plan_stores([Store(*attention(33, columns, value_width=width, causal=causal))])
    tensors = {name: x.to(DEVICE) for name, x in inputs_of(plan, {}).items()}
    found = Launcher(plan, TritonConfig(16, 16, 4, 1))(tensors)
    q, k, v = (tensors[name].double() for name in "qkv")
    scores = q @ k.mT / 16**0.5
    if causal:
        scores = scores.masked_fill(torch.ones(33, columns, device=DEVICE).tril() == 0, float("-inf"))
    assert (found.double() - scores.softmax(-1) @ v).abs().max() < 1e-5
