"""Terms: interning, dims and dtypes, meaning against numpy, affine forms against brute force, printing."""

import copy
import dataclasses
import pickle
from concurrent.futures import ThreadPoolExecutor
from math import inf, nan
from threading import Barrier

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from onepass.egraph import Dim, Tensor, TermError
from onepass.egraph.terms.affine import affine, bounds, compare, split_multiple, to_term
from onepass.egraph.terms.evaluate import evaluate
from onepass.egraph.terms.ops import (
    LAST_PLACE,
    MONOIDS,
    OF_LAWS,
    OPS,
    cast,
    const,
    exp,
    iota,
    load,
    lt,
    make,
    mantissa,
    max_over,
    order_of,
    reduce,
    rescaled_sum,
    scale,
    scaled,
    stored,
    sum_over,
    var,
    where,
)
from onepass.egraph.terms.printing import show, show_let, show_marked, show_where
from onepass.egraph.terms.traversal import all_dims, reduces, rename_dims, substitute, subterms, tensors
from tests.support.strategies import INDEX_DIMS, coordinates, float_terms, index_terms

I, J, D = Dim("i", 4), Dim("j", 3), Dim("d", 2)
Q, K, V = Tensor("q", "float32", (4, 2)), Tensor("k", "float32", (3, 2)), Tensor("v", "float32", (3, 2))
q, k, v = load(Q, iota(I), iota(D)), load(K, iota(J), iota(D)), load(V, iota(J), iota(D))


def values(*shape):
    return np.random.default_rng(sum(shape)).standard_normal(shape)


def meaning(root):
    """The float64 values over INDEX_DIMS; tensors get values by their names."""
    arrays = {t.name: values(*t.shape) for t in tensors(root)}
    return np.broadcast_to(evaluate(root, arrays, INDEX_DIMS), [d.size for d in INDEX_DIMS])


# Interning, dims, dtypes ---------------------------------------------------------------------------------------------


def test_equal_terms_are_one_object():
    assert exp(q * 2.0) is exp(q * 2.0)
    assert exp(q * 2.0) is not exp(q * 3.0)


@pytest.mark.parametrize("one, other", [(1, 1.0), (1, True), (0.0, -0.0), (inf, -inf)])
def test_literals_of_different_meaning_are_different_terms(one, other):
    assert const(one) is not const(other)


def test_nan_is_one_literal():
    assert const(nan) is const(nan)


@pytest.mark.parametrize("make_one", [lambda: Dim("once", 7), lambda: Tensor("once", "float32", (7,))])
def test_equal_dims_and_tensors_are_one_object(make_one):
    one = make_one()
    assert make_one() is one and copy.deepcopy(one) is one and pickle.loads(pickle.dumps(one)) is one
    assert dataclasses.replace(one, name="once") is one and dataclasses.replace(one, name="other") is not one
    with pytest.raises(dataclasses.FrozenInstanceError):
        one.name = "other"


def test_dims_are_ordered_by_name_and_size():
    assert sorted([Dim("j", 3), Dim("i", 4), Dim("i", 2)]) == [Dim("i", 2), Dim("i", 4), Dim("j", 3)]
    assert max(Dim("i", 4), Dim("j", 3)) is Dim("j", 3) and Dim("i", 4) != Dim("i", "n")


def test_threads_that_make_equal_terms_get_one_object():
    with ThreadPoolExecutor(8) as pool:
        for number in range(200):
            start = Barrier(8)

            def made(_, number=number, start=start):
                start.wait()
                return iota(Dim(f"thread{number}", number))

            assert len({id(x) for x in list(pool.map(made, range(8)))}) == 1


@given(float_terms)
def test_terms_survive_pickling(x):
    assert pickle.loads(pickle.dumps(x)) is x


def test_a_term_is_frozen():
    with pytest.raises(AttributeError, match="frozen"):
        q.op = "exp"


def test_free_dims_are_those_not_reduced():
    product = q * k
    assert product.dims == {I, J, D}
    assert sum_over(D, product).dims == {I, J}
    assert max_over(J, sum_over(D, product)).dims == {I}
    assert const(1.0).dims == frozenset()
    assert all_dims(max_over(J, sum_over(D, product))) == [I, D, J]


@pytest.mark.parametrize(
    "x, dtype",
    [
        (q * 2.0, "float32"),
        (const(2.0) * 2.0, "float"),
        (iota(I) + 1, "int64"),
        (lt(iota(I), 1), "bool"),
        (cast(q, "bfloat16"), "bfloat16"),
        (where(lt(iota(I), iota(J)), q, -inf), "float32"),
        (scaled(q, 1.0), "pair of float32"),
        (mantissa(rescaled_sum(J, q, k)), "float32"),
        (scale(rescaled_sum(J, q, k)), "float32"),
        (var("a") + 1.0, "float"),
    ],
)
def test_dtype(x, dtype):
    assert x.dtype == dtype


