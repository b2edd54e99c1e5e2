"""Random predicates over a row, a loop and a grid coordinate, with every connective, and masks as people write them.

Shared by the tests of ranges and of both executors.
"""

from hypothesis import strategies as st

from onepass.egraph.terms.index_simplify import simplify_index
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
    make,
    maximum,
    minimum,
    where,
)
from onepass.egraph.terms.term import Dim, Tensor

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
def guarded(draw, rows=24, columns=40):
    """Dims i, j, g and a guard over them, sometimes simplified as captured ones are."""
    i, j, g = Dim("i", draw(st.integers(1, rows))), Dim("j", draw(st.integers(1, columns))), Dim("g", 3)
    guard = draw(guards(i, j, g))
    return i, j, g, simplify_index(guard) if draw(st.booleans()) else guard


# Masks as people write them: guard, number of ranges, whether they are exact

I, J = Dim("i", 256), Dim("j", 256)
ROW, COLUMN = iota(I), iota(J)
DISTANCE = make("abs", (ROW - COLUMN,))
GRID_ROW, GRID_COLUMN = (x // const(16) for x in (ROW, COLUMN))
ALONG = make("abs", (ROW % const(16) - COLUMN % const(16),))
CLAMPED = minimum(maximum(GRID_ROW, const(3)), const(12))
DOCUMENTS = Tensor("documents", "int64", (256,))
MASKS = {
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
