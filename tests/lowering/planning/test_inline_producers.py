"""What later kernels read is written by the loop of one of them, where it has those tiles: once each, and whole."""

import inspect
import math

import pytest
import torch

from onepass.bench.beyond_flex import invariant_points
from onepass.compiler.optimize import optimize_all
from onepass.graph.trace import program_of
from onepass.lowering.hopper.kernel_form import bind
from onepass.lowering.launch.split_loops import split_kernel
from onepass.lowering.tiled.executor import tiled_results
from onepass.lowering.triton.kernel import emit
from onepass.lowering.triton.launch import Launcher
from onepass.translate.translate import translate
from tests.issues.triton.test_tiles_as_short_as_their_dims import tensors


def masked_points(q, k, v, q_points, k_points, v_points, pair_bias, pair, weight):
    """Of residues in order, each sees those before it: the loop has a guard."""
    return _points(q, k, v, pair_bias, pair, lambda i, j: j <= i)


def free_points(q, k, v, q_points, k_points, v_points, pair_bias, pair, weight):
    return _points(q, k, v, pair_bias, pair, None)


def _points(q, k, v, pair_bias, pair, keep):
    score = torch.einsum("bihc,bjhc->bhij", q, k) / math.sqrt(q.shape[-1]) + pair_bias.permute(0, 3, 1, 2)
    if keep is not None:
        places = torch.arange(q.shape[1], device=q.device)
        score = score.masked_fill(~keep(places[:, None], places), -math.inf)
    weights = torch.softmax(score, -1)
    return torch.einsum("bhij,bjhc->bihc", weights, v), torch.einsum("bhij,bijc->bihc", weights, pair)


def planned(function, inputs):
    return optimize_all(translate(program_of(function, *inputs)).results).plan


def named(function, plan, inputs):
    every = dict(zip(inspect.signature(function).parameters, inputs, strict=True))
    return {t.name: every[t.name] for t in plan.inputs}


@pytest.mark.sampled(1)
@pytest.mark.parametrize("function", [invariant_points, free_points, masked_points])
def test_a_loop_writes_what_the_next_kernel_reads(function):
    plan = planned(function, tensors(rows=64, heads=12, dtype=torch.bfloat16))
    first, second = plan.kernels
    (loop,) = first.loops
    (store,) = first.written_by(loop)
    assert store.output in second.inputs and store.output not in first.inputs and not second.written_by(second.loops[0])
    text = emit(first, plan).text
    bodies = text.split("    for j_start")[1:]
    assert len(bodies) == 2 and all(body.count(f"tl.store({store.output.name}_base") == 1 for body in bodies)
    assert "writes" in bind(first) and split_kernel(first) is None
    assert len(first.written_by(None)) + len(second.stores) == len(plan.outputs)


@pytest.mark.sampled(1)
@pytest.mark.parametrize("rows", [1, 20, 33, 70])
@pytest.mark.parametrize("function", [invariant_points, free_points, masked_points])
def test_they_compute_the_same(function, rows):
    inputs = tensors(rows=rows, heads=12)
    plan = planned(function, inputs)
    exact = function(*(x.double() for x in inputs))
    given = named(function, plan, inputs)
    for found in (tiled_results(plan, given), Launcher(plan).results(given)):
        for result, wanted in zip(found, exact, strict=True):
            torch.testing.assert_close(result.double(), wanted, atol=1e-4, rtol=1e-4)


def test_not_a_number_stays_in_its_rows():
    inputs = tensors(rows=20, heads=3)
    inputs[0][0, 7] = math.nan
    plan = planned(free_points, inputs)
    for found in (tiled_results(plan, given := named(free_points, plan, inputs)), Launcher(plan).results(given)):
        for result, wanted in zip(found, free_points(*inputs), strict=True):
            assert torch.equal(result.isnan(), wanted.isnan())