@pytest.mark.parametrize(
    "build, message",
    [
        (lambda: make("fuse"), "unknown operation 'fuse'"),
        (lambda: make("exp", (q, q)), "exp takes 1 operands, got 2"),
        (lambda: reduce("median", J, q), "unknown monoid 'median'"),
        (lambda: reduce("any", J, q), "reduce does not take an operand of dtype float32"),
        (lambda: reduce("rescaled", J, q), "reduce does not take an operand of dtype"),
        (lambda: mantissa(q), "mantissa does not take an operand of dtype"),
        (lambda: exp(iota(I)), "exp does not take an operand of dtype int64"),
        (lambda: where(q, q, q), "where does not take an operand of dtype float32"),
        (lambda: q + cast(q, "bfloat16"), "operands of different dtypes .* insert a cast"),
        (lambda: load(Q, iota(I)), "q has 2 axes, got 1 indices"),
    ],
)
def test_what_no_program_can_mean_is_refused(build, message):
    with pytest.raises(TermError, match=message):
        build()


def test_walks_visit_shared_subterms_once():
    shared = exp(q)
    whole = shared * shared + max_over(I, shared)
    order = list(subterms(whole))
    assert len(order) == len(set(order))
    assert all(order.index(a) < order.index(node) for node in order for a in node.args)
    assert reduces(whole) == (max_over(I, shared),)
    assert tensors(whole) == [Q]


def test_substitute_and_rename():
    whole = sum_over(J, exp(q) * k)
    assert substitute(whole, {exp(q): q}) is sum_over(J, q * k)
    other = Dim("n", 3)
    renamed = rename_dims(whole, {J: other})
    assert renamed is sum_over(other, exp(q) * load(K, iota(other), iota(D)))


# Meaning -------------------------------------------------------------------------------------------------------------


def test_every_operation_has_a_meaning_or_is_a_case_of_evaluate():
    special = {"const", "iota", "load", "var", "size", "cast", "reduce", *OF_LAWS}
    assert {name for name, row in OPS.items() if row.meaning is None} == special


@pytest.mark.parametrize("name", sorted(MONOIDS))
def test_the_identity_of_a_monoid_changes_nothing(name):
    monoid = MONOIDS[name]
    body = values(1, 3) if monoid.dtype != "bool" else values(1, 3) > 0
    if name == "rescaled":
        state = (body, 2 * body)
        padded = tuple(np.append(x, [[e]], axis=1) for x, e in zip(state, monoid.identity))
        np.testing.assert_allclose(monoid.fold(padded, 1), monoid.fold(state, 1))
    else:
        padded = np.append(body, [[monoid.identity]], axis=1)
        np.testing.assert_allclose(monoid.fold(padded.astype(body.dtype), 1), monoid.fold(body, 1))


def test_attention_means_what_numpy_says():
    arrays = {"q": values(4, 2), "k": values(3, 2), "v": values(3, 2) + 1}
    E = Dim("e", 2)
    s = sum_over(D, q * k) * 0.5
    p = exp(s - max_over(J, s))
    o = sum_over(J, p / sum_over(J, p) * load(V, iota(J), iota(E)))
    scores = arrays["q"] @ arrays["k"].T * 0.5
    weights = np.exp(scores - scores.max(1, keepdims=True))
    expected = weights / weights.sum(1, keepdims=True) @ arrays["v"]
    np.testing.assert_allclose(evaluate(o, arrays, (I, E)), expected, rtol=1e-12)
    np.testing.assert_allclose(evaluate(o, arrays, (E, I)), expected.T, rtol=1e-12)


def test_a_fold_over_a_dim_that_the_body_ignores_repeats_it():
    x = load(Tensor("x", "float32", (4,)), iota(I))
    arrays = {"x": values(4)}
    np.testing.assert_allclose(evaluate(sum_over(J, x), arrays), 3 * arrays["x"])
    np.testing.assert_allclose(evaluate(reduce("prod", J, x), arrays), arrays["x"] ** 3)
    np.testing.assert_allclose(evaluate(max_over(J, x), arrays), arrays["x"])


def test_gathers_and_views_are_index_terms():
    page = load(Tensor("page", "int64", (3,)), iota(J))
    arrays = {"q": values(4, 2), "page": np.array([3, 0, 3])}
    np.testing.assert_array_equal(evaluate(load(Q, page, iota(D)), arrays, (J, D)), arrays["q"][[3, 0, 3]])
    flipped = load(Q, const(3) - iota(I), iota(D))
    np.testing.assert_array_equal(evaluate(flipped, arrays, (I, D)), arrays["q"][::-1])


