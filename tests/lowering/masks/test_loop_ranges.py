"""Guards as ranges and tile classes against brute force over random predicates, and both executors that follow them."""

import numpy as np
import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from onepass.egraph.terms.affine import compare
from onepass.egraph.terms.evaluate import evaluate
from onepass.egraph.terms.ops import (
    const,
    eq,
    iota,
    le,
    load,
    logical_and,
    logical_not,
    logical_or,
    lt,
    sum_over,
    where,
)
from onepass.egraph.terms.term import Dim, Tensor
from onepass.egraph.terms.traversal import subterms
from onepass.lowering.masks.loop_ranges import end_of_rows, ends, ranges, tile_classes, tile_range, why_apart
from onepass.lowering.plan.kernel_config import TritonConfig
from onepass.lowering.plan.records import Limit
from onepass.lowering.planning.planner import build_plan
from onepass.lowering.tiled import executor
from tests.support.predicates import COLUMN, MASKS, ROW, I, J, guarded
from tests.support.triton_runs import run_triton

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"


def over(term, *dims):
    return np.broadcast_to(evaluate(term, {}, dims), [d.size for d in dims])


def classes_of(found, first, last, tile, length, bound_of):
    """Tile classes for rows first..last from the bounds at these two rows, as an executor computes them."""
    at = lambda limits: [ends(x, *(int(bound_of(x)[row]) for row in (first, last))) for x in limits]
    return tile_classes([(tile_range(tile, length, at(r.uppers), at(r.lowers)), r.exact) for r in found])


