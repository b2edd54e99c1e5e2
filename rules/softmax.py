"""Laws of exponentials under a sum.

A shift of every exponent does not change a quotient of exponentials. Whether the quotient is finite depends on the
largest score of the row.
"""

from ..egraph import independent, rule
from ..egraph.terms.ops import const, exp, exp2, finite, log, max_over, maximum, sum_over


@rule(when=lambda c: independent(c, of="j"), exact="scores are finite")
def quotient_of_shifted_exponentials(s: "j", c):
    """exp(s - c) / Σ_j exp(s - c) = exp(s) / Σ_j exp(s) when c does not depend on j"""
    return exp(s - c) / sum_over("j", exp(s - c)), exp(s) / sum_over("j", exp(s))


@rule(exact="scores are finite")
def exponential_of_sum(a, b):
    """exp(a + b) = exp(a) · exp(b)"""
    return exp(a + b), exp(a) * exp(b)


# Only for exponents below a maximum: other powers of two, such as the slopes of ALiBi, would lose bits without a gain.
@rule
def power_of_two_below_maximum(s: "j"):
    """exp2(s - max_j s) = exp(t - max_j t) for t = s · log 2"""
    scaled = s * log(const(2.0))
    return exp2(s - max_over("j", s)), exp(scaled - max_over("j", scaled))


@rule
def power_of_two_below_larger(s: "j", c):
    """exp2(s - max(max_j s, c)) = exp(t - max(max_j t, c · log 2)) for t = s · log 2"""
    scaled = s * log(const(2.0))
    bound = maximum(max_over("j", scaled), c * log(const(2.0)))
    return exp2(s - maximum(max_over("j", s), c)), exp(scaled - bound)


@rule
def finite_quotient_of_exponential(s: "j", z):
    """finite(exp(s - max_j s) / z) = finite(max_j s) ∧ finite(1 / z)"""
    largest = max_over("j", s)
    return finite(exp(s - largest) / z), finite(largest) & finite(const(1.0) / z)


NORMAL = (power_of_two_below_maximum, power_of_two_below_larger, finite_quotient_of_exponential)
# Both hold over the reals but may overflow in floating point, so they are used only if a user gives them.
OPTIONAL = (quotient_of_shifted_exponentials, exponential_of_sum)
