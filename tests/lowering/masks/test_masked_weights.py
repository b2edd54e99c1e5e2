"""Weights of scores with a finite mask, in terms that read the logarithm of their sum: choices of 0, or unchanged."""

from math import inf

import numpy as np
import pytest

from onepass.egraph.terms.evaluate import evaluate
from onepass.egraph.terms.ops import (
    cast,
    const,
    exp,
    iota,
    le,
    load,
    logical_and,
    lt,
    make,
    max_over,
    rescaled_sum,
    scale,
    sum_over,
    where,
)
from onepass.egraph.terms.term import Dim, Tensor
from onepass.egraph.terms.traversal import rename_dims, subterms
from onepass.lowering.masks.masked_weights import with_hidden_weights_left_out, with_masked_weights_as_zeros

I, J, D, E = Dim("i", 8), Dim("j", 8), Dim("d", 4), Dim("e", 4)
QUERIES, KEYS, VALUES = (Tensor(name, "float32", (8, 4)) for name in "qkv")
SHIFT, LOG, OTHER = (Tensor(name, "float32", (8,)) for name in ("shift", "log", "other"))
SCORE = sum_over(D, load(QUERIES, iota(I), iota(D)) * load(KEYS, iota(J), iota(D)))
VALUE = load(VALUES, iota(J), iota(E))
CAUSAL = le(iota(J), iota(I))
LOW = const(-1e9)


def of_rows(tensor):
    return load(tensor, iota(I))


def weight(scores, *subtracted):
    for one in subtracted:
        scores = scores - of_rows(one)
    return exp(scores)


def by_choice(kept=CAUSAL):
    return where(kept, SCORE, LOW)


def by_sum(kept=CAUSAL):
    return SCORE + where(kept, const(0.0), LOW)


@pytest.mark.parametrize("masked", [by_choice, by_sum])
def test_a_sum_of_masked_weights_leaves_out_what_is_masked(masked):
    found = with_masked_weights_as_zeros(sum_over(J, weight(masked(), SHIFT, LOG) * VALUE), {SHIFT, LOG})
    assert found is sum_over(J, where(CAUSAL, weight(SCORE, SHIFT, LOG) * VALUE, const(0.0)))


def test_choices_are_moved_out_of_products_casts_and_quotients():
    one = cast(const(2.0) * (weight(by_sum(), LOG) * VALUE / of_rows(OTHER)), "bfloat16")
    found = with_masked_weights_as_zeros(one, {LOG})
    kept, value, zero = found.args
    assert found.op == "where" and kept is CAUSAL and zero is const(0.0)
    assert value is cast(const(2.0) * (weight(SCORE, LOG) * VALUE / of_rows(OTHER)), "bfloat16")


def test_a_divisor_stays():
    found = with_masked_weights_as_zeros(VALUE / weight(by_sum(), LOG), {LOG})
    assert found.op == "div" and found.args[1].op == "where"


@pytest.mark.parametrize(
    "term",
    [
        weight(by_sum(le(iota(I), iota(J) - const(1))), LOG),  # the last row keeps nothing
        weight(by_sum(le(const(3), load(Tensor("n", "int64", (8,)), iota(J)))), LOG),  # data may keep nothing
        weight(by_sum(), OTHER),  # no logarithm of a sum
        exp(by_sum()),
        weight(SCORE, LOG),
        weight(load(Tensor("s", "float32", (8, 8)), iota(I), iota(J)) + where(CAUSAL, const(0.0), LOW), LOG),
        weight(SCORE + where(CAUSAL, const(0.0), const(-5.0)), LOG),  # no mask
    ],
    ids=[
        "a row that keeps nothing",
        "data",
        "not saved",
        "no logarithm",
        "no mask",
        "scores that may be masked",
        "a small number",
    ],
)
def test_others_stay_as_they_are(term):
    product = sum_over(J, term * VALUE)
    assert with_masked_weights_as_zeros(product, {SHIFT, LOG}) is product


def test_rows_and_columns_may_change_places():
    """The gradient of values is a sum over rows; each row still has to keep something along the columns."""
    found = with_masked_weights_as_zeros(sum_over(I, weight(by_sum(), LOG)), {LOG})
    assert found is sum_over(I, where(CAUSAL, weight(SCORE, LOG), const(0.0)))


def test_a_window_is_a_mask_of_two_parts():
    window = logical_and(CAUSAL, le(iota(I), iota(J) + const(3)))
    found = with_masked_weights_as_zeros(weight(by_sum(window), LOG), {LOG})
    assert found.op == "where" and {n for n in subterms(found.args[0])} == {n for n in subterms(window)}
    assert make("exp", found.args[1].args) is weight(SCORE, LOG)


HIDDEN = lt(iota(J) + const(2), iota(I))  # rows 0 to 2 keep nothing
MASKED = where(HIDDEN, SCORE, const(-inf))
OTHERS = rename_dims(MASKED, {J: Dim("k", 8)})
LARGEST = [
    max_over(J, MASKED), max_over(Dim("k", 8), OTHERS), scale(rescaled_sum(J, MASKED, const(1.0))),
    make("maximum", (load(LOG, iota(I)), max_over(J, MASKED))),
]  # fmt: skip


@pytest.mark.parametrize("shift", LARGEST, ids=["the same dim", "another dim", "a state", "with a sink"])
@pytest.mark.parametrize("value", [lambda w: w, lambda w: w * VALUE, lambda w: VALUE * (w / load(OTHER, iota(I)))])
def test_hidden_weights_are_left_out_of_a_sum(value, shift):
    """The result is the same to the bit of NaN: of rows that keep nothing, and of infinite scores and sinks."""
    random, total = np.random.default_rng(0), sum_over(J, value(exp(MASKED - shift)))
    found = with_hidden_weights_left_out(total)
    order = (I, E) if E in total.dims else (I,)
    assert any(n.op == "where" and n.args[0] is HIDDEN for n in subterms(found))
    assert not any(n.op == "exp" and MASKED in n.args[0].args for n in subterms(found))
    for extreme in (0.0, inf, -inf):
        known = {t.name: random.standard_normal(t.shape) for t in (QUERIES, KEYS, VALUES, LOG, OTHER)}
        known["q"][5], known["log"][:2] = known["q"][5] + extreme, known["log"][:2] + extreme
        with np.errstate(all="ignore"):
            was, now = (evaluate(term, known, order) for term in (total, found))
        np.testing.assert_allclose(now, was, rtol=1e-12)


@pytest.mark.parametrize("shift", [load(LOG, iota(I)), max_over(J, SCORE), max_over(J, MASKED) + const(1.0)])
def test_weights_whose_shift_may_be_less_stay(shift):
    total = sum_over(J, exp(MASKED - shift) * VALUE)
    assert with_hidden_weights_left_out(total) is total