@pytest.mark.slow
@settings(max_examples=200)
@given(guarded(), st.integers(1, 9), st.integers(1, 9), st.integers(0, 2))
def test_tiles_are_classed_right(drawn, tile, row_tile, group):
    i, j, g, guard = drawn
    found = ranges(guard, j, i)
    kept = over(guard, g, i, j)[group].astype(bool)
    for first in range(0, i.size, row_tile):
        last = min(first + row_tile, i.size) - 1
        classes = classes_of(found, first, last, tile, j.size, lambda x: over(x.bound, g, i)[group])
        assert list(classes) == sorted(classes) and all(0 <= n < -(-j.size // tile) for n in classes)
        for n in range(-(-j.size // tile)):
            block = kept[first : last + 1, n * tile : (n + 1) * tile]
            assert n in classes or not block.any(), "a kept element in an empty tile"
            assert not classes.get(n) or block.all(), "a dropped element in a full tile"


@pytest.mark.parametrize("name", MASKS)
def test_masks_in_use(name):
    guard, count, exact = MASKS[name]
    found = ranges(guard, J, I)
    assert (len(found), all(r.exact for r in found)) == (count, exact), found
    classes = [classes_of(found, n, n + 15, 16, 256, lambda x: over(x.bound, I)) for n in range(0, 256, 16)]
    full = [sum(c.values()) for c in classes]
    if "documents" in name:
        assert full == [4 if "prefix" in name else 0] * 16 and all(len(c) == 16 for c in classes)
        return
    tiles = over(guard, I, J).astype(bool).reshape(16, 16, 16, 16)
    assert [len(c) for c in classes] == tiles.any((1, 3)).sum(1).tolist(), "more tiles run than hold something"
    assert full == tiles.all((1, 3)).sum(1).tolist(), "a full tile is not known to be full"


def test_a_guard_of_many_clauses_is_tested_everywhere():
    guard = lt(COLUMN, const(3))
    for n in range(1, 20):
        guard = (
            logical_and(logical_not(eq(COLUMN, ROW + const(n))), guard)
            if n % 2
            else logical_or(guard, logical_and(eq(COLUMN, const(9 * n)), eq(ROW, const(n))))
        )
    found = ranges(guard, J, I)
    assert 1 <= len(found) <= 4 and not all(r.exact for r in found)


def test_causal_tiles_are_as_few_as_can_be():
    (found,) = ranges(le(COLUMN, ROW), J, I)
    assert tile_range(64, 256, [ends(found.uppers[0], 65, 128)], []) == (0, 0, 1, 2)
    assert tile_range(64, 256, [(-5, 0)], []) == (0, 0, 0, 0)
    assert tile_range(64, 100, [], []) == (0, 0, 1, 2)
    assert tile_range(64, 256, [], [(300, 400)]) == (4, 4, 4, 4)


# Executors: every kept element is added exactly once, as sums of small integers show


def sums(i, j, g, guard):
    """A plan of Σ_j where(guard, x, 0) for integers x, its inputs, and the exact result."""
    x = load(Tensor("x", "float32", (3, i.size, j.size)), iota(g), iota(i), iota(j))
    output = Tensor("out", "float32", (3, i.size))
    plan = build_plan(sum_over(j, where(guard, x, const(0.0))), output, (g, i), held=1)
    values = torch.randint(1, 1000, (3, i.size, j.size), generator=torch.Generator().manual_seed(0)).float()
    kept = torch.from_numpy(over(guard, g, i, j).astype(bool))
    return plan, {"x": values.to(DEVICE)}, (values * kept).sum(-1)


@pytest.mark.slow
@settings(max_examples=60)
@given(guarded(), st.integers(2, 9), st.integers(1, 9))
def test_the_tiled_executor_adds_what_is_kept_once(drawn, tile, row_tile):
    plan, inputs, expected = sums(*drawn)
    with pytest.MonkeyPatch.context() as patch:
        for name, value in (("FIRST_TILE_ROWS", row_tile), ("FIRST_TILE_COLUMNS", tile), ("MAX_ELEMENTS_ON_A_CPU", 1)):
            patch.setattr(executor, name, value)
        assert torch.equal(executor.run_tiled(plan, inputs).cpu(), expected)


@pytest.mark.slow
@settings(max_examples=25)
@given(guarded(40, 90))
def test_the_kernel_adds_what_is_kept_once(drawn):
    plan, inputs, expected = sums(*drawn)
    alone = {*plan.kernels[0].grid}  # the interpreter makes integers of a predicate that is one for a whole tile
    assume(all(n.dims - alone for n in subterms(drawn[3]) if n.dtype == "bool"))
    assert torch.equal(run_triton(plan, inputs, config=TritonConfig(16, 16, 4, 1)).cpu(), expected)


@pytest.mark.sampled(1)
@pytest.mark.parametrize("name", [name for name in MASKS if "documents" not in name])
def test_kernels_of_masks_in_use(name):
    plan, inputs, expected = sums(I, J, Dim("g", 3), MASKS[name][0])
    assert torch.equal(run_triton(plan, inputs, config=TritonConfig(32, 16, 4, 1)).cpu(), expected)


@pytest.mark.parametrize(
    "condition, end",
    [
        (compare("lt", ROW, const(7)), const(7)),
        (compare("le", ROW + const(3), const(7)), const(5)),
        (compare("lt", ROW, load(Tensor("own", "int64", (4,)), const(1))), None),
        (compare("le", const(7), ROW), ()),
        (compare("lt", COLUMN, const(7)), ()),
    ],
)
def test_the_row_where_a_condition_on_rows_ends(condition, end):
    """() for none; None for one that data says."""
    found = end_of_rows(Limit(where(condition, const(J.size), const(0)), False), I, J)
    assert found is None if end == () else found is end if end else "own" in str(found)


def test_a_limit_on_keys_is_no_condition_on_rows():
    assert end_of_rows(Limit(ROW + const(3), True), I, J) is None


@pytest.mark.parametrize(
    "guard, said",
    [
        (le(COLUMN, ROW), None),
        (logical_and(le(COLUMN, ROW), le(ROW - const(3), COLUMN)), None),
        (logical_and(le(COLUMN, ROW - const(3)), le(ROW - const(2), COLUMN)), "limits that move together"),
        (logical_and(le(COLUMN, ROW), lt(ROW, const(9))), "one limit rises with the rows"),
        (logical_and(le(ROW * const(2), COLUMN), le(COLUMN, ROW * const(2))), "ranges of neighbouring rows"),
    ],
)
def test_limits_of_a_block_may_hold_places_that_no_row_keeps(guard, said):
    (found,) = ranges(guard, J, I)
    why = why_apart(found.uppers, found.lowers, I, J)
    assert why is None if said is None else why.startswith(said)
