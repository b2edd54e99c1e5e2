"""The backward of padded keys ran as two kernels: where keys are rows, the mask stands behind the loop over queries.

Joined, each product is done once, and tiles of keys that are all padding are left out.
"""

import pytest
import torch

from onepass.lowering.joined.form import bind_joined
from onepass.lowering.joined.join import join
from onepass.lowering.readback.check_plan import differs
from onepass.lowering.tiled.executor import tiled_results
from tests.support.backwards import hold_gradients
from tests.support.gluon_ahead_of_time import backward_plan

pytestmark = pytest.mark.usefixtures("fresh")
SHAPE = (2, 3, 320, 16)


def padded(q, k, v, kept):
    score = (q @ k.mT * 0.25).masked_fill(~kept[:, None, None, :], -torch.inf)
    return score.softmax(-1) @ v


def padded_before(q, k, v, kept):
    """Causal as well."""
    before = torch.ones(q.shape[-2], k.shape[-2], dtype=torch.bool, device=q.device).tril()
    score = (q @ k.mT * 0.25).masked_fill(~(kept[:, None, None, :] & before), -torch.inf)
    return score.softmax(-1) @ v


def inputs(dtype):
    torch.manual_seed(0)
    kept = torch.arange(SHAPE[2]) < torch.tensor([[320], [77]])
    return [*(torch.randn(SHAPE).to(dtype) for _ in range(3)), kept]


@pytest.mark.parametrize("function", [padded, padded_before])
def test_one_kernel_does_each_product_once(function):
    plan = backward_plan(function, inputs(torch.bfloat16))
    found = join(plan)
    (loop,) = found.main.loops
    assert not isinstance(bind_joined(found.main), str) and not differs(found.plan, plan)
    assert "kept" in {t.name for t in found.main.inputs} and loop.guard is not None
    assert loop.map is not None and loop.map.rows == (found.main.rows,)


@pytest.mark.parametrize("function", [padded, padded_before])
def test_it_computes_what_the_two_kernels_do(function):
    plan = backward_plan(function, inputs(torch.bfloat16))
    q, k, v, kept = inputs(torch.bfloat16)
    known = {"q": q, "k": k, "v": v, "kept": kept}
    values = {t.name: known.get(t.name, torch.randn(t.shape).to(getattr(torch, t.dtype))) for t in plan.inputs}
    for ours, theirs in zip(tiled_results(join(plan).plan, values), tiled_results(plan, values), strict=True):
        assert (ours.double() - theirs.double()).norm() <= 2e-3 * theirs.double().norm()


@pytest.mark.parametrize("function", [padded, padded_before])
def test_gradients_are_those_of_float64(function):
    assert "derived" in hold_gradients(function, inputs(torch.float32), "tiled")
