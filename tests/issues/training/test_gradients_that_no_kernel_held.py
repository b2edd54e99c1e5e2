"""The gradient of a learned sink had a kernel that no GPU can hold, and the first guess of a plan was the only one.

So torch computed the backward, in 7 times the time. Plans of gradients are chosen by estimated time now, as those of
results are: another value is stored, and all kernels fit.
"""

from math import isfinite

import pytest
import torch

from onepass.lowering.cost.estimated_plan import Estimator
from onepass.lowering.planning.planner import plan_stores
from onepass.training import searched_forms
from tests.support.backwards import backward_of, hold_gradients, leaves

pytestmark = pytest.mark.usefixtures("fresh")


def with_sink(q, k, v, sink):
    """Grouped queries, causal, and a learned score beside those of each row."""
    k, v = (x.repeat_interleave(q.shape[1] // x.shape[1], 1) for x in (k, v))
    before = torch.ones(q.shape[-2], k.shape[-2], dtype=torch.bool, device=q.device).tril()
    score = (q @ k.mT / q.shape[-1] ** 0.5).masked_fill(~before, -torch.inf)
    column = sink.reshape(1, -1, 1, 1).expand(score.shape[0], -1, score.shape[2], -1)
    both = torch.cat([score, column], dim=-1)
    return torch.softmax(both - both.max(dim=-1, keepdim=True).values, dim=-1)[..., :-1] @ v


def test_every_kernel_of_the_chosen_plan_fits(monkeypatch):
    asked = []
    chosen = searched_forms.plan_by_cost
    noted = lambda stores, *given, **named: asked.append(stores) or chosen(stores, *given, **named)
    monkeypatch.setattr(searched_forms, "plan_by_cost", noted)
    plan = backward_of(with_sink, *leaves((8, 32, 2048, 64), (8, 4, 2048, 64), (8, 4, 2048, 64), (32,)))
    estimated = Estimator([{}])
    assert isfinite(estimated(plan).seconds[0]) and not isfinite(estimated(plan_stores(asked[0])).seconds[0])
    assert any("could not be written otherwise" in note for note in plan.notes)


def test_gradients_are_those_of_float64():
    torch.manual_seed(0)
    inputs = [torch.randn(2, 4, 40, 16), *(torch.randn(2, 2, 40, 16) for _ in range(2)), torch.randn(4)]
    assert "derived" in hold_gradients(with_sink, inputs, "tiled")
