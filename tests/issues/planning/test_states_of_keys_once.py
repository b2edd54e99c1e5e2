"""Linear attention over some hundred static keys summed keys times values again for each tile of rows, with all keys
held in the tile: on a GPU such a tile did not fit."""

import pytest
import torch
from torch.nn.functional import elu

from onepass.compiler.optimize import optimize_all
from onepass.graph.trace import program_of
from onepass.lowering.plan.thresholds import MAX_RESIDENT_ELEMENTS
from onepass.lowering.tiled.executor import tiled_results
from onepass.translate.translate import translate


def linear(q, k, v):
    return (elu(q) + 1) @ ((elu(k) + 1).mT @ v)


@pytest.fixture
def planned():
    torch.manual_seed(0)
    inputs = [torch.randn(2, 614, 128) for _ in range(3)]
    return optimize_all(translate(program_of(linear, *inputs)).results).plan, inputs


def test_the_state_is_stored_once_and_nothing_long_is_held(planned):
    plan, _ = planned
    assert len(plan.kernels) == 2
    assert all(d.size <= MAX_RESIDENT_ELEMENTS for kernel in plan.kernels for d in kernel.held)


def test_it_computes_the_right_thing(planned):
    plan, inputs = planned
    found = tiled_results(plan, {t.name: x for t, x in zip(plan.inputs, inputs, strict=True)})
    exact = linear(*(x.double() for x in inputs))
    torch.testing.assert_close(found[0].double(), exact, rtol=1e-5, atol=1e-3)
