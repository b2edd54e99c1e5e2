"""A sum over a dim that was flattened from two became two sums, and the index of an inner sum over a dim of the same
name was replaced, too: gradients through interleaved RoPE were sums of one element, many times."""

import numpy as np

from onepass.egraph.terms.evaluate import evaluate
from onepass.egraph.terms.ops import const, exp, iota, load, sum_over
from onepass.egraph.terms.term import Dim, Tensor
from onepass.lowering.planning.normalize_terms import with_flattened_dims_split

D, E, B, J = Dim("d", 6), Dim("e", 3), Dim("b", 2), Dim("j", 5)
X, Y = Tensor("x", "float32", (3, 2)), Tensor("y", "float32", (3, 2, 5))


def test_an_inner_sum_over_the_same_dim_stays():
    at = lambda d: load(Y, iota(d) // const(2), iota(d) % const(2), iota(J))
    x = load(X, iota(D) // const(2), iota(D) % const(2))
    inner = sum_over(D, x * at(D))
    term = sum_over(D, x * sum_over(J, at(D) * exp(inner) * at(D)))
    found = with_flattened_dims_split(term)
    rng = np.random.default_rng(0)
    arrays = {"x": rng.standard_normal((3, 2)), "y": rng.standard_normal((3, 2, 5))}
    assert found is not term
    assert np.allclose(evaluate(found, arrays), evaluate(term, arrays))
