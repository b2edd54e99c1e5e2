"""Cascades of two reductions over one dim that are one reduction: the rescaled sum carries its own maximum.

⊕_j ⟨s, w⟩ folds pairs (m, a) meaning a · e^m by (m, a) ⊕ (n, b) = (max, a·e^(m-max) + b·e^(n-max)); an element with
s = -∞ is absent. It is a monoid, so it tiles, streams, splits and merges like any other reduction.
"""

from ..egraph import rule
from ..egraph.ops import const, exp, mantissa, max_over, rescaled_sum, scale, sum_over


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


STREAMING = (rescale_weighted_sum, rescale_sum, max_is_scale)
