"""The testers themselves: wrong laws and different functions are refuted, with small counterexamples."""

import sys
from math import inf

import numpy as np
import pytest
import torch
from hypothesis import strategies as st

import onepass
from onepass.egraph import constant, independent, positive, rule
from onepass.egraph.rewrite.pattern import either
from onepass.egraph.terms.ops import cast, const, exp, le, lt, mantissa, max_over, rescaled_sum, sum_over, tanh, where
from onepass.errors import InputError
from onepass.testing import Refuted, assert_equivalent, assert_rule, mutants


# A zoo of plausible wrong laws: the only place besides rules/ where such records belong.
@rule(when=lambda c: constant(c))
def factor_out_of_max_unguarded(s: "j", c: "constant"):
    """max_j (s · c) = (max_j s) · c"""
    return max_over("j", s * c), max_over("j", s) * c


@rule
def factor_out_of_sum_unguarded(s: "j", c):
    """Σ_j (s · c) = (Σ_j s) · c"""
    return sum_over("j", s * c), sum_over("j", s) * c


@rule(when=lambda c: independent(c, of="j"))
def addend_out_of_sum(s: "j", c):
    """Σ_j (s + c) = (Σ_j s) + c"""
    return sum_over("j", s + c), sum_over("j", s) + c


@rule
def exponential_of_product(a, b):
    """exp(a · b) = exp(a) · exp(b)"""
    return exp(a * b), exp(a) * exp(b)


@rule
def quotient_cancels(a, b):
    """a · b / b = a, also for b = 0"""
    return a * b / b * 1.0, a


@rule(both=True)
def one_is_any_quotient(a):
    """a / a = (a · a) / (a · a) + 0 · a, from right to left as well"""
    return a * 1.0, a / a * a


@rule(exact="bitwise")
def reassociation_called_bitwise(a, b, c):
    """(a + b) + c = a + (b + c)"""
    return (a + b) + c, a + (b + c)


@rule
def unshifted_sum_is_rescaled(s: "j"):
    """Σ_j exp(s) = mantissa(⊕_j ⟨s, 1⟩)"""
    return sum_over("j", exp(s)), mantissa(rescaled_sum("j", s, const(1.0)))


@rule
def fill_forgotten(p: "predicate", s: "j"):
    """Σ_j exp(where(p, s, -∞)) = Σ_j exp(s)"""
    return sum_over("j", exp(where(p, s, const(-inf)))), sum_over("j", exp(s))


@rule
def cast_forgotten(x, a: "dtype"):
    """a(x) = x"""
    return cast(x, a), x


ZOO = [
    factor_out_of_max_unguarded,
    factor_out_of_sum_unguarded,
    addend_out_of_sum,
    exponential_of_product,
    one_is_any_quotient,
    reassociation_called_bitwise,
    unshifted_sum_is_rescaled,
    fill_forgotten,
    cast_forgotten,
]


@pytest.mark.sampled(1)
@pytest.mark.parametrize("law", ZOO, ids=lambda law: law.name)
def test_the_zoo_is_refuted(law):
    with pytest.raises(Refuted, match=f"rule {law.name}: .* is refuted"):
        assert_rule(law, examples=4000)  # drawn at random: 400 were once too few


@rule
def threshold_itself(x):
    """where(x < 2.7, x, 0) = where(x <= 2.7, x, 0)"""
    return where(lt(x, const(2.7)), x, 0.0), where(le(x, const(2.7)), x, 0.0)


@rule
def whole_threshold_itself(n: "index"):
    """n < 300 = n <= 300 for integers"""
    return lt(n, const(300)), le(n, const(300))


@rule
def products_beyond_the_range(x):
    """x · 10²⁰⁰ · 10²⁰⁰ / 10²⁰⁰ = x · 10²⁰⁰, which float64 cannot compute from left to right"""
    return x * const(1e200) * const(1e200) / const(1e200), x * const(1e200)


@pytest.mark.parametrize("law", [threshold_itself, whole_threshold_itself], ids=str)
def test_a_rule_is_tried_at_its_own_constants(law):
    with pytest.raises(Refuted, match="float64, seed 0: the same call finds this again"):
        assert_rule(law)
    assert onepass.check(law).status == "refuted"


@rule
def unscaled(s: "j", w: "j"):
    """Σ_j exp(s) · w = exp(max_j s) · Σ_j exp(s - max_j s) · w"""
    top = max_over("j", s)
    return sum_over("j", exp(s) * w), exp(top) * sum_over("j", exp(s - top) * w)


@pytest.mark.parametrize("seed", range(6))
def test_absent_scores_are_tried_whatever_the_seed(seed):
    """With seed 1, 100 draws found none: only a row in which every score is -∞ refutes it."""
    with pytest.raises(Refuted):
        assert_rule(unscaled, 20, seed=seed)


def test_a_law_of_real_numbers_is_not_refuted_by_the_range_of_float64():
    assert_rule(products_beyond_the_range)
    assert onepass.check(products_beyond_the_range).status == "proved"


