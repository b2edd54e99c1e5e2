"""Four queries of a sequence, whose heads share keys, took 1.6 times as long as one: each head's program read the keys.

Queries and heads together are the rows of one tile. Where a limit depends on the query, that of the last query holds
for the whole tile. So it is with latents, which all heads share: each query's program read them.
"""

import math
import os

import pytest
import torch

from onepass.compiler.optimize import optimize_all
from onepass.graph.trace import program_of
from onepass.lowering.tiled.executor import tiled_results
from onepass.lowering.triton.launch import Launcher
from onepass.translate.translate import translate

interpreted = pytest.mark.skipif(os.environ.get("TRITON_INTERPRET") != "1", reason="needs Triton's interpreter")
BATCH, HEADS, GROUPS, KEYS, WIDTH = 3, 4, 2, 40, 16


def causal(q, k, v, lengths):
    k, v = (x.repeat_interleave(HEADS // GROUPS, 1) for x in (k, v))
    i, j = torch.arange(q.shape[2]), torch.arange(k.shape[2])
    keep = j <= (lengths[:, None] - q.shape[2] + i)[:, None, :, None]
    return (q @ k.mT * 0.3).masked_fill(~keep, -math.inf).softmax(-1) @ v


def window(q, k, v, lengths):
    k, v = (x.repeat_interleave(HEADS // GROUPS, 1) for x in (k, v))
    i, j = torch.arange(q.shape[2]), torch.arange(k.shape[2])
    at = (lengths[:, None] - q.shape[2] + i)[:, None, :, None]
    return (q @ k.mT * 0.3).masked_fill((j > at) | (j <= at - 7), -math.inf).softmax(-1) @ v


def tree(q, k, v, drafts):
    """The last keys are a draft's: which of them a query sees is data."""
    k, v = (x.repeat_interleave(HEADS // GROUPS, 1) for x in (k, v))
    past = KEYS - q.shape[2]
    j = torch.arange(k.shape[2])
    keep = (j < past) | drafts[:, (j - past).clamp(min=0)]
    return (q @ k.mT * 0.3).masked_fill(~keep, -math.inf).softmax(-1) @ v


def latents(q, c, lengths):
    """All heads read one latent, whose first columns are the values."""
    i, j = torch.arange(q.shape[2]), torch.arange(c.shape[1])
    keep = j <= (lengths[:, None] - q.shape[2] + i)[:, None, :, None]
    return (q @ c[:, None].mT * 0.3).masked_fill(~keep, -math.inf).softmax(-1) @ c[:, None, :, :8]


def inputs(queries, function):
    generator = torch.Generator().manual_seed(0)
    drawn = lambda *shape: torch.randn(shape, generator=generator)
    lengths = torch.tensor([KEYS, queries, queries + 1])
    if function is latents:
        return drawn(BATCH, HEADS, queries, WIDTH), drawn(BATCH, KEYS, WIDTH), lengths
    given = drawn(BATCH, HEADS, queries, WIDTH), *(drawn(BATCH, GROUPS, KEYS, WIDTH) for _ in range(2))
    return *given, (torch.ones(queries, queries, dtype=torch.bool).tril() if function is tree else lengths)


def plan_of(function, given):
    return optimize_all(translate(program_of(function, *given)).results).plan


CASES = [(function, queries) for function in (causal, window, tree, latents) for queries in (1, 2, 4, 5, 8)]


@pytest.mark.sampled(3)
@pytest.mark.parametrize(("function", "queries"), CASES)
def test_one_program_reads_the_keys(function, queries):
    (kernel,) = plan_of(function, inputs(queries, function)).kernels
    groups = [] if function is latents else [GROUPS]
    assert kernel.rows.size == queries * HEADS // (groups or [1])[0]
    assert [d.size for d in kernel.grid if d.size != 1] == [BATCH, *groups]


def test_limit_is_that_of_the_last_query():
    (kernel,) = plan_of(causal, inputs(4, causal)).kernels
    ((limit,),) = [r.uppers for r in kernel.loops[0].ranges]
    assert kernel.rows not in limit.bound.dims and not kernel.loops[0].ranges[0].exact


def test_many_queries_are_rows_alone():
    """They fill a tile, and the keys are read from the cache."""
    (kernel,) = plan_of(causal, inputs(16, causal)).kernels
    assert kernel.rows.size == 16
    (kernel,) = plan_of(latents, inputs(17, latents)).kernels
    assert kernel.rows.size == 17


def _right(function, given):
    return function(*(x.double() if x.is_floating_point() else x for x in given))


@pytest.mark.sampled(3)
@pytest.mark.parametrize(("function", "queries"), CASES)
def test_it_computes_the_right_thing(function, queries):
    given = inputs(queries, function)
    plan = plan_of(function, given)
    names = [t.name for t in translate(program_of(function, *given)).inputs]
    tensors = dict(zip(names, given, strict=True))
    right = _right(function, given)
    (result,) = tiled_results(plan, {t.name: tensors[t.name] for t in plan.inputs})
    torch.testing.assert_close(result.double().view(right.shape), right, atol=1e-5, rtol=1e-5)


@pytest.mark.sampled(2)
@interpreted
@pytest.mark.parametrize(("function", "queries"), [case for case in CASES if case[1] in (4, 5)])
def test_so_do_its_kernels(function, queries):
    given = inputs(queries, function)
    plan = plan_of(function, given)
    tensors = dict(zip([t.name for t in translate(program_of(function, *given)).inputs], given, strict=True))
    right = _right(function, given)
    result = Launcher(plan)({t.name: tensors[t.name] for t in plan.inputs})
    torch.testing.assert_close(result.double().view(right.shape), right, atol=1e-5, rtol=1e-5)
