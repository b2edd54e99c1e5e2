"""The transpose of a load against a sum over all places that read each element."""

from itertools import product

import numpy as np
import pytest

from onepass.egraph.calculus.transpose import transposed
from onepass.egraph.terms.evaluate import evaluate
from onepass.egraph.terms.ops import const, iota, load, maximum, minimum
from onepass.egraph.terms.term import Dim, Tensor
from onepass.egraph.terms.traversal import reduces

I, J, H = Dim("i", 5), Dim("j", 6), Dim("h", 4)
i, j, h = iota(I), iota(J), iota(H)
CASES = {
    "as it lies": ((5, 6), (i, j)),
    "transposed": ((6, 5), (j, i)),
    "broadcast over j": ((5,), (i,)),
    "one row of three": ((3, 6), (const(1), j)),
    "an axis of one": ((1, 6), (const(0), j)),
    "a slice": ((9,), (j + const(2),)),
    "from the end": ((6,), (const(5) - j,)),
    "a part of each": ((8,), (i + const(3),)),
    "groups": ((2, 6), (h // const(2), j)),
    "groups with their members": ((2, 2), (h // const(2), h % const(2))),
    "flattened": ((24,), (h * const(6) + j,)),
    "flattened, a part": ((40, 5), (h * const(6) + j + const(7), i)),
    "three flattened": ((120,), (h * const(30) + j * const(5) + i,)),
    "with a gap": ((28,), (h * const(7) + j,)),
    "both from one dim": ((5, 5), (i, i)),
    "a distance": ((10,), (j - i + const(4),)),
    "a clamped distance": ((4,), (minimum(maximum(j - i + const(1), const(0)), const(3)),)),
}


def _number(index, at) -> int:
    dims = tuple(sorted(index.dims))
    return int(evaluate(index, {}, dims)[tuple(at[d] for d in dims)])


@pytest.mark.parametrize("name", CASES)
def test_each_element_gets_what_its_places_get(name):
    shape, index = CASES[name]
    node = load(Tensor("t", "float64", shape), *index)
    dims = tuple(sorted(node.dims))
    cotangent = load(Tensor("g", "float64", tuple(d.size for d in dims)), *map(iota, dims))
    g = np.random.default_rng(0).standard_normal([d.size for d in dims])
    expected = np.zeros(shape)
    for place in product(*(range(d.size) for d in dims)):
        at = dict(zip(dims, place))
        expected[tuple(_number(x, at) for x in index)] += g[place]
    term, axes = transposed(node, cotangent)
    assert term.dims <= set(axes) and tuple(d.size for d in axes) == shape
    found = np.broadcast_to(evaluate(term, {"g": g}, axes), shape)
    assert np.allclose(found, expected, atol=1e-12)


@pytest.mark.parametrize("name", ["as it lies", "a slice", "from the end", "groups", "flattened", "three flattened"])
def test_no_sum_over_all_places_where_the_index_says_which(name):
    shape, index = CASES[name]
    node = load(Tensor("t", "float64", shape), *index)
    dims = tuple(sorted(node.dims))
    cotangent = load(Tensor("g", "float64", tuple(d.size for d in dims)), *map(iota, dims))
    term, _ = transposed(node, cotangent)
    assert [r.attrs[1].size for r in reduces(term)] == ([2] if name == "groups" else [])
