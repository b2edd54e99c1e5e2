"""A weighted sum in a loop of its own had no guard: it read keys behind a length, and pages whose entries are anything.

Where two passes cost less, as for a few keys with a sink, weights are exp(where(p, s, -∞) - c), and c is the largest
score or more. What p drops is absent from their sum, as it is from a softmax state; a row without keys stays NaN.
"""

import math

import pytest
import torch

import onepass
from onepass.api.backend import onepass_backend
from onepass.compiler import compiled_region
from onepass.compiler.options import Options
from onepass.graph.trace import program_of

pytestmark = pytest.mark.usefixtures("fresh")


def with_sinks(q, kc, vc, table, lengths, sinks):
    k, v = (c[table].flatten(1, 2).transpose(1, 2).repeat_interleave(8, 1) for c in (kc, vc))
    hidden = torch.arange(k.shape[2]) >= lengths[:, None, None, None]
    scores = (q @ k.mT / 5).masked_fill(hidden, -math.inf)
    sink = sinks[None, :, None, None].expand(len(q), -1, q.shape[2], 1)
    return torch.cat([scores, sink], -1).softmax(-1)[..., :-1] @ v


def inputs():
    caches = torch.randn(2, 7, 4, 2, 24)
    return torch.randn(2, 16, 15, 24), *caches, torch.tensor([[3], [5]]), torch.tensor([3, 2]), torch.randn(16)


def test_every_loop_has_the_guard():
    plan = compiled_region.make(program_of(with_sinks, *inputs()), Options()).plan
    loops = [loop for kernel in plan.kernels for loop in kernel.loops]
    assert len(loops) == 2 and all(loop.guard is not None for loop in loops) and "equal" in plan.read_back


@pytest.mark.parametrize("executor", ["tiled", "triton"])
def test_slots_behind_a_length_may_hold_anything(executor):
    q, kc, vc, table, lengths, sinks = inputs()
    options = {"inner": "eager", "strict": True, "executor": executor, "libraries": False}
    run = torch.compile(with_sinks, backend=onepass_backend, options=options)
    wanted = with_sinks(*(x.double() if x.is_floating_point() else x for x in (q, kc, vc, table, lengths, sinks)))
    vc[3, 3], vc[5, 2:] = math.nan, math.nan
    with torch.no_grad():
        found = run(q, kc, vc, table, lengths, sinks)
    if executor == "tiled":  # in Triton, a tile that is kept in part multiplies 0 by NaN
        torch.testing.assert_close(found.double(), wanted, atol=1e-5, rtol=1e-4)
    assert onepass.reports()[-1].regions[0].ran == executor
