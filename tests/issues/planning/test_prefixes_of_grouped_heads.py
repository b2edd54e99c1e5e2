"""A prefix that sequences share was read once for each sequence where a group of heads shares keys.

The plan that stores the prefix's states was thrown away: its result has an axis written as two, so that it was taken
for a part that nobody reads. Sequences and the heads of a group are now one dim of rows, and a tile of them reads the
prefix once.
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
    k, v = (x.repeat_interleave(q.shape[1] // x.shape[1], 1) for x in (k, v))
    keep = torch.arange(k.shape[2]) < (lens + kp.shape[1])[:, None, None, None]
    return (q @ k.mT / q.shape[-1] ** 0.5).masked_fill(~keep, -math.inf).softmax(-1) @ v


def inputs_of(sequences, queries, groups=8, own=24, dtype=torch.bfloat16):
    torch.manual_seed(0)
    draw = lambda *sizes: torch.randn(*sizes, dtype=dtype)
    of_prefix = [draw(groups, 8192, 64) for _ in range(2)]
    of_sequence = [draw(sequences, groups, own, 64) for _ in range(2)]
    return [draw(sequences, 4 * groups, queries, 64), *of_prefix, *of_sequence, torch.arange(sequences) % own]


@pytest.mark.parametrize(
    ("sequences", "queries", "rows"),
    [(32, 1, 32 * 4), (16, 4, 16 * 4 * 4), (128, 1, 128)],
    ids=["one query", "four queries", "sequences alone fill a tile"],
)
def test_a_tile_of_sequences_and_heads_reads_the_prefix(sequences, queries, rows):
    captured = translate(program_of(shared, *inputs_of(sequences, queries)))
    first, last = optimize_all(captured.results).plan.kernels
    assert first.rows.size == rows and [loop.dim.size for loop in first.loops] == [8192]
    assert {t.name for t in first.inputs}.isdisjoint({"ks", "vs"})
    assert {t.name for t in last.inputs}.isdisjoint({"kp", "vp"})


@pytest.mark.slow
@pytest.mark.parametrize("queries", [1, 4])
def test_the_prefix_is_part_of_each_result(queries):
    """Scores of the prefix far above and far below a sequence's own, and a sequence that has no own key yet."""
    tensors = inputs_of(32, queries, groups=2)
    tensors[1][0] *= 30
    tensors[3][:, 1] *= 30
    compiled = torch.compile(shared, backend=onepass_backend, options={"inner": "eager", "libraries": False})
    exact = shared(*(x.double() if x.is_floating_point() else x for x in tensors))
    torch.testing.assert_close(compiled(*tensors).double(), exact, rtol=2e-2, atol=2e-2)
    (region,) = onepass.reports()[-1].regions
    assert len(region.kernels) == 2
