"""Forward mode on small terms: tangents of operands add up, and what has none is not there."""

import numpy as np
import pytest

from onepass.egraph.calculus.forward_mode import tangents_of
from onepass.egraph.calculus.partials import NotDifferentiable
from onepass.egraph.derivation.normalize import Normaliser
from onepass.egraph.terms.evaluate import evaluate
from onepass.egraph.terms.ops import cast, const, exp, iota, load, lt, make, max_over, sum_over, where
from onepass.egraph.terms.term import Dim, Tensor
from onepass.egraph.terms.traversal import tensors
from onepass.rules import NORMAL

I, J, D = Dim("i", 4), Dim("j", 5), Dim("d", 3)
Q, K = Tensor("q", "float64", (4, 3)), Tensor("k", "float64", (5, 3))
DQ, DK = Tensor("dq", "float64", (4, 3)), Tensor("dk", "float64", (5, 3))
q, dq = (load(t, iota(I), iota(D)) for t in (Q, DQ))
k, dk = (load(t, iota(J), iota(D)) for t in (K, DK))
SCORES = sum_over(D, q * k)


def _of(form, **given):
    return tangents_of([form], given).get(form)


def test_a_product_of_matrices():
    assert _of(SCORES, q=DQ, k=DK) is sum_over(D, dq * k + dk * q)


def test_what_has_no_tangent_is_not_multiplied_by_zeros():
    assert _of(SCORES, k=DK) is sum_over(D, dk * q)
    assert _of(SCORES) is None and _of(SCORES, other=DQ) is None


def test_an_index_that_is_computed_reads_the_tangent_at_the_same_place():
    shifted = load(Q, iota(I) // const(2), iota(D))
    assert _of(shifted * 2.0, q=DQ) is load(DQ, iota(I) // const(2), iota(D)) * 2.0


def test_conditions_and_integers_have_none():
    chosen = where(lt(q, const(0.0)), k, const(1.0))
    assert DQ not in tensors(_of(chosen, q=DQ, k=DK)) and _of(chosen, q=DQ) is None
    assert _of(cast(cast(q, "int64"), "float64"), q=DQ) is None


def test_a_tangent_has_the_dtype_of_its_node():
    half = cast(q, "bfloat16")
    assert Normaliser(NORMAL).normal(_of(half, q=DQ)) is cast(dq, "bfloat16")
    assert _of(cast(half, "float32"), q=DQ).dtype == "float32"


def test_a_maximum_is_refused_where_its_tangent_is_asked_for():
    largest = max_over(J, SCORES)
    with pytest.raises(NotDifferentiable, match="a largest element"):
        _of(largest, q=DQ)
    assert _of(where(lt(largest, const(9.0)), sum_over(D, q), const(0.0)), q=DQ) is not None


@pytest.mark.parametrize("op", ["exp", "log", "sqrt", "rsqrt", "tanh", "sigmoid", "erf", "sin", "cos", "log1p", "abs"])
def test_pointwise_tangents_are_differences(op):
    form = make(op, (exp(q * 0.3),)) / (q * q + 2.0)
    draws = np.random.default_rng(0)
    at, change = draws.standard_normal((2, 4, 3))
    near = [evaluate(form, {"q": at + step * change}, (I, D)) for step in (1e-6, -1e-6)]
    found = evaluate(_of(form, q=DQ), {"q": at, "dq": change}, (I, D))
    assert np.allclose(found, (near[0] - near[1]) / 2e-6, atol=1e-7)
