"""Elements that a load reads over some places are counted as enumeration counts them, and never too few."""

from math import prod

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from onepass.egraph.terms.evaluate import evaluate
from onepass.egraph.terms.ops import const, iota, load, make
from onepass.egraph.terms.term import Dim, Tensor
from onepass.lowering.analysis.read_places import places_read

I, J = Dim("i", 12), Dim("j", 9)
PLACES = {I: 5, J: 4}  # the first of each dim


def enumerated(node) -> int:
    """Different places, by evaluating every index at every place."""
    dims = sorted(node.dims, key=str)
    first = tuple(slice(0, PLACES[d]) for d in dims)
    found = [np.broadcast_to(evaluate(x, {}, dims, {}), [d.size for d in dims])[first].ravel() for x in node.args]
    return len(set(zip(*(axis.tolist() for axis in found), strict=True))) if found else 1


def table(*sizes: int) -> Tensor:
    return Tensor("table", "float32", sizes)


def at(tensor: Tensor, *index):
    return load(tensor, *index)


EXACT = {
    "rows": (table(12), iota(I)),
    "rows and columns": (table(12, 9), iota(I), iota(J)),
    "diagonals": (table(40), iota(J) - iota(I) + const(12)),
    "both ways": (table(40), iota(I) + iota(J)),
    "every second": (table(40), iota(I) * const(2)),
    "one place": (table(3), const(1)),
}


@pytest.mark.parametrize("case", EXACT)
def test_sums_of_coordinates_are_counted_exactly(case):
    node = at(*EXACT[case])
    assert places_read(node, PLACES.get) == enumerated(node)


def test_an_axis_has_no_more_places_than_its_size():
    far = make("floordiv", (iota(I) * iota(J), const(2)))
    assert places_read(at(table(7), far), PLACES.get) == 7
    assert places_read(at(table(700), far), PLACES.get) == prod(PLACES.values())


@given(st.tuples(*[st.integers(-3, 3)] * 4), st.tuples(st.integers(1, 5), st.integers(1, 4)))
def test_it_is_never_less_than_what_is_read(factors, places):
    a, b, c, d = (const(n) for n in factors)
    node = at(table(100, 100), iota(I) * a + iota(J) * b, iota(I) * c + iota(J) * d)
    if not node.dims:
        return
    extents = dict(zip(PLACES, places, strict=True))
    dims = sorted(node.dims, key=str)
    first = tuple(slice(0, extents[x]) for x in dims)
    index = [np.broadcast_to(evaluate(x, {}, dims, {}), [x.size for x in dims])[first].ravel() for x in node.args]
    assert places_read(node, extents.get) >= len(set(zip(*(axis.tolist() for axis in index), strict=True)))
