"""Laws of quotients: divisors leave products, sums and choices, and those that are equal meet or cancel.

They are used from left to right. A law holds where its left side is defined.
"""

from ..egraph import rule
from ..egraph.terms.ops import const, exp, where

ZERO = const(0.0)


@rule
def quotients_add(a, b, c):
    """a / c + b / c = (a + b) / c"""
    return a / c + b / c, (a + b) / c


@rule(exact="scores are finite")
def exponential_divides_addends(a, b, c):
    """(a + b) / exp(c) = a / exp(c) + b / exp(c)"""
    return (a + b) / exp(c), a / exp(c) + b / exp(c)


@rule
def quotients_divide(a, b, c):
    """(a / c) / (b / c) = a / b"""
    return (a / c) / (b / c), a / b


@rule
def times_quotient(a, b, c):
    """b · (a / c) = (b · a) / c"""
    return b * (a / c), (b * a) / c


@rule(exact="scores are finite")
def exponential_divisor_out_of_choice(p: "predicate", s, c):
    """where(p, s / exp(c), 0) = where(p, s, 0) / exp(c)"""
    return where(p, s / exp(c), ZERO), where(p, s, ZERO) / exp(c)


@rule
def zero_over(c):
    """0 / c = 0"""
    return ZERO / c, ZERO


@rule
def negation_is_product(a):
    """-a = a · (-1)"""
    return -a, a * -1.0


@rule(exact="bitwise")
def sum_is_difference(a, b):
    """a + b · (-1) = a - b"""
    return a + b * -1.0, a - b


@rule(exact="bitwise")
def sum_is_difference_commuted(a, b):
    """b · (-1) + a = a - b"""
    return b * -1.0 + a, a - b


@rule(exact="scores are finite")
def sum_with_negative(a):
    """a + a · (-1) = 0"""
    return a + a * -1.0, ZERO


@rule(exact="scores are finite")
def difference_plus(a, c):
    """(a - c) + c = a"""
    return (a - c) + c, a


@rule(exact="scores are finite")
def plus_difference(a, c):
    """c + (a - c) = a"""
    return c + (a - c), a


@rule(exact="masked values are finite")
def zero_times(c):
    """0 · c = 0"""
    return ZERO * c, ZERO


@rule(exact="a zero has no sign")
def zero_plus(x):
    """0 + x = x"""
    return ZERO + x, x


@rule(exact="bitwise")
def choices_add(p: "predicate", s, t):
    """where(p, s, 0) + where(p, t, 0) = where(p, s + t, 0)"""
    return where(p, s, ZERO) + where(p, t, ZERO), where(p, s + t, ZERO)


@rule(exact="bitwise")
def narrower_choice_adds(p: "predicate", q: "predicate", s, t):
    """where(p, s, 0) + where(p ∧ q, t, 0) = where(p, s + where(q, t, 0), 0)"""
    return where(p, s, ZERO) + where(p & q, t, ZERO), where(p, s + where(q, t, ZERO), ZERO)


@rule(exact="bitwise")
def choice_adds_to_narrower(p: "predicate", q: "predicate", s, t):
    """where(p ∧ q, s, 0) + where(p, t, 0) = where(p, where(q, s, 0) + t, 0)"""
    return where(p & q, s, ZERO) + where(p, t, ZERO), where(p, where(q, s, ZERO) + t, ZERO)


DIVISORS_OUT = (quotients_divide, times_quotient, exponential_divisor_out_of_choice)
SUMS = (
    choices_add,
    narrower_choice_adds,
    choice_adds_to_narrower,
    negation_is_product,
    sum_with_negative,
    zero_over,
    zero_times,
    zero_plus,
)
DIFFERENCES = (sum_is_difference, sum_is_difference_commuted)
CANCELLED = (difference_plus, plus_difference)
