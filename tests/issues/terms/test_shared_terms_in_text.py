"""Scores made of themselves again and again (s = tanh(s) * s, ...) took minutes: texts of terms doubled with each step.

So did walks over terms that asked of shared parts once for each way to them.
"""

import time

import pytest
import torch

import onepass
from onepass.compiler.assumptions import _is_read
from onepass.egraph.terms.addends import absorbs, addends
from onepass.egraph.terms.ops import cast, const, iota, var
from onepass.egraph.terms.printing import MAX_LINE_CHARACTERS, show
from onepass.egraph.terms.term import Dim
from onepass.lowering.analysis.relative_index import is_relative

I, J = Dim("i", 900), Dim("j", 900)


def doubled(x, times=60):
    for _ in range(times):
        x = x * (x + const(1.0))
    return x


def test_a_line_names_shared_parts_where_it_would_be_long():
    assert show(doubled(var("x"), 2)) == "x · (x + 1) · (x · (x + 1) + 1)"
    text = show(doubled(var("x")))
    assert len(text) < 3 * MAX_LINE_CHARACTERS and " where t0 = " in text


@pytest.mark.parametrize("walk", [_is_read, lambda x: absorbs(x, "float16"), lambda x: is_relative(x, I, J)])
def test_a_walk_sees_a_shared_part_once(walk):
    start = time.perf_counter()
    assert walk(doubled(cast(iota(I) - iota(J), "float32"))) in (True, False)
    assert time.perf_counter() - start < 5


def test_an_addend_is_found_once():
    total = x = var("x", "float32")
    for _ in range(60):
        total = total + (total - const(1.0))
    assert set(addends(total)) == {x, const(1.0)}
    assert not absorbs(total, "float16")


def test_deep_scores_and_biases_are_explained_at_once():
    def deep(q, k, v):
        at = torch.arange(q.shape[-2]).float()
        far, s = (at[:, None] - at).abs(), q @ k.mT
        for _ in range(24):
            far, s = torch.log1p(far) * far + far, torch.tanh(s) * s
        return torch.softmax(s - far, -1) @ v

    (region,) = onepass.explain(deep, *(torch.randn(1, 2, 40, 16) for _ in range(3))).regions
    assert len(region.captured) < 10000 and region.passes == (3, 1)