def test_rescaled_sums_leave_absent_elements_out():
    s, w = load(Tensor("s", "float32", (3,)), iota(J)), load(Tensor("w", "float32", (3,)), iota(J))
    state = rescaled_sum(J, s, w)
    present = {"s": np.array([700.0, -inf, 699.0]), "w": np.array([1.0, nan, 2.0])}
    assert evaluate(scale(state), present) == 700.0
    np.testing.assert_allclose(evaluate(mantissa(state), present), 1 + 2 * np.exp(-1))
    nothing = {"s": np.full(3, -inf), "w": np.ones(3)}
    assert evaluate(scale(state), nothing) == -inf
    assert np.isnan(evaluate(mantissa(state), nothing))


def test_casts():
    arrays = {"q": np.array([[1.75, -1.75]] * 4)}
    assert evaluate(cast(q, "bfloat16"), arrays, (D, I))[0, 0] == 1.75, "float casts mean nothing over the reals"
    np.testing.assert_array_equal(evaluate(cast(q, "int64"), arrays, (I, D))[0], [1, -1])
    np.testing.assert_array_equal(evaluate(cast(iota(I), "bool"), {}), [False, True, True, True])


def test_symbolic_sizes():
    n = Dim("n", "s0")
    total = sum_over(n, where(lt(iota(n), make("size", (), ("s1",))), const(1.0), const(0.0)))
    assert evaluate(total, {}, sizes={"s0": 5, "s1": 3}) == 3


def test_a_name_without_a_value_is_an_error():
    with pytest.raises(TermError, match="no value was given for 'q'"):
        evaluate(q, {})


@given(float_terms)
def test_values_have_the_free_dims(x):
    arrays = {t.name: values(*t.shape) for t in tensors(x)}
    assert evaluate(x, arrays).shape == tuple(d.size for d in sorted(x.dims))


@given(float_terms, st.permutations(INDEX_DIMS))
def test_renaming_dims_changes_nothing(x, order):
    names = {d: Dim(f"{d.name}{n}", d.size) for n, d in enumerate(order)}
    arrays = {t.name: values(*t.shape) for t in tensors(x)}
    renamed = evaluate(rename_dims(x, names), arrays, [names[d] for d in INDEX_DIMS])
    np.testing.assert_allclose(renamed, evaluate(x, arrays, INDEX_DIMS), rtol=1e-12)


# Affine forms against brute force ------------------------------------------------------------------------------------


@given(index_terms)
def test_an_affine_form_has_the_same_values(x):
    np.testing.assert_array_equal(meaning(to_term(affine(x))), meaning(x))


@given(index_terms)
def test_an_affine_form_is_normal(x):
    again = to_term(affine(x))
    assert to_term(affine(again)) is again


@given(index_terms)
def test_bounds_hold_every_value(x):
    low, high = bounds(x)
    found = meaning(x)
    assert low is None or low <= found.min()
    assert high is None or found.max() <= high


@given(st.sampled_from(["abs", "maximum", "minimum"]), index_terms, index_terms, index_terms)
def test_bounds_of_extremes_hold_every_value(op, x, y, z):
    x = make(op, (x,)) if op == "abs" else make(op, (x, y))
    low, high = bounds(x - z)
    found = meaning(x - z)
    assert low is None or low <= found.min()
    assert high is None or found.max() <= high


@given(st.lists(st.integers(-3, 3), min_size=3, max_size=3), st.integers(-5, 5))
def test_bounds_of_a_linear_term_are_tight(coefficients, constant):
    x = const(constant)
    for c, d in zip(coefficients, INDEX_DIMS):
        x = x + iota(d) * const(c)
    assert bounds(x) == (meaning(x).min(), meaning(x).max())


@given(st.sampled_from(["lt", "le", "eq"]), index_terms, index_terms)
def test_a_comparison_keeps_its_truth(op, a, b):
    np.testing.assert_array_equal(meaning(compare(op, a, b)), meaning(make(op, (a, b))))


@given(st.sampled_from(["lt", "le", "eq"]), index_terms, index_terms)
def test_a_comparison_in_normal_form_is_normal(op, a, b):
    once = compare(op, a, b)
    assert once.op in ("le", "eq", "const")
    if once.op != "const":
        assert compare(once.op, *once.args) is once


@given(index_terms, st.integers(1, 6))
def test_multiples_split_off(x, divisor):
    whole, rest = split_multiple(x, divisor)
    np.testing.assert_array_equal(meaning(whole * divisor + rest), meaning(x))
    coefficients, constant = affine(rest)
    assert all(c % divisor for c in coefficients.values()) and 0 <= constant < divisor


