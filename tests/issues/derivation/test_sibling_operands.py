"""An operand whose normal form was its sibling, still waiting for its turn, was taken for a circle and refused."""

import numpy as np

from onepass.egraph.derivation.normalize import normalise
from onepass.egraph.terms.evaluate import evaluate
from onepass.egraph.terms.ops import const, iota, le, load, where
from onepass.egraph.terms.term import Dim, Tensor
from onepass.rules import NORMAL

I, J = Dim("i", 3), Dim("j", 5)
TERM = where(le(iota(I) + iota(J), iota(J) + iota(I)), load(Tensor("x", "float32", (3,)), iota(I)), const(0.0))


def test_the_comparison_is_decided():
    assert normalise(TERM, NORMAL) is load(Tensor("x", "float32", (3,)), iota(I))


def test_the_value_is_kept():
    x = np.arange(3.0)
    kept = evaluate(TERM, {"x": x}, (I, J))
    np.testing.assert_array_equal(kept, np.broadcast_to(x[:, None], kept.shape))