def test_a_law_may_define_more_than_its_left_side():
    assert_rule(quotient_cancels)


def test_a_counterexample_is_minimal_and_says_everything():
    with pytest.raises(Refuted) as raised:
        assert_rule(factor_out_of_max_unguarded, examples=300)
    message = str(raised.value)
    assert "law: max_j (s · c) = (max_j s) · c" in message
    assert "dim j = 2" in message
    assert "c = -1" in message
    assert "left side:" in message and "right side:" in message


def test_a_rule_that_never_fires_is_refuted():
    @rule(when=lambda c: (positive(c), positive(-c)))
    def impossible(a, c: "constant"):
        """a · c = a for c > 0 and -c > 0"""
        return a * c, a

    with pytest.raises(Refuted, match="never fired"):
        assert_rule(impossible)


def test_mutants_are_named_after_what_changed():
    @rule(when=lambda c: independent(c, of="j"))
    def divisor_leaves(s: "j", c):
        """Σ_j (s / c) = (Σ_j s) / c"""
        return sum_over("j", s / c), sum_over("j", s) / c

    names = {mutant.name for mutant in mutants(divisor_leaves)}
    assert "divisor_leaves with no guard «c does not depend on j»" in names
    assert "divisor_leaves with the operands of div swapped on the right" in names
    assert "divisor_leaves with max for sum on the left" in names
    assert all(mutant.left is not mutant.right for mutant in mutants(divisor_leaves))


def test_hypothesis_is_asked_for_by_name(monkeypatch):
    monkeypatch.setitem(sys.modules, "hypothesis", None)
    with pytest.raises(ImportError, match=r"'onepass\[test\]', in a clone pip install -e '\.\[test\]'"):
        assert_rule(factor_out_of_max_unguarded)


# Functions -----------------------------------------------------------------------------------------------------------


def written_out(q, k, v):
    s = q @ k.mT
    p = torch.exp(s - s.amax(-1, keepdim=True))
    return p / p.sum(-1, keepdim=True) @ v


def deferred(q, k, v):
    s = q @ k.mT
    p = torch.exp(s - s.amax(-1, keepdim=True))
    return p @ v / p.sum(-1, keepdim=True)


def along_rows(q, k, v):
    return torch.softmax(q @ k.mT, -2) @ v


NAMED = ["i d", "j d", "j e"]


@pytest.mark.slow
def test_equivalent_functions():
    assert_equivalent(written_out, deferred, NAMED)
    assert_equivalent(written_out, deferred, [(1, 2), (3, 2), (3, 1)])
    assert_equivalent(written_out, deferred, [torch.randn(4, 2), torch.randn(5, 2), torch.randn(5, 3)])


@pytest.mark.parametrize("inputs", [NAMED, [(2, 2), (3, 2), (3, 1)]], ids=["dims", "shapes"])
def test_different_functions_are_refuted(inputs):
    with pytest.raises(Refuted, match="written_out and along_rows differ: output 0 is") as raised:
        assert_equivalent(written_out, along_rows, inputs)
    assert "argument 2: shape" in str(raised.value)


def test_a_counterexample_of_functions_has_small_shapes():
    with pytest.raises(Refuted) as raised:
        assert_equivalent(lambda x: x.sum(0), lambda x: x.amax(0), ["n m"])
    assert "shape (2, 1)" in str(raised.value)


def test_tensors_are_used_as_they_are():
    index = torch.tensor([2, 0])
    assert_equivalent(lambda x, n: x[n], lambda x, n: x.index_select(0, n), [(3, 2), index])
    with pytest.raises(Refuted):
        assert_equivalent(torch.abs, torch.relu, [torch.tensor([-1.0])])


def test_a_strategy_of_arguments():
    numbers = st.floats(-3, 3).map(torch.tensor)
    assert_equivalent(lambda x: (x, x + x), lambda x: (x, 2 * x), numbers)
    with pytest.raises(Refuted, match="output 1"):
        assert_equivalent(lambda x: (x, x + x), lambda x: (x, x * x), numbers)


@pytest.mark.parametrize(
    "g, why",
    [
        (lambda x: (x, x), "1 outputs against 2"),
        (lambda x: x[None], "shape"),
        (lambda x: x / x * x, "differ"),  # NaN at zero
    ],
)
def test_outputs_differ_in_number_shape_and_definedness(g, why):
    with pytest.raises(Refuted, match=why):
        assert_equivalent(lambda x: x, g, ["n"])


def test_masked_inputs_are_drawn_unless_only_finite_ones_are_asked_for():
    def centred(x):
        return x - x.mean()

    def twice_centred(x):
        return centred(x) - torch.nan_to_num(x).mean() * 0 if x.isfinite().all() else x

    assert_equivalent(centred, twice_centred, ["n"], finite=True)
    with pytest.raises(Refuted, match="-inf"):
        assert_equivalent(centred, twice_centred, ["n"], examples=400)


