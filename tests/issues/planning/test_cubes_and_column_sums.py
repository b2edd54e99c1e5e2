"""Kernels that no GPU compiler took: sums over one factor held whole batches, cubes held all keys, loops shared a view.

A sum of one factor shares nothing by holding dims; heads that only queries have make no matrix beside the rows; and a
matrix that broadcasts into a cube inside several loops is written once before them.
"""

import os

import pytest
import torch
from torch.nn import functional

from onepass.compiler.optimize import optimize
from onepass.egraph.terms.traversal import subterms
from onepass.graph.trace import program_of
from onepass.lowering.plan.queries import roots
from onepass.lowering.triton.default_config import THREE_DIMS
from onepass.lowering.triton.kernel import emit
from onepass.lowering.triton.launch import default_for
from onepass.translate.translate import translate
from tests.support.plans import own_plan
from tests.support.triton_runs import run_triton


def centred(q, k, v):
    scores = q @ k.mT / 8
    return torch.softmax(scores + scores.mean(-1, keepdim=True), -1) @ v


def shared_keys(q, k, v):
    return functional.relu(q @ k[:, :1].mT / 8) @ v[:, :1]


def apart(q, k):
    """Each place less the one before it: of the two sides no place goes alone."""
    return q[..., 1:].unsqueeze(-2) - k[..., :-1].unsqueeze(-3)


def distances(q, k, v):
    scores = -apart(q, k).pow(2).sum(-1) / 8
    return torch.exp(scores - torch.logsumexp(scores, -1, keepdim=True)).square() @ v


def linear_distances(q, k, v):
    return -apart(q, k).pow(2).sum(-1) @ v


CASES = (centred, shared_keys, distances, linear_distances)


def planned(function, inputs):
    return own_plan(translate(program_of(function, *inputs)).results)


def large():
    return [torch.randn(2, 3, n, 64, dtype=torch.bfloat16) for n in (300, 200, 200)]


@pytest.mark.parametrize("function", CASES, ids=lambda f: f.__name__)
def test_batches_are_on_the_grid_and_loads_are_matrices(function):
    for kernel in planned(function, large()).kernels:
        assert {"b", "h"} & {d.name for d in kernel.grid} == {"b", "h"} & {d.name for d in kernel.order}
        loads = {n for root in roots(kernel) for n in subterms(root) if n.op == "load"}
        assert all(len(n.dims - {*kernel.grid}) <= 2 for n in loads)


def test_cubes_have_small_tiles_and_their_matrix_is_written_before_the_loops():
    for function in (distances, linear_distances):
        plan = planned(function, [x.float() for x in large()])  # of halves they are products
        (kernel,) = plan.kernels
        assert kernel.loops and default_for(kernel, "sm_90") == THREE_DIMS
        text = emit(kernel, plan).text
        assert "[:, None, :]" in text
        assert not [line for line in text.splitlines() if line.startswith("        sub") and "[:, None, :]" in line]


@pytest.mark.sampled(1)
@pytest.mark.skipif(os.environ.get("TRITON_INTERPRET") != "1", reason="needs Triton's interpreter")
@pytest.mark.parametrize("function", CASES, ids=lambda f: f.__name__)
def test_and_they_compute_the_right_thing(function):
    inputs = [torch.randn(2, 3, n, 8) for n in (21, 300, 300)]
    result = run_triton(planned(function, inputs), dict(zip("qkv", inputs, strict=True)), {})
    exact = function(*(t.double() for t in inputs))
    torch.testing.assert_close(result.double(), exact, atol=1e-4, rtol=1e-4)


def test_a_guarded_product_is_no_cube():
    def causal(q, k, v):
        i, j = torch.arange(q.shape[-2])[:, None], torch.arange(k.shape[-2])
        return torch.where(j <= i, torch.sigmoid(q @ k.mT), 0.0) @ v

    captured = translate(program_of(causal, *(torch.empty(2, 4096, 64, dtype=torch.bfloat16) for _ in range(3))))
    (kernel,) = optimize(captured.term, captured.output, captured.order).plan.kernels
    assert default_for(kernel, "sm_90") != THREE_DIMS
