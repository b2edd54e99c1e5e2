"""Canonical terms mean what the terms mean; names of bound dims and the order of a guard's parts do not matter."""

import numpy as np
import pytest

from onepass.egraph.terms.evaluate import evaluate
from onepass.egraph.terms.ops import (
    const,
    exp,
    iota,
    le,
    load,
    logical_and,
    lt,
    max_over,
    reduce,
    scale,
    scaled,
    sum_over,
    where,
)
from onepass.egraph.terms.term import Dim, Tensor
from onepass.lowering.readback.canonical_terms import Canonical, at_indices

I, J, K = Dim("i", 4), Dim("j", 5), Dim("k", 5)
X, Y = Tensor("x", "float32", (4, 5)), Tensor("y", "float32", (5,))


def at(*dims):
    return load(X, *map(iota, dims))


def shadowed():
    inner = sum_over(J, at(I, J))
    return sum_over(J, load(Y, iota(J)) * inner)


TERMS = {
    "plain": sum_over(J, exp(at(I, J))),
    "nested": sum_over(J, at(I, J) * max_over(K, at(I, K) + load(Y, iota(J)))),
    "shadowed": shadowed(),
    "guard": sum_over(J, where(le(iota(J), iota(I)), where(lt(const(0), iota(J)), at(I, J), const(0.0)), const(0.0))),
    "turned guard": sum_over(J, where(lt(iota(I), iota(J)), const(0.0), at(I, J))),
    "scale": scale(reduce("rescaled", J, scaled(at(I, J), load(Y, iota(J))))),
}


@pytest.mark.parametrize("name", TERMS)
def test_a_canonical_term_means_the_term(name):
    rng = np.random.default_rng(0)
    arrays = {"x": rng.standard_normal((4, 5)), "y": rng.standard_normal(5)}
    found = Canonical()(TERMS[name])
    assert np.allclose(evaluate(found, arrays, [I]), evaluate(TERMS[name], arrays, [I]))
    assert Canonical()(found) is found


def test_names_of_bound_dims_do_not_matter():
    one, other = (sum_over(d, exp(at(I, d)) * sum_over(e, at(I, e))) for d, e in ((J, K), (K, J)))
    assert Canonical()(one) is Canonical()(other) is Canonical()(sum_over(J, exp(at(I, J)) * sum_over(J, at(I, J))))


def test_the_order_of_a_guard_does_not_matter():
    p, q = le(iota(J), iota(I)), lt(const(1), iota(J))
    guards = [logical_and(p, q), logical_and(q, p), logical_and(~(~q), p), logical_and(~lt(iota(I), iota(J)), q)]
    found = {Canonical()(sum_over(J, where(g, at(I, J), const(0.0)))) for g in guards}
    assert len(found) == 1
    assert Canonical()(sum_over(J, where(p, at(I, J), const(0.0)))) not in found


def test_the_order_of_a_guard_is_by_names_that_all_terms_have():
    """Terms that differ in names are one term, though the parts of a guard had another order by the names of before."""
    found = set()
    for first in "abcdefgh":
        p, q, r = (Dim(first + name, 5) for name in "pqr")
        parts = [lt(iota(one), iota(other)) for one, other in ((p, q), (q, r), (p, r))]
        body = where(logical_and(logical_and(*parts[:2]), parts[2]), load(Y, iota(r)), const(0.0))
        found.add(Canonical()(sum_over(p, exp(sum_over(q, exp(sum_over(r, body)))))))
    assert len(found) == 1


def test_indices_are_put_in_all_at_once():
    x = Tensor("x", "float32", (5, 5))
    swapped = at_indices(load(x, iota(J), iota(K)), {J: iota(K), K: iota(J)})
    assert swapped is load(x, iota(K), iota(J))


def test_no_bound_dim_captures_an_index():
    body = Canonical()(sum_over(J, at(I, J)))
    bound = body.attrs[1]
    moved = Canonical()(sum_over(J, at_indices(body, {I: iota(J) % const(4)})))
    rng = np.random.default_rng(0)
    x = rng.standard_normal((4, 5))
    assert bound not in body.dims
    assert np.allclose(evaluate(moved, {"x": x}, []), sum(x.sum(1)[k % 4] for k in range(5)))
