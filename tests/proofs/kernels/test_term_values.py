"""Values of terms: the float64 beside the residues is what the evaluator says, and the residues hold by laws."""

import numpy as np
import pytest

from onepass.egraph.terms import ops
from onepass.egraph.terms.evaluate import evaluate
from onepass.egraph.terms.ops import OPS, cast, const, exp, iota, load, mantissa, reduce, rescaled_sum, scale, sum_over
from onepass.egraph.terms.term import Dim, Tensor
from onepass.egraph.terms.traversal import all_dims
from onepass.proofs.kernels import numbers as exact
from onepass.proofs.kernels.term_values import MEANINGS, NoMeaning, TermValues, levels_of, spread

I, J, D = Dim("i", 5), Dim("j", 7), Dim("d", 3)
X, Y, N = Tensor("x", "float32", (5, 7)), Tensor("y", "float32", (7, 3)), Tensor("n", "int64", (7,))
RANDOM = np.random.default_rng(0)
GIVEN = {"x": RANDOM.standard_normal((5, 7)), "y": RANDOM.standard_normal((7, 3)), "n": RANDOM.integers(1, 5, 7)}
x, y, n = load(X, iota(I), iota(J)), load(Y, iota(J), iota(D)), load(N, iota(J))
SPECIAL = ("const", "iota", "load", "var", "size", "cast", "reduce", "scaled", "scale", "mantissa", "where", "uniform")


def value(term, places=None):
    order = list(dict.fromkeys([*sorted(term.dims), *all_dims(term)]))
    found = TermValues(GIVEN, {}, order, places).of(term)
    return found, order


def shadow(term):
    found, order = value(term)
    array = found.shadow if isinstance(found, exact.Numbers) else np.asarray(found)
    array = array.reshape((1,) * (len(order) - array.ndim) + array.shape)
    free = array.reshape(array.shape[: len(term.dims)])
    return np.broadcast_to(free, [d.size for d in sorted(term.dims)])


POINTWISE = [name for name, row in OPS.items() if name in MEANINGS and row.arity in (1, 2)]


@pytest.mark.parametrize("name", POINTWISE)
def test_floats_beside_the_residues_are_those_of_the_evaluator(name):
    positive = exp(x * 0.1)
    args = [positive, exp(load(X, iota(I), iota(J)) * 0.2)][: OPS[name].arity]
    term = ops.make(name, tuple(args))
    np.testing.assert_allclose(shadow(term), evaluate(term, GIVEN, sorted(term.dims)), rtol=1e-9, atol=1e-12)


def test_every_operation_has_a_meaning():
    integers = {"floordiv", "mod", "and", "or", "not", "lt", "le", "eq", "maximum", "minimum"}
    assert set(OPS) <= {*MEANINGS, *SPECIAL, *integers, *ops.OF_LAWS}


@pytest.mark.parametrize("monoid", ["sum", "max", "min", "prod"])
def test_folds(monoid):
    for body in (x, cast(n, "float32") + x, n):
        term = reduce(monoid, J, body)
        np.testing.assert_allclose(shadow(term), evaluate(term, GIVEN, sorted(term.dims)), rtol=1e-9)


def test_sums_of_products_with_factors_twice_and_conditions():
    kept = ops.where(ops.lt(n, const(3)), x * y * y * 2.0, const(0.0))
    for body in (x * y, x * x * y, kept, y, const(3.0) * x):
        term = sum_over(J, body)
        np.testing.assert_allclose(shadow(term), evaluate(term, GIVEN, sorted(term.dims)), rtol=1e-9)
        found, order = value(term)
        axis, size = order.index(J), J.size
        whole = spread(exact.numbers(TermValues(GIVEN, {}, order).of(body)), axis, size, len(order))
        assert (exact.total(whole, axis).parts == np.squeeze(found.parts, axis + 1)).all()


def test_rescaled_sums_leave_out_what_is_absent():
    absent = ops.where(ops.lt(n, const(3)), x, const(-np.inf))
    state = rescaled_sum(J, absent, y)
    for term in (mantissa(state), scale(state), mantissa(state) / mantissa(rescaled_sum(J, absent, const(1.0)))):
        np.testing.assert_allclose(shadow(term), evaluate(term, GIVEN, sorted(term.dims)), rtol=1e-9)
    nothing = rescaled_sum(J, ops.where(ops.lt(n, const(0)), x, const(-np.inf)), y)
    assert np.isnan(shadow(mantissa(nothing))).all()


def test_some_places_are_those_of_the_whole():
    term = sum_over(J, x * y)
    some, every = value(term, {I: np.array([3, 1])})[0], value(term)[0]
    axis = value(term)[1].index(I)
    assert (some.parts == np.take(every.parts, [3, 1], axis + 1)).all()


def test_a_place_beyond_a_tensor_is_undefined():
    found = value(load(X, iota(I), iota(J) + 4))[0]
    assert np.isnan(found.shadow).sum() == 5 * 4


def test_how_many_primes_exponentials_need():
    assert [levels_of([t]) for t in (x, exp(x), exp(exp(x)), exp(scale(rescaled_sum(J, x, y))))] == [1, 2, 3, 3]
    with pytest.raises(NoMeaning):
        levels_of([exp(exp(exp(exp(x))))])
