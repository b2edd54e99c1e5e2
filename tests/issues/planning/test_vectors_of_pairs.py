"""Relative vectors of pairs r[i, j, d] were read once for each batch, or multiplied number by number in one kernel.

Keys k + r were no products of matrices: 0.35 ms on an H200 beside torch.compile's 0.065. Vectors beside the values kept
all sums in one kernel with tiles of three dims, which also stored scores that nothing read.
"""

import math
import os

import pytest
import torch

from onepass.compiler.optimize import optimize_all
from onepass.graph.trace import program_of
from onepass.lowering.plan.records import Plan
from onepass.lowering.readback.check_plan import check
from onepass.lowering.triton.default_config import default_for
from onepass.lowering.triton.kernel import emit
from onepass.lowering.triton.launch import Launcher
from onepass.translate.translate import translate


def keys(q, k, v, r):
    """Shaw's."""
    scores = q @ k.mT + torch.einsum("bhid,ijd->bhij", q, r)
    return (scores / q.shape[-1] ** 0.5).softmax(-1) @ v


def keys_alone(q, k, v, r):
    return (torch.einsum("bhid,ijd->bhij", q, r) / q.shape[-1] ** 0.5).softmax(-1) @ v


def added_keys(q, k, v, r):
    scores = (q[:, :, :, None] * (k[:, :, None] + r)).sum(-1)
    return (scores / q.shape[-1] ** 0.5).softmax(-1) @ v


def taken_keys(q, k, v, r):
    """Differences are multiplied out, too."""
    scores = (q[:, :, :, None] * (k[:, :, None] - r)).sum(-1)
    return (scores / q.shape[-1] ** 0.5).softmax(-1) @ v


def values(q, k, v, r):
    weights = (q @ k.mT / q.shape[-1] ** 0.5).softmax(-1)
    return weights @ v + torch.einsum("bhij,ijd->bhid", weights, r)


def added_values(q, k, v, r):
    weights = (q @ k.mT / q.shape[-1] ** 0.5).softmax(-1)
    return (weights[..., None] * (v[:, :, None] + r)).sum(-2)


def causal_keys_and_values(q, k, v, r):
    """The first row keeps one key, and the last key of all but one row is masked."""
    scores = q @ k.mT + torch.einsum("bhid,ijd->bhij", q, r)
    past = torch.ones(scores.shape[-2:], dtype=torch.bool).tril()
    weights = (scores / q.shape[-1] ** 0.5).masked_fill(~past, -math.inf).softmax(-1)
    return weights @ v + torch.einsum("bhij,ijd->bhid", weights, r)


FUNCTIONS = [keys, keys_alone, added_keys, taken_keys, values, added_values, causal_keys_and_values]


def inputs(batch: int, heads: int, rows: int, width: int, dtype: torch.dtype, scale: float = 1.0):
    torch.manual_seed(0)
    of_heads = [scale * torch.randn(batch, heads, rows, width) for _ in range(3)]
    return [x.to(dtype) for x in (*of_heads, torch.randn(rows, rows, width))]


def plan_of(function, given) -> Plan:
    results = translate(program_of(function, *given)).results
    plan = optimize_all(results).plan
    check(plan, results)
    return plan


@pytest.mark.sampled(3)
@pytest.mark.parametrize("heads", [8, 16])
@pytest.mark.parametrize("function", [function for function in FUNCTIONS if function is not keys_alone])
def test_pairs_of_batch_and_head_are_rows_of_products_of_matrices(function, heads):
    plan = plan_of(function, inputs(4, heads, 512, 64, torch.bfloat16))
    reading = [kernel for kernel in plan.kernels if any(t.name == "r" for t in kernel.inputs)]
    assert len(reading) == (2 if function is causal_keys_and_values else 1)
    for kernel in reading:
        assert [d.size for d in kernel.grid] == [512]
        assert "tl.dot" in emit(kernel, plan).text
    assert not any("None, :, :" in emit(kernel, plan).text for kernel in plan.kernels)


@pytest.mark.sampled(3)
@pytest.mark.parametrize("function", FUNCTIONS)
def test_what_is_stored_is_read(function):
    plan = plan_of(function, inputs(4, 8, 512, 64, torch.bfloat16))
    stored = {store.output for kernel in plan.kernels for store in kernel.stores} - {*plan.outputs}
    assert stored and stored == stored & {tensor for kernel in plan.kernels for tensor in kernel.inputs}


def keys_of_both(q, k, v, r):
    """Vectors of pairs that multiply queries, and others that multiply keys."""
    scores = q @ k.mT + torch.einsum("bhid,ijd->bhij", q, r) + torch.einsum("bhjd,ijd->bhij", k, r.flip(2))
    return (scores * q.shape[-1] ** -0.5).softmax(-1) @ v


def test_a_program_writes_numbers_that_are_neighbours():
    """The kernel of the second product has a program for each key: it wrote every 512th number, which took 0.14 ms."""
    plan = plan_of(keys_of_both, inputs(4, 8, 512, 64, torch.bfloat16))
    for kernel in plan.kernels:
        for store in kernel.stores:
            assert store.order[-1] not in kernel.grid, (kernel.name, store.order)


def test_numbers_of_float32_are_not_multiplied_out():
    """What cancels in a sum of keys and vectors would not cancel in a sum of products."""
    plan = plan_of(added_keys, inputs(2, 2, 64, 16, torch.float32))
    assert len(plan.kernels) == 1


@pytest.mark.sampled(3)
@pytest.mark.skipif(os.environ.get("TRITON_INTERPRET") != "1", reason="needs Triton's interpreter")
@pytest.mark.parametrize("scale", [1.0, 30.0])
@pytest.mark.parametrize("function", [*FUNCTIONS, keys_of_both])
def test_they_compute_the_same(function, scale):
    """With a scale of 30, a row's largest score is some hundreds above the next one."""
    given = inputs(2, 3, 37, 16, torch.bfloat16, scale)
    plan = plan_of(function, given)
    named = dict(zip("qkvr", given, strict=True))
    used = [named[x.name] for x in plan.inputs]
    configs = {kernel.name: default_for(kernel, "sm_90") for kernel in plan.kernels}
    (found,) = Launcher(plan, configs).bind([x.name for x in plan.inputs], used, {})(used)
    exact = function(*(x.double() for x in given))
    torch.testing.assert_close(found.double(), exact, atol=1.6e-2 * scale, rtol=1e-2)
