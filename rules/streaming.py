"""Laws that make one reduction of two over one dim: the rescaled sum carries its own maximum.

⊕_j ⟨s, w⟩ folds pairs (m, a), which mean a · e^m, by (m, a) ⊕ (n, b) = (max, a·e^(m-max) + b·e^(n-max)). An element
with s = -∞ is absent. ⊕ is a monoid, so the rescaled sum can be tiled, streamed, split and merged.
"""

from math import inf

from ..egraph import independent, rule
from ..egraph.terms.ops import const, eq, exp, mantissa, max_over, rescaled_sum, scale, sum_over, where


@rule(exact="masked values are finite")
def rescale_weighted_sum(s: "j", w: "j"):
    """Σ_j exp(s - max_j s) · w = mantissa(⊕_j ⟨s, w⟩)"""
    return sum_over("j", exp(s - max_over("j", s)) * w), mantissa(rescaled_sum("j", s, w))


@rule
def rescale_sum(s: "j"):
    """Σ_j exp(s - max_j s) = mantissa(⊕_j ⟨s, 1⟩)"""
    return sum_over("j", exp(s - max_over("j", s))), mantissa(rescaled_sum("j", s, const(1.0)))


@rule(exact="bitwise")
def max_is_scale(s: "j"):
    """max_j s = scale(⊕_j ⟨s, 1⟩)"""
    return max_over("j", s), scale(rescaled_sum("j", s, const(1.0)))


@rule(when=lambda c: independent(c, of="j"), exact="scores are finite")
def rescale_shifted_weighted_sum(s: "j", w: "j", c):
    """Σ_j exp(s - c) · w = a · exp(m - c) for m, a = ⊕_j ⟨s, w⟩ (a = 0 if no s is present), c independent of j"""
    state = rescaled_sum("j", s, w)
    present = where(eq(scale(state), const(-inf)), const(0.0), mantissa(state))
    return sum_over("j", exp(s - c) * w), present * exp(scale(state) - c)


@rule(when=lambda c: independent(c, of="j"), exact="scores are finite")
def rescale_shifted_sum(s: "j", c):
    """Σ_j exp(s - c) = a · exp(m - c) for m, a = ⊕_j ⟨s, 1⟩ (a = 0 if no s is present), c independent of j"""
    state = rescaled_sum("j", s, const(1.0))
    present = where(eq(scale(state), const(-inf)), const(0.0), mantissa(state))
    return sum_over("j", exp(s - c)), present * exp(scale(state) - c)


# These two do not add the maximum to c: with a finite mask of -3e38, rounding would lose the logarithm of a sum in c.
@rule(when=lambda c: independent(c, of="j"), exact="scores are finite")
def rescale_weighted_sum_shifted_again(s: "j", w: "j", c):
    """Σ_j exp((s - max_j s) - c) · w = mantissa(⊕_j ⟨s, w⟩) · exp(-c) when c does not depend on j"""
    return sum_over("j", exp((s - max_over("j", s)) - c) * w), mantissa(rescaled_sum("j", s, w)) * exp(-c)


@rule(when=lambda c: independent(c, of="j"), exact="scores are finite")
def rescale_sum_shifted_again(s: "j", c):
    """Σ_j exp((s - max_j s) - c) = mantissa(⊕_j ⟨s, 1⟩) · exp(-c) when c does not depend on j"""
    return sum_over("j", exp((s - max_over("j", s)) - c)), mantissa(rescaled_sum("j", s, const(1.0))) * exp(-c)


STREAMING = (
    rescale_weighted_sum,
    rescale_sum,
    max_is_scale,
    rescale_shifted_weighted_sum,
    rescale_shifted_sum,
    rescale_weighted_sum_shifted_again,
    rescale_sum_shifted_again,
)
