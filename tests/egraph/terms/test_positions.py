"""The element at a position as a sum: against reading it, for pointwise code around products, masks and coordinates."""

import numpy as np
import pytest

from onepass.egraph.terms.evaluate import evaluate
from onepass.egraph.terms.ops import cast, exp, iota, load, lt, make, sum_over
from onepass.egraph.terms.positions import at_position
from onepass.egraph.terms.term import Dim, Tensor
from onepass.egraph.terms.traversal import substitute, subterms

i, j, d = Dim("i", 3), Dim("j", 5), Dim("d", 4)
X, W, M = Tensor("x", "float64", (3, 4)), Tensor("w", "float64", (5, 4)), Tensor("m", "bool", (5,))
LABELS = Tensor("y", "int64", (3,))
SCORE = sum_over(d, load(X, iota(i), iota(d)) * load(W, iota(j), iota(d)))
VALUES = {
    "a product": SCORE,
    "pointwise code": exp(SCORE * 2.0) - SCORE,
    "a mask": make("where", (load(M, iota(j)), SCORE, exp(SCORE))),
    "a coordinate": SCORE + cast(iota(j), "float64"),
    "a comparison": make("where", (lt(iota(j), iota(i)), SCORE, SCORE * 3.0)),
}


@pytest.mark.parametrize("name", VALUES)
def test_element_at_a_position(name):
    values, label = VALUES[name], load(LABELS, iota(i))
    generator = np.random.default_rng(0)
    given = {"x": generator.normal(size=(3, 4)), "w": generator.normal(size=(5, 4)), "m": np.arange(5) % 2 == 0}
    given["y"] = np.array([4, 0, 2])
    found = at_position(values, j, label)
    assert not any(node.op == "load" and label in node.args for node in subterms(found))
    read = substitute(values, {iota(j): label})
    np.testing.assert_allclose(evaluate(found, given), evaluate(read, given))


def test_nothing_is_at_a_position_beyond_the_row():
    found = at_position(SCORE, j, load(LABELS, iota(i)))
    given = {"x": np.ones((3, 4)), "w": np.ones((5, 4)), "y": np.array([5, -1, 99])}
    np.testing.assert_array_equal(evaluate(found, given), np.zeros(3))
