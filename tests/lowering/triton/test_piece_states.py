"""Loops in pieces: one program or many, whatever rows share a tile, and however long the buffer is, bits are the same.

Triton's interpreter lets numpy multiply, whose bits depend on an element's place; here it adds products in order, as a
matrix unit does for each element of a tile.
"""

from dataclasses import replace
from itertools import pairwise

import pytest
import torch

from onepass.compiler.optimize import optimize_all
from onepass.graph.trace import program_of
from onepass.lowering.plan.kernel_config import TritonConfig
from onepass.lowering.plan.launch_facts import Facts
from onepass.lowering.plan.records import VARIES_BY_DISTANCE, NotPlannable
from onepass.lowering.triton.kernel import emit
from onepass.lowering.triton.launch import Launcher
from onepass.translate.translate import translate
from tests.fuzz import invariance
from tests.fuzz.invariance import PROGRAMS, Sequences, in_order_of_the_sum, inputs_of, same_bits

PIECE, WIDTH = 32, 16
SIZES = (2, 20, 100)  # sequences, queries of each, keys of the buffer


@pytest.fixture(autouse=True)
def products_as_a_matrix_unit_adds_them(monkeypatch):
    from triton.runtime.interpreter import InterpreterBuilder

    monkeypatch.setattr(InterpreterBuilder, "create_dot", in_order_of_the_sum)


def batch(dtype=torch.float32, shared=2):
    torch.manual_seed(0)
    count, rows, length = SIZES
    shapes = (shared, rows), (1, length), (1, length)
    q, k, v = ((2 * torch.randn(count, *shape, WIDTH)).to(dtype) for shape in shapes)
    return Sequences(q, k, v, torch.tensor([100, 21]), torch.randn(shared))


def call(name, s, parts=1, piece=PIECE, rows=32):
    """A program's result by its own plan, one for these sizes. parts: 2 shares loops out. rows: of a tile."""
    given = inputs_of(name, s, invariance.Random(0))
    captured = translate(program_of(PROGRAMS[name], *given))
    plan = replace(optimize_all(captured.results, invariant=piece > 0).plan, piece=piece)
    launcher = Launcher(plan, TritonConfig(rows, 16, 4, 1, parts))
    (found,) = launcher.results(dict(zip([t.name for t in captured.inputs], given, strict=True)))
    assert bool(launcher.shared) == (parts > 1)
    return found


def other_calls(name, s, **how):
    """The same rows, called alone, in a longer and in a shorter buffer, in chunks, and shared out over programs."""
    longer = s.within(150, lambda shape: torch.full(shape, 1e4))
    yield "shared out", call(name, s, **{**how, "parts": 2})
    yield "alone", torch.cat([call(name, s.of([b]), **how) for b in range(SIZES[0])])
    yield "in a longer buffer", call(name, longer, **how)
    ends = (0, 1, SIZES[1])
    yield "in chunks", torch.cat([call(name, s.rows(*part), **how) for part in pairwise(ends)], 2)
    yield "in tiles of other rows", call(name, s, **{**how, "rows": 16})


@pytest.mark.sampled(1)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=["float32", "bfloat16"])
@pytest.mark.parametrize("name", PROGRAMS)
def test_bits_are_those_of_a_row_and_its_keys(name, dtype):
    s = batch(dtype)
    whole = call(name, s)
    assert [way for way, found in other_calls(name, s) if not same_bits(whole, found)] == []
    doubled = [x.double() if x.is_floating_point() else x for x in inputs_of(name, s, invariance.Random(0))]
    tolerance = 1e-5 if dtype == torch.float32 else 3e-2
    torch.testing.assert_close(whole.double(), PROGRAMS[name](*doubled), atol=tolerance, rtol=tolerance)


def test_without_pieces_a_shared_loop_has_other_bits():
    s = batch()
    assert not same_bits(call("plain", s, piece=0), call("plain", s, parts=2, piece=0))


def test_each_piece_begins_anew_and_joins_the_totals():
    s = batch()
    captured = translate(program_of(PROGRAMS["plain"], *inputs_of("plain", s, invariance.Random(0))))
    plan = optimize_all(captured.results, invariant=True).plan
    text = emit(plan.kernels[0], plan, Facts(piece=PIECE)).text
    assert f"// {PIECE}" in text and "_total" in text
    assert "_total" not in emit(plan.kernels[0], plan, Facts()).text


def test_a_loop_that_runs_again_for_a_whole_tile_is_refused():
    def distances(q, k, v, table):
        place = torch.arange(k.shape[1]) - torch.arange(q.shape[1])[:, None] + q.shape[1] - 1
        weights = torch.softmax(q @ k.mT, -1)
        return weights @ v + torch.einsum("bij,ijd->bid", weights, table[place])

    given = [*(torch.randn(2, 40, WIDTH) for _ in range(3)), torch.randn(79, WIDTH)]
    captured = translate(program_of(distances, *given))
    plan = optimize_all(captured.results, invariant=True).plan
    named = dict(zip([t.name for t in captured.inputs], given, strict=True))
    with pytest.raises(NotPlannable, match=VARIES_BY_DISTANCE):
        Launcher(plan, TritonConfig(16, 16, 4, 1)).results(named)
