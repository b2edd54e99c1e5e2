"""Plans whose tensors have their axes in the order of memory: the same elements, named in another order."""

import pytest
import torch

from onepass.compiler.optimize import optimize_all
from onepass.graph.trace import program_of
from onepass.lowering.executors import EXECUTORS
from onepass.lowering.launch.axis_order import in_memory_order, turned_back
from onepass.lowering.tiled.executor import tiled_results
from onepass.translate.translate import translate


def attention(q, transposed, v, keep):
    score = (q @ transposed / 4).masked_fill(~keep, -torch.inf)
    return torch.softmax(score, -1) @ v


def inputs():
    torch.manual_seed(0)
    q, k, v = (torch.randn(2, 3, 40, 16) for _ in range(3))
    keep = (torch.rand(40, 40) < 0.6) | torch.eye(40, dtype=torch.bool)
    return [q, k.mT, v.transpose(1, 2).contiguous().transpose(1, 2), keep.T]


def planned():
    given = inputs()
    captured = translate(program_of(attention, *given))
    return optimize_all(captured.results).plan, [t.name for t in captured.inputs], given


def test_the_contiguous_axis_is_the_last():
    plan, names, given = planned()
    found = in_memory_order(plan, {name: t.stride() for name, t in zip(names, given, strict=True)})
    assert [found.orders.get(name) for name in names] == [None, (0, 1, 3, 2), None, (1, 0)]
    for name, tensor in zip(names, given, strict=True):
        assert found.turned(name, tensor).stride(-1) == 1
        turned, order = found.turned(name, tensor), found.orders.get(name)
        assert tuple(turned_back(turned.shape, order)) == tensor.shape
        assert tuple(turned_back(turned.stride(), order)) == tensor.stride()
    assert found.reads_maps  # the mask is classed in a call


def test_the_reordered_plan_computes_the_same():
    plan, names, given = planned()
    found = in_memory_order(plan, {name: t.stride() for name, t in zip(names, given, strict=True)})
    values = dict(zip(names, given, strict=True))
    (expected,) = tiled_results(plan, values)
    (made,) = tiled_results(found.plan, {name: found.turned(name, t) for name, t in values.items()})
    torch.testing.assert_close(made, expected)


def test_a_plan_in_the_order_of_memory_is_left_as_it_is():
    plan, names, given = planned()
    contiguous = {name: t.contiguous().stride() for name, t in zip(names, given, strict=True)}
    assert in_memory_order(plan, contiguous).plan is plan
    expanded = {**contiguous, names[0]: (0, 0, 0, 0)}
    assert in_memory_order(plan, expanded).plan is plan


@pytest.mark.parametrize("executor", ["tiled", "triton"])
def test_results_have_the_strides_that_were_asked_for(executor):
    plan, names, given = planned()
    (output,) = plan.outputs
    wanted = torch.empty(2, 3, 16, 40).mT.stride()
    values = dict(zip(names, given, strict=True))
    ready = EXECUTORS[executor].prepare(plan, values, {}, {output.name: wanted})
    (made,) = ready.run(given)
    torch.testing.assert_close(made, attention(*given))
    assert made.stride() == wanted or not ready.has_strides
