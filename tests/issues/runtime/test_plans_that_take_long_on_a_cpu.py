"""A backward over differences of vectors took 12 s by torch operations tile by tile, where autograd took 1 s.

Its values were too many for the original calls to be tried. They are tried now, and the first run of a plan is given up
after four times their time.
"""

import time

import pytest
import torch

import onepass
from onepass.compiler import compiled_region
from onepass.compiler.options import Options
from onepass.graph.trace import program_of
from onepass.lowering import executors as plan_executors
from onepass.runtime import executors, library_choice

pytestmark = pytest.mark.usefixtures("fresh")


def by_distance(q, k, v):
    return torch.softmax(-(q[..., :, None, :] - k[..., None, :, :]).abs().sum(-1), -1) @ v


def inputs(length, requires_grad=False):
    torch.manual_seed(0)
    return [torch.randn(1, 2, length, 16, requires_grad=requires_grad) for _ in range(3)]


def test_differences_of_256_by_256_vectors_may_be_made():
    assert library_choice.MAX_BYTES_OF_A_VALUE["cpu"] >= 4 * 256 * 256 * 64 * torch.float32.itemsize


def test_a_run_that_takes_too_long_is_given_up():
    given = inputs(64)
    plan = compiled_region.make(program_of(by_distance, *given), Options()).plan
    tensors = dict(zip((t.name for t in plan.inputs), given, strict=True))
    assert plan_executors.TILED.finishes(plan, tensors, {}, seconds=60.0)
    started = time.perf_counter()
    assert not plan_executors.TILED.finishes(plan, tensors, {}, seconds=0.0)
    assert time.perf_counter() - started < 10


@pytest.mark.parametrize("finishes", [False, True])
@pytest.mark.parametrize("requires_grad", [False, True])
def test_the_original_calls_run_where_the_plan_takes_many_times_as_long(monkeypatch, finishes, requires_grad):
    monkeypatch.setattr(library_choice, "SHORT_RUN", 0.0)
    monkeypatch.setattr(plan_executors.TiledExecutor, "finishes", lambda *_: finishes)
    given = inputs(48, requires_grad)
    compiled = torch.compile(by_distance, backend="onepass", options={"inner": "eager"})
    result = compiled(*given)
    exact = by_distance(*(x.detach().double().requires_grad_(requires_grad) for x in given))
    torch.testing.assert_close(result.double(), exact, atol=1e-5, rtol=1e-5)
    (region,) = onepass.reports()[-1].regions
    if requires_grad:
        gradients = torch.autograd.grad(result.sum(), given)
        again = [x.detach().double().requires_grad_() for x in given]
        for found, wanted in zip(gradients, torch.autograd.grad(by_distance(*again).sum(), again), strict=True):
            torch.testing.assert_close(found.double(), wanted, atol=1e-4, rtol=1e-4)
        (region,) = onepass.reports()[-1].regions
        assert region.backward_ran.startswith(executors.ORIGINAL) is not finishes
    else:
        assert region.ran.startswith(executors.ORIGINAL) is not finishes