# Printing ------------------------------------------------------------------------------------------------------------

a, b, c = var("a"), var("b"), var("c")


@pytest.mark.parametrize(
    "x, text",
    [
        (a - (b - c), "a - (b - c)"),
        (a - b - c, "a - b - c"),
        ((a + b) * c, "(a + b) · c"),
        (a / (b * c), "a / (b · c)"),
        (-(a + b), "-(a + b)"),
        (a * const(-2.0), "a · (-2)"),
        (exp(a) + inf, "exp(a) + ∞"),
        (sum_over("j", a * b), "Σ_j a · b"),
        (sum_over("j", a) * b, "(Σ_j a) · b"),
        (max_over("j", a + b), "max_j (a + b)"),
        (rescaled_sum("j", a, 1.0), "⊕_j ⟨a, 1⟩"),
        (where(lt(a, b), a, -inf), "where(a < b, a, -∞)"),
        (cast(a, "bfloat16"), "bfloat16(a)"),
        (stored(a + b, "part0") * c, "stored(a + b as part0) · c"),
        (q, "q[i, d]"),
        (load(V, iota(J) // 2, iota(D) + 1), "v[j // 2, d + 1]"),
    ],
)
def test_show(x, text):
    assert show(x) == text == repr(x)


@given(index_terms)
def test_python_reads_what_show_prints(x):
    read = eval(show(x).replace("·", "*"), coordinates(x))
    np.testing.assert_array_equal(np.broadcast_to(read, [d.size for d in INDEX_DIMS]), meaning(x))


def test_show_let_names_what_is_shared():
    shared = sum_over(D, q * k) * 0.5
    assert show_let(shared - max_over(J, shared)).splitlines() == [
        "t0 = (Σ_d q[i, d] · k[j, d]) · 0.5",
        "t0 - (max_j t0)",
    ]
    assert show_where(shared - max_over(J, shared)) == "t0 - (max_j t0) where t0 = (Σ_d q[i, d] · k[j, d]) · 0.5"
    assert show_where(shared) == show(shared)


@pytest.mark.parametrize(
    ("position", "everywhere", "text"),
    [
        ((), False, "[(Σ_d q[i, d] · k[j, d]) - Σ_d q[i, d] · k[j, d]]"),
        ((0,), False, "([Σ_d q[i, d] · k[j, d]]) - (Σ_d q[i, d] · k[j, d])"),
        ((1, 0, 1), False, "(Σ_d q[i, d] · k[j, d]) - (Σ_d q[i, d] · [k[j, d]])"),
        ((1,), True, "([Σ_d q[i, d] · k[j, d]]) - ([Σ_d q[i, d] · k[j, d]])"),
    ],
)
def test_show_marks_the_place_or_every_equal_one(position, everywhere, text):
    total = sum_over(D, q * k)
    shown = show_marked(total - total, position, ("[", "]"), everywhere)
    assert shown.replace("(", "").replace(")", "") == text.replace("(", "").replace(")", "")
    assert shown.replace("[Σ", "Σ").count("Σ") == 2


def test_a_term_too_long_for_a_line_is_not_marked():
    long = q
    for _ in range(12):
        long = long + long
    assert show_marked(long, (0,), ("[", "]")) == ""


def test_the_order_of_numbers_of_float32():
    """It rises with the number, zeros are one, NaN is the last, and neighbours have neighbouring places."""
    bits = np.random.default_rng(0).integers(-(2**31), 2**31, 4000).astype(np.int32)
    numbers = np.sort(bits.view(np.float32)[np.isfinite(bits.view(np.float32))])
    numbers = np.concatenate([[-np.inf], numbers, [np.inf]]).astype(np.float32)
    places = order_of(numbers)
    assert (np.diff(places)[np.diff(numbers) > 0] > 0).all() and order_of(-0.0) == order_of(0.0) == 0
    assert (order_of([np.nan, -np.nan]) == LAST_PLACE).all() and places[-1] < LAST_PLACE and places[0] > -LAST_PLACE - 1
    assert (order_of(np.nextafter(numbers[1:-1], np.float32(np.inf))) - places[1:-1] <= 1).all()


@pytest.mark.parametrize(("offset", "truth"), [(100, False), (-8, False), (-7, None), (0, None)])
def test_an_equality_beyond_the_bounds_of_a_place_is_false(offset, truth):
    found = compare("eq", iota(Dim("j", 8)) + const(offset), const(0))
    assert found is const(truth) if truth is not None else found.op == "eq"
