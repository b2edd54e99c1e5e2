"""A union of ranges with a limit that is the same for all rows made the order of a Hopper kernel's work index one value
by rows, and the error went to the caller: it was met while asking which executor comes first.

A limit that ignores the rows is one value for all of them; whatever fails while a region chooses who runs it leaves the
original calls, and is reported.
"""

import math
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from onepass.api.backend import onepass_backend
from onepass.egraph.terms.evaluate import evaluate
from onepass.egraph.terms.ops import const, iota, le, load, logical_and, logical_not, logical_or
from onepass.egraph.terms.term import Dim, Tensor
from onepass.lowering.hopper import work_order
from onepass.lowering.masks.block_map import EMPTY, FULL
from onepass.lowering.masks.loop_ranges import ranges
from onepass.lowering.plan.records import Loop
from onepass.report import records
from onepass.runtime import executors
from tests.support.predicates import guards

ROWS, COLUMNS, HEIGHT, TILE = 70, 50, 16, 8
I, J, G = Dim("i", ROWS), Dim("j", COLUMNS), Dim("g", 1)


def attend(q, k, v, mask):
    i, j = torch.arange(q.shape[-2])[:, None], torch.arange(k.shape[-2])
    keep = (i - j <= 4) | (j < 5) & (i != j) & mask
    return torch.softmax((q @ k.mT).masked_fill(~keep, -math.inf), -1) @ v


def inputs():
    torch.manual_seed(0)
    return [torch.randn(2, n, 16) for n in (190, 336, 336)] + [torch.rand(190, 1) < 0.7]


def binding(guard):
    loop = Loop(J, "j_tile", (), guard, ranges(guard, J, I))
    return SimpleNamespace(loop=loop, kernel=SimpleNamespace(rows=I))


CONSTANT = le(iota(J), const(4))
MASK = load(Tensor("mask", "bool", (ROWS, 1)), iota(I), const(0))


@settings(max_examples=40)
@given(guards(I, J, G, depth=2), st.sampled_from([CONSTANT, logical_not(CONSTANT), logical_and(CONSTANT, MASK)]))
def test_classes_hold_what_the_guard_keeps(other, constant):
    mask = np.random.default_rng(0).random((ROWS, 1)) < 0.5
    for guard in (logical_or(constant, other), logical_and(constant, other)):
        found = work_order.classes(binding(guard), {}, HEIGHT, TILE)
        if found is None:  # a limit reads the mask
            continue
        kept = np.broadcast_to(evaluate(guard, {"mask": mask}, (I, J, G))[..., 0].astype(bool), (ROWS, COLUMNS))
        for (n, t), one in np.ndenumerate(found):
            mine = kept[HEIGHT * n : HEIGHT * (n + 1), TILE * t : TILE * (t + 1)]
            assert one != EMPTY or not mine.any()
            assert one != FULL or (mine.all() and mine.shape[1] == TILE)


@pytest.mark.usefixtures("fresh")
def test_what_fails_while_choosing_does_not_reach_the_caller(monkeypatch):
    def broken(*_):
        raise IndexError("index 64 is out of bounds")

    monkeypatch.setattr(executors, "by_measurement", broken)
    given_inputs = inputs()
    options = {"inner": "eager", "libraries": False}
    run = torch.compile(attend, backend=onepass_backend, options=options)
    for _ in range(2):
        torch.testing.assert_close(run(*given_inputs), attend(*given_inputs))
    (region,) = records.reports()[-1].regions
    assert region.ran == executors.ORIGINAL and any("index 64" in note for note in region.notes)
    with pytest.raises(IndexError):
        torch.compile(attend, backend=onepass_backend, options={**options, "strict": True})(*given_inputs)


@pytest.mark.sampled(1)
@pytest.mark.usefixtures("fresh")
@pytest.mark.parametrize("executor", ["tiled", "triton"])
def test_it_is_right(executor):
    given_inputs = inputs()
    options = {"inner": "eager", "executor": executor, "strict": True}
    run = torch.compile(attend, backend=onepass_backend, options=options)
    torch.testing.assert_close(run(*given_inputs), attend(*given_inputs), rtol=1e-5, atol=1e-5)
