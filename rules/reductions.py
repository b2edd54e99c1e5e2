"""Laws of sums and maxima.

A factor or an addend that does not depend on the reduced dim moves out of the reduction, and back into it.
"""

from ..egraph import constant, float_dtype, independent, not_constant, positive, rule
from ..egraph.terms.ops import cast, exp, max_over, reduce, sum_over


@rule(when=lambda s, c: (constant(c), not_constant(s)))
def constant_out_of_sum(s: "j", c: "constant"):
    """Σ_j (s · c) = (Σ_j s) · c for a literal c"""
    return sum_over("j", s * c), sum_over("j", s) * c


@rule(when=lambda c: independent(c, of="j"), both=True)
def factor_out_of_sum(s: "j", c):
    """Σ_j (s · c) = (Σ_j s) · c when c does not depend on j"""
    return sum_over("j", s * c), sum_over("j", s) * c


@rule(when=lambda c: independent(c, of="j"), exact="nothing overflows before it is divided")
def divisor_out_of_sum(s: "j", c):
    """Σ_j (s / c) = (Σ_j s) / c when c does not depend on j"""
    return sum_over("j", s / c), sum_over("j", s) / c


@rule
def sum_of_sum(s: "j", t: "j"):
    """Σ_j (s + t) = Σ_j s + Σ_j t"""
    return sum_over("j", s + t), sum_over("j", s) + sum_over("j", t)


@rule(exact="masked values are finite")
def weighted_sum_of_sum(s: "j", t: "j", w: "j"):
    """Σ_j (s + t) · w = Σ_j s · w + Σ_j t · w"""
    return sum_over("j", (s + t) * w), sum_over("j", s * w) + sum_over("j", t * w)


@rule(exact="masked values are finite")
def weighted_sum_of_difference(s: "j", t: "j", w: "j"):
    """Σ_j (s - t) · w = Σ_j s · w - Σ_j t · w"""
    return sum_over("j", (s - t) * w), sum_over("j", s * w) - sum_over("j", t * w)


@rule(when=lambda c: independent(c, of="j"), exact="masked values are finite")
def weighted_sum_of_quotient_plus(s: "j", t: "j", w: "j", c):
    """Σ_j (s / c + t) · w = Σ_j (s / c) · w + Σ_j t · w when c does not depend on j"""
    return sum_over("j", (s / c + t) * w), sum_over("j", (s / c) * w) + sum_over("j", t * w)


@rule(when=lambda c: independent(c, of="j"), exact="masked values are finite")
def weighted_sum_of_quotient_minus(s: "j", t: "j", w: "j", c):
    """Σ_j (s / c - t) · w = Σ_j (s / c) · w - Σ_j t · w when c does not depend on j"""
    return sum_over("j", (s / c - t) * w), sum_over("j", (s / c) * w) - sum_over("j", t * w)


@rule(when=lambda c: independent(c, of="j"), exact="masked values are finite")
def twice_weighted_sum_of_quotient_plus(s: "j", t: "j", v: "j", w: "j", c):
    """Σ_j ((s / c + t) · v) · w = Σ_j (s / c) · (v · w) + Σ_j t · (v · w) when c does not depend on j"""
    parts = sum_over("j", (s / c) * (v * w)), sum_over("j", t * (v * w))
    return sum_over("j", ((s / c + t) * v) * w), parts[0] + parts[1]


@rule(when=lambda c: independent(c, of="j"), exact="masked values are finite")
def twice_weighted_sum_of_quotient_minus(s: "j", t: "j", v: "j", w: "j", c):
    """Σ_j ((s / c - t) · v) · w = Σ_j (s / c) · (v · w) - Σ_j t · (v · w) when c does not depend on j"""
    parts = sum_over("j", (s / c) * (v * w)), sum_over("j", t * (v * w))
    return sum_over("j", ((s / c - t) * v) * w), parts[0] - parts[1]


# Only of exponentials: as in the entropy of a softmax, whose logarithms have the shifts that the loop has yet to find.
@rule(when=lambda c: independent(c, of="j"), exact="masked values are finite")
def shift_out_of_weighted_sum(s: "j", t: "j", c):
    """Σ_j exp(s) · (t - c) = Σ_j exp(s) · t - (Σ_j exp(s)) · c when c does not depend on j"""
    return sum_over("j", exp(s) * (t - c)), sum_over("j", exp(s) * t) - sum_over("j", exp(s)) * c


@rule
def exchange_reductions(s: "j k", m: "monoid"):
    """⊕_j ⊕_k s = ⊕_k ⊕_j s for every commutative monoid ⊕"""
    return reduce(m, "j", reduce(m, "k", s)), reduce(m, "k", reduce(m, "j", s))


@rule(when=lambda c: positive(c), both=True, exact="bitwise")
def factor_out_of_max(s: "j", c: "constant"):
    """max_j (s · c) = (max_j s) · c for c > 0: rounding is monotone"""
    return max_over("j", s * c), max_over("j", s) * c


@rule(when=lambda c: independent(c, of="j"), exact="bitwise")
def shift_out_of_max(s: "j", c):
    """max_j (s + c) = (max_j s) + c when c does not depend on j"""
    return max_over("j", s + c), max_over("j", s) + c


@rule(when=lambda c: independent(c, of="j"), exact="scores are finite")
def difference_out_of_max(s: "j", c):
    """max_j (s - c) = (max_j s) - c when c does not depend on j"""
    return max_over("j", s - c), max_over("j", s) - c


@rule(when=lambda a: float_dtype(a), exact="bitwise")
def cast_of_max(s: "j", a: "dtype"):
    """a(max_j s) = max_j a(s): rounding is monotone"""
    return cast(max_over("j", s), a), max_over("j", cast(s, a))


NORMAL = (constant_out_of_sum, cast_of_max)
ALGEBRA = (
    factor_out_of_sum,
    divisor_out_of_sum,
    sum_of_sum,
    weighted_sum_of_quotient_plus,
    weighted_sum_of_quotient_minus,
    shift_out_of_weighted_sum,
    exchange_reductions,
    factor_out_of_max,
    shift_out_of_max,
    difference_out_of_max,
)
# Only of gradients in half precision (onepass/training/searched_forms.py): multiplied out, what is left of a difference
# may be less than what float32 loses of its parts.
WEIGHTED = (weighted_sum_of_sum, weighted_sum_of_difference)
