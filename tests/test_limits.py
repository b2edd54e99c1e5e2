"""Guards as ranges and tile classes against brute force over random predicates, and the ranges of masks in use."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from onepass.egraph.evaluate import evaluate
from onepass.egraph.index import simplify_index
from onepass.egraph.ops import (
    const,
    eq,
    iota,
    le,
    load,
    logical_and,
    logical_not,
    logical_or,
    lt,
    make,
    maximum,
    minimum,
    where,
)
from onepass.egraph.term import Dim, Tensor
from onepass.lowering.limits import ends, ranges, tile_classes, tile_range

SMALL = st.integers(-6, 6)


@st.composite
def coordinates(draw, dim):
    """An integer term over one coordinate."""
    x = iota(dim) * const(draw(st.sampled_from([1, 1, 1, -1, 2, 3]))) + const(draw(SMALL))
    match draw(st.integers(0, 5)):
        case 0:
            return x // const(draw(st.integers(1, 5)))
        case 1:
            return x % const(draw(st.integers(1, 5)))
        case 2:
            return maximum(x, const(draw(st.integers(0, 20)))) if draw(st.booleans()) else minimum(x, const(9))
        case 3:
            return x // const(draw(st.integers(2, 4))) * const(draw(st.integers(1, 3)))
    return x


@st.composite
def comparisons(draw, i, j, g):
    row = draw(st.sampled_from([const(0), iota(g) * const(draw(SMALL)), draw(coordinates(i)), draw(coordinates(i))]))
    column = draw(st.sampled_from([draw(coordinates(j)), draw(coordinates(j)), const(0)]))
    rest = row + const(draw(st.integers(-15, 25)))
    difference = column - rest
    match draw(st.integers(0, 4)):
        case 0:
            return eq(column, rest)
        case 1:
            return le(make("abs", (difference,)), const(draw(st.integers(0, 9))))
        case 2:
            return le((iota(j) + row) // const(draw(st.integers(1, 6))), const(draw(st.integers(-2, 6))))
        case 3:
            return lt(rest, column)
    return le(column, rest)


@st.composite
def guards(draw, i, j, g, depth=3):
    kind = draw(st.sampled_from(["leaf", "and", "or", "not", "where"])) if depth else "leaf"
    below = lambda: draw(guards(i, j, g, depth - 1))
    match kind:
        case "and":
            return logical_and(below(), below())
        case "or":
            return logical_or(below(), below())
        case "not":
            return logical_not(below())
        case "where":
            return where(below(), below(), below())
    return draw(comparisons(i, j, g))


@st.composite
def cases(draw):
    i, j, g = Dim("i", draw(st.integers(1, 24))), Dim("j", draw(st.integers(1, 40))), Dim("g", 3)
    guard = draw(guards(i, j, g))
    return i, j, g, simplify_index(guard) if draw(st.booleans()) else guard


def over(term, *dims):
    return np.broadcast_to(evaluate(term, {}, dims), [d.size for d in dims])


def classes_of(found, first, last, tile, length, bound_of):
    """Tile classes for rows first..last from the bounds at these two rows, as an executor computes them."""
    at = lambda limits: [ends(x, *(int(bound_of(x)[row]) for row in (first, last))) for x in limits]
    return tile_classes([(tile_range(tile, length, at(r.uppers), at(r.lowers)), r.exact) for r in found])


@settings(max_examples=300)
@given(cases(), st.integers(1, 9), st.integers(1, 9), st.integers(0, 2))
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


# Masks as people write them, over 256 rows and columns

I, J = Dim("i", 256), Dim("j", 256)
ROW, COLUMN = iota(I), iota(J)
DISTANCE = make("abs", (ROW - COLUMN,))
GRID_ROW, GRID_COLUMN = (x // const(16) for x in (ROW, COLUMN))
ALONG = make("abs", (ROW % const(16) - COLUMN % const(16),))
CLAMPED = minimum(maximum(GRID_ROW, const(3)), const(12))
DOCUMENTS = Tensor("documents", "int64", (256,))
MASKS = {  # guard, number of ranges, whether they are exact
    "everything": (le(COLUMN, ROW + 999), 1, True),
    "nothing": (lt(COLUMN, const(0)), 0, True),
    "causal": (le(COLUMN, ROW), 1, True),
    "prefix": (logical_or(lt(COLUMN, const(64)), le(COLUMN, ROW)), 1, True),
    "window both ways": (le(DISTANCE, const(32)), 1, True),
    "outside a window": (lt(const(32), DISTANCE), 2, True),
    "queries twice as long": (le(COLUMN * const(2), ROW), 1, True),
    "keys twice as long": (le(COLUMN, ROW * const(2)), 1, True),
    "blocks": (eq(COLUMN // const(64), ROW // const(64)), 1, True),
    "dilated": (logical_and(le(DISTANCE, const(32)), eq((ROW - COLUMN) % const(2), const(0))), 1, False),
    "window and globals": (
        logical_or(logical_or(le(DISTANCE, const(16)), lt(COLUMN, const(16))), lt(ROW, const(16))),
        2, True,
    ),
    "causal window and sink": (
        logical_and(le(COLUMN, ROW), logical_or(lt(ROW - COLUMN, const(32)), lt(COLUMN, const(4)))), 2, True,
    ),
    "neighbours in two dims": (
        logical_and(le(make("abs", (GRID_ROW - GRID_COLUMN,)), const(3)), le(ALONG, const(3))), 1, False,
    ),
    "neighbours, clamped": (le(make("abs", (CLAMPED - GRID_COLUMN,)), const(3)), 1, True),
    "documents": (eq(load(DOCUMENTS, ROW), load(DOCUMENTS, COLUMN)), 1, False),
    "documents or prefix": (
        logical_or(eq(load(DOCUMENTS, ROW), load(DOCUMENTS, COLUMN)), lt(COLUMN, const(64))), 2, False,
    ),
}  # fmt: skip


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
