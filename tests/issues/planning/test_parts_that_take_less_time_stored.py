"""A prefix that 64 sequences share was read once for each of them, and scores that two softmaxes read were made twice.

Both are what a plan stores, and an estimate decides it: the states of the loop over the prefix get a kernel with the
sequences as rows; distances are stored where that takes little memory.
"""

import math

import pytest
import torch

import onepass
from onepass.api.backend import onepass_backend
from onepass.compiler.optimize import optimize_all
from onepass.graph.trace import program_of
from onepass.translate.translate import translate

pytestmark = pytest.mark.usefixtures("fresh")


def shared(q, kp, vp, ks, vs, lens):
    """kp, vp [G, P, D] are of a prefix, ks, vs [B, G, S, D] of each sequence, whose length is in lens [B]."""
    k, v = (torch.cat([p.expand(len(q), -1, -1, -1), s], 2) for p, s in ((kp, ks), (vp, vs)))
    keep = torch.arange(k.shape[2]) < (lens + kp.shape[1])[:, None, None, None]
    return (q @ k.mT / q.shape[-1] ** 0.5).masked_fill(~keep, -math.inf).softmax(-1) @ v


def both_ways(x, y, v, w):
    """Softmax of distances over the keys, and over the queries."""
    score = -(x[:, :, :, None] - y[:, :, None]).abs().sum(-1)
    return score.softmax(-1) @ v, score.mT.softmax(-1) @ w


def inputs_of_shared(sequences, prefix, own, heads=8, width=64, dtype=torch.float32):
    torch.manual_seed(0)
    draw = lambda *sizes: torch.randn(*sizes, dtype=dtype)
    of_prefix = [draw(heads, prefix, width) for _ in range(2)]
    of_sequence = [draw(sequences, heads, own, width) for _ in range(2)]
    return [draw(sequences, heads, 1, width), *of_prefix, *of_sequence, torch.arange(sequences) % own]


def plan_of(function, tensors):
    return optimize_all(translate(program_of(function, *tensors)).results).plan


def test_a_kernel_of_its_own_reads_the_prefix():
    plan = plan_of(shared, inputs_of_shared(64, 4096, 64))
    first, last = plan.kernels
    assert first.rows.size == 64 and [loop.dim.size for loop in first.loops] == [4096]
    assert {t.name for t in first.inputs}.isdisjoint({"ks", "vs"})
    assert [loop.dim.size for loop in last.loops] == [64]
    assert {t.name for t in last.inputs}.isdisjoint({"kp", "vp"})


def test_scores_of_both_ways_are_computed_once():
    tensors = [torch.randn(1, 8, 1024, 64) for _ in range(4)]
    plan = plan_of(both_ways, tensors)
    reading_points = [k for k in plan.kernels if {"x", "y"} <= {t.name for t in k.inputs}]
    assert len(plan.kernels) == 2 and len(reading_points) == 1


@pytest.mark.slow
@pytest.mark.parametrize("dynamic", [False, True])
def test_the_prefix_is_part_of_each_result(dynamic):
    """Also where a sequence has none of its own keys yet, and where a mask leaves out all but the prefix."""
    tensors = inputs_of_shared(64, 4096, 24, heads=8, width=16, dtype=torch.float64)
    compiled = torch.compile(shared, backend=onepass_backend, dynamic=dynamic, options={"inner": "eager"})
    torch.testing.assert_close(compiled(*tensors), shared(*tensors), rtol=1e-10, atol=1e-10)
    (region,) = onepass.reports()[-1].regions
    assert len(region.kernels) == 2


def test_both_ways_are_right():
    torch.manual_seed(1)
    tensors = [torch.randn(1, 2, 96, 8, dtype=torch.float64) for _ in range(4)]
    compiled = torch.compile(both_ways, backend=onepass_backend, options={"inner": "eager"})
    for mine, right in zip(compiled(*tensors), both_ways(*tensors), strict=True):
        torch.testing.assert_close(mine, right, rtol=1e-10, atol=1e-10)


def by_distance(q, k, v, table):
    """A vector for each distance of at most 40 is multiplied by the queries."""
    i, j = torch.arange(q.shape[2])[:, None], torch.arange(k.shape[2])
    place = (j - i).clamp(-40, 40) + 40
    return ((q @ k.mT + torch.einsum("bhid,ijd->bhij", q, table[place])) * 0.25).softmax(-1) @ v


def test_what_no_other_kernel_reads_is_not_stored():
    """A product of each pair was chosen, and the loop that should have read it computed it, and wrote it for nobody."""
    torch.manual_seed(0)
    drawn = [torch.randn(1, 2, n, 16) for n in (50, 200, 200)]
    plan = plan_of(by_distance, [*drawn, torch.randn(81, 16)])
    parts = {s.output for k in plan.kernels for s in k.stores} - {*plan.outputs}
    assert parts and parts <= {t for k in plan.kernels for t in k.inputs}
    assert all(part.shape[-1] == 81 for part in parts)
