"""Bounds on the finite numbers of a term: they hold for moderate inputs, and see every fill that is not moderate."""

import math

import pytest

from onepass.egraph import Dim
from onepass.egraph.terms.ops import cast, const, exp, iota, load, make, sum_over, where
from onepass.egraph.terms.term import Tensor
from onepass.lowering.analysis.softmax_scaling import LOG2_E, MAX_MODERATE_SCORE, exponent_scaling
from onepass.lowering.analysis.value_bounds import magnitude, positive
from onepass.lowering.codegen.dialect import TRITON
from onepass.lowering.codegen.ops import exponent_text, scale_text

I, J, D = Dim("i", 64), Dim("j", 128), Dim("d", 16)
Q, K = Tensor("q", "bfloat16", (64, 16)), Tensor("k", "bfloat16", (128, 16))
WIDE_Q = cast(load(Q, iota(I), iota(D)), "float32")
SCORE = sum_over("d", WIDE_Q * cast(load(K, iota(J), iota(D)), "float32"))
KEEP = load(Tensor("keep", "bool", (64, 128)), iota(I), iota(J))
HALF, WIDE = (load(Tensor("b", d, (128,)), iota(J)) for d in ("float16", "float32"))
LEAST = const(-3.4028234663852886e38)
SLOPE = exp(-cast(iota(I), "float32"))

MODEST = {
    "a product": SCORE * const(0.125),
    "absent": where(KEEP, SCORE, const(-math.inf)),
    "distances": SCORE + SLOPE * cast(iota(J) - iota(I), "float32"),
    "a small fill": where(KEEP, SCORE, const(-1e4)),
    "a bias of halves": SCORE + cast(HALF, "float32"),
    "a factor": SCORE * WIDE,
    "a cap": const(50.0) * make("tanh", (SCORE + WIDE,)),
    "a norm": SCORE / make("sqrt", (sum_over("d", WIDE_Q * WIDE_Q),)),
    "a clamp": make("minimum", (make("maximum", (SCORE + WIDE, const(-4.0))), const(4.0))),
}
LARGE = {
    "a fill": where(KEEP, SCORE, LEAST),
    "a fill under a sum": sum_over("d", where(KEEP, SCORE, LEAST)),
    "a multiplied fill": SCORE + (const(1.0) - cast(KEEP, "float32")) * LEAST,
    "a mask that is loaded": SCORE + WIDE,
    "a scaled mask": (SCORE + WIDE) * const(0.5),
    "a square": SCORE * SCORE,
    "a distance": -sum_over("d", WIDE_Q * WIDE_Q),
    "a billion": where(KEEP, SCORE, const(-1e9)),
}


@pytest.mark.parametrize("name", [*MODEST, *LARGE])
def test_what_may_be_large_is_seen(name):
    term = {**MODEST, **LARGE}[name]
    assert (magnitude(term) > MAX_MODERATE_SCORE) == (name in LARGE)
    how = exponent_scaling(term)
    assert how.apart == (name in LARGE)
    assert how.raw is term or not how.apart


def test_both_forms_say_the_same_exponent():
    score, shift = 3.0, 5.0
    for how, unit in ((exponent_scaling(SCORE * const(0.125)), LOG2_E), (exponent_scaling(SCORE + WIDE), 1.0)):
        text = exponent_text(how, "score", "shift", TRITON)
        value = eval(text, {"score": score, "shift": shift * unit})
        assert value == pytest.approx((score * how.natural - shift) * LOG2_E)
        top = eval(scale_text(how, "score"), {"score": score})
        assert top * LOG2_E / unit == pytest.approx(score * how.natural * LOG2_E)


NUMBER = cast(iota(I), "float32")
ABOVE = {
    "a rate by heads": const(1.0) - make("exp2", (const(-5.0) - NUMBER,)),
    "a number": const(0.9),
    "a sum": NUMBER + const(0.5),
}
NOT_SURELY = {
    "what is read": cast(load(Q, iota(I), const(0)), "float32") + const(2.0),
    "a coordinate": NUMBER,
    "what may vanish": make("pow", (const(0.5), cast(iota(J), "float32"))),
    "along an unknown dim": const(1e6) - cast(iota(Dim("n", "n")), "float32"),
}


@pytest.mark.parametrize("term", ABOVE.values(), ids=ABOVE)
def test_what_is_positive(term):
    assert positive(term)


@pytest.mark.parametrize("term", NOT_SURELY.values(), ids=NOT_SURELY)
def test_what_may_not_be(term):
    assert not positive(term)