def test_a_pattern_rule_is_tested_reading_by_reading():
    @rule
    def odd(x):
        """f(-x) = -tanh(x) for two f"""
        return either(tanh(-x), exp(-x)), -tanh(x)

    with pytest.raises(Refuted, match=r"exp\(-x\)"):
        assert_rule(odd)


@pytest.mark.parametrize("given", [written_out, "rule", None], ids=["function", "text", "None"])
def test_what_is_no_rule_is_said(given):
    with pytest.raises(TypeError, match="cannot be tested as a rule: decorate"):
        assert_rule(given)


def test_functions_may_write_into_their_arguments():
    assert_equivalent(lambda x: x.add_(1), lambda x: x + 1, ["n"])


def test_testing_is_public():
    assert all(getattr(onepass.testing, name) is not None for name in onepass.testing.__all__)
    assert np.isfinite(onepass.testing.RTOL)


def test_large_results_are_told_by_the_place_where_they_differ_most():
    given, other = torch.zeros(10, 20), torch.zeros(10, 20)
    other[3, 4], other[5, 6] = 1.0, -7.0
    with pytest.raises(AssertionError) as raised:
        assert_equivalent(lambda x: x, lambda x: other, inputs=(given,))
    said = str(raised.value)
    assert "output 0 of shape (10, 20) differs most at (5, 6): 0.0 against -7.0" in said
    assert "argument 0: shape (10, 20), 0.0 to 0.0" in said and len(said) < 300
    other[0, 0] = float("nan")
    with pytest.raises(AssertionError, match=r"most at \(0, 0\): 0.0 against nan"):
        assert_equivalent(lambda x: x, lambda x: other, inputs=(given,))


def attend(q, k, v):
    return torch.softmax(q @ k.mT, -1) @ v


@pytest.mark.parametrize(
    "inputs, said",
    [
        ("b i d", r"write \['b i d', \.\.\.\], not 'b i d'"),
        (["b i d"], r"here 1 entry; of attend\(q, k, v\): missing a required argument: 'k'"),
        ({"q": "i d", "k": "j d", "v": "j d"}, r"in their order: a list, not \{'q'"),
        (5, "in their order: a list, not 5"),
        (["b i d"] * 4, r"here 4 entries; of attend\(q, k, v\): too many positional arguments"),
    ],
)
def test_inputs_are_one_for_each_argument(inputs, said):
    with pytest.raises(InputError, match=said):
        assert_equivalent(attend, attend, inputs)


@pytest.mark.parametrize(
    "inputs, said",
    [
        (["b,i,d"] * 3, r"inputs\[0\] is 'b,i,d', in which 'b,i,d' is no name of a dim and no size"),
        (["i d", "-1 d", "j d"], r"inputs\[1\] is '-1 d', in which '-1' is no name"),
        ([(2, 3), (4, 3.0), (4, 3)], r"inputs\[1\] is \(4, 3\.0\), in which 3\.0 is no size: an entry is dims as text"),
        ([(2, 3), (4, 3), None], r"inputs\[2\] is None, of type NoneType"),
    ],
)
def test_an_entry_is_a_text_a_shape_or_a_tensor(inputs, said):
    with pytest.raises(InputError, match=said):
        assert_equivalent(attend, attend, inputs)


@pytest.mark.parametrize("inputs", [["i d", "j e", "j d"], ["b h i d", "i d e", "j d"], ["i 3", "j 4", "j 4"]])
def test_texts_of_shapes_that_do_not_fit_are_named(inputs):
    """Two functions that both raise were torch's error alone: nothing said which shapes the texts gave."""
    texts = ", ".join(map(repr, inputs))
    with pytest.raises(InputError, match=rf"both raise at arguments of shape \(.+\) for inputs {texts}: RuntimeError"):
        assert_equivalent(attend, attend, inputs, examples=5)


def test_what_is_compared_are_functions():
    with pytest.raises(InputError, match="compares two functions, and None is none"):
        assert_equivalent(attend, None, ["i d", "j d", "j d"])


@pytest.mark.parametrize(
    "given, said",
    [
        ({"examples": 0}, "a whole number above 0, not 0"),
        ({"examples": -1}, "not -1"),
        ({"examples": "20"}, "not '20'"),
        ({"examples": 2.5}, "not 2.5"),
        ({"examples": True}, "not True"),
        ({"seed": "a"}, "seed is a whole number"),
        ({"largest": -1}, "largest is a number that is not negative"),
        ({"largest": float("nan")}, "largest is"),
        ({"largest": "9"}, "largest is"),
        ({"rtol": -1}, "rtol is"),
        ({"atol": "no"}, "atol is"),
    ],
)
def test_numbers_that_cannot_be_meant_are_refused(given, said):
    with pytest.raises(InputError, match=said):
        assert_equivalent(lambda x: x, lambda x: x, ["i"], **given)
    if given.keys() <= {"examples", "seed"}:
        with pytest.raises(InputError, match=said):
            assert_rule(None, **given)
