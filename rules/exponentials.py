"""Laws of exponentials in products: they leave a shift behind, or move right, meet, and take a divisor's exponent.

TAKEN_APART splits every exponent at its shift, so that shifts cancel. TOGETHER is the way back: one exponential to a
product, with one exponent. OUT_OF_SUMS takes an exponential that all addends share out of their sum. All are used from
left to right.
"""

from math import inf

from ..egraph import constant, independent, not_constant, not_share, rule
from ..egraph.terms.ops import const, eq, exp, log, make, max_over, maximum, sum_over, where

ZERO, LOWEST, LARGEST = const(0.0), const(-inf), const(inf)
FINITE = "scores are finite"
DIVIDED = "nothing overflows before it is divided"


# In the next two rules a is no literal. A mask's exp(-3.4e38) is folded to 0, and then the whole quotient is.


@rule(when=lambda a: not_constant(a), exact=FINITE)
def exponential_of_shift(a, s: "j"):
    """exp(a - max_j s) = exp(a) / exp(max_j s) for a that is no literal"""
    return exp(a - max_over("j", s)), exp(a) / exp(max_over("j", s))


@rule(when=lambda a: not_constant(a), exact=FINITE)
def exponential_of_larger_shift(a, b, c):
    """exp(a - max(b, c)) = exp(a) / exp(max(b, c)) for a that is no literal"""
    return exp(a - maximum(b, c)), exp(a) / exp(maximum(b, c))


@rule(exact=FINITE)
def quotient_adds_to_negative_exponential(a, b):
    """exp(-a) + b / exp(a) = (1 + b) / exp(a)"""
    return exp(-a) + b / exp(a), (const(1.0) + b) / exp(a)


@rule(exact=FINITE)
def negative_exponential_adds_to_quotient(a, b):
    """b / exp(a) + exp(-a) = (b + 1) / exp(a)"""
    return b / exp(a) + exp(-a), (b + const(1.0)) / exp(a)


@rule(exact=FINITE)
def logarithm_of_quotient(a, c):
    """log(a / exp(c)) = log(a) - c"""
    return log(a / exp(c)), log(a) - c


@rule(exact=FINITE)
def shifts_cancel_in_exponent(a, b, c):
    """exp((a - c) - (b - c)) = exp(a - b)"""
    return exp((a - c) - (b - c)), exp(a - b)


@rule(exact=FINITE)
def shift_by_what_is_left_and_shift(a, b, c):
    """exp(a - ((b - c) + c)) = exp(a - b)"""
    return exp(a - ((b - c) + c)), exp(a - b)


@rule(exact=FINITE)
def shift_by_shift_and_what_is_left(a, b, c):
    """exp(a - (c + (b - c))) = exp(a - b)"""
    return exp(a - (c + (b - c))), exp(a - b)


@rule(exact=FINITE)
def choice_leaves_shifted_exponent(p: "predicate", a, c):
    """exp(where(p, a, -∞) - c) = where(p, exp(a - c), 0)"""
    return exp(where(p, a, LOWEST) - c), where(p, exp(a - c), ZERO)


@rule(exact=FINITE)
def infinite_shift_leaves_exponent(a, b, s: "j"):
    """exp(a - where(max_j s ≠ -∞, where(max_j s = ∞, ∞, b), -∞)) = exp(a - b)"""
    largest = max_over("j", s)
    return exp(a - where(~eq(largest, LOWEST), where(eq(largest, LARGEST), LARGEST, b), LOWEST)), exp(a - b)


@rule(exact=FINITE)
def infinite_logarithm(s: "j", x):
    """where(max_j s ≠ -∞, where(max_j s = ∞, ∞, log(x)), -∞) = log(x)"""
    largest = max_over("j", s)
    return where(~eq(largest, LOWEST), where(eq(largest, LARGEST), LARGEST, log(x)), LOWEST), log(x)


@rule(exact=FINITE)
def larger_and_what_is_left(a, b):
    """max(a, b) + log1p(exp(-|a - b|)) = log(exp(a) + exp(b)), also where torch asks whether max(a, b) is finite"""
    larger = maximum(a, b)
    left = larger + make("log1p", (exp(-make("abs", (a - b,))),))
    return where(make("finite", (larger,)), left, larger), log(exp(a) + exp(b))


@rule(exact=FINITE)
def exponentials_meet(a, b):
    """exp(a) · exp(b) = exp(a + b)"""
    return exp(a) * exp(b), exp(a + b)


@rule(exact=FINITE)
def exponentials_meet_in_product(x, a, b):
    """(x · exp(a)) · exp(b) = x · exp(a + b)"""
    return (x * exp(a)) * exp(b), x * exp(a + b)


@rule(when=lambda y: not_constant(y), exact="bitwise")
def exponential_goes_right(a, y):
    """exp(a) · y = y · exp(a) for y that is no literal"""
    return exp(a) * y, y * exp(a)


@rule(when=lambda y: not_constant(y))
def exponential_leaves_left_factor(x, a, y):
    """(x · exp(a)) · y = (x · y) · exp(a) for y that is no literal"""
    return (x * exp(a)) * y, (x * y) * exp(a)


@rule
def exponential_leaves_right_factor(x, y, a):
    """x · (y · exp(a)) = (x · y) · exp(a)"""
    return x * (y * exp(a)), (x * y) * exp(a)


@rule
def exponential_goes_before_factor(x, y, a):
    """(x · y) · exp(a) = (x · exp(a)) · y"""
    return (x * y) * exp(a), (x * exp(a)) * y


@rule(exact=FINITE)
def quotient_of_exponentials(a, c):
    """exp(a) / exp(c) = exp(a - c)"""
    return exp(a) / exp(c), exp(a - c)


@rule(exact=FINITE)
def product_over_exponential(x, a, c):
    """(x · exp(a)) / exp(c) = x · exp(a - c)"""
    return (x * exp(a)) / exp(c), x * exp(a - c)


@rule(exact=FINITE)
def product_over_divisor_and_exponential(x, a, y, c):
    """((x · exp(a)) / y) / exp(c) = (x · exp(a - c)) / y"""
    return ((x * exp(a)) / y) / exp(c), (x * exp(a - c)) / y


@rule(when=lambda k: constant(k), exact=FINITE)
def scaled_product_over_divisor_and_exponential(x, a, y, c, k: "constant"):
    """(((x · exp(a)) · k) / y) / exp(c) = ((x · exp(a - c)) · k) / y for a literal k"""
    return (((x * exp(a)) * k) / y) / exp(c), ((x * exp(a - c)) * k) / y


@rule(exact=FINITE)
def chosen_quotient_over_exponential(p: "predicate", x, a, y, c):
    """where(p, (x · exp(a)) / y, 0) / exp(c) = where(p, (x · exp(a - c)) / y, 0)"""
    return where(p, (x * exp(a)) / y, ZERO) / exp(c), where(p, (x * exp(a - c)) / y, ZERO)


@rule(when=lambda k: constant(k), exact=FINITE)
def scaled_chosen_quotient_over_exponential(p: "predicate", x, a, y, c, k: "constant"):
    """where(p, ((x · exp(a)) · k) / y, 0) / exp(c) = where(p, ((x · exp(a - c)) · k) / y, 0) for a literal k"""
    return where(p, ((x * exp(a)) * k) / y, ZERO) / exp(c), where(p, ((x * exp(a - c)) * k) / y, ZERO)


@rule(exact=FINITE)
def exponential_over_product_with_exponential(a, y, c):
    """exp(a) / (y · exp(c)) = exp(a - c) / y"""
    return exp(a) / (y * exp(c)), exp(a - c) / y


@rule(exact=FINITE)
def product_over_product_with_exponential(x, a, y, c):
    """(x · exp(a)) / (y · exp(c)) = (x · exp(a - c)) / y"""
    return (x * exp(a)) / (y * exp(c)), (x * exp(a - c)) / y


@rule(when=lambda k: constant(k), exact=FINITE)
def scaled_product_over_product_with_exponential(x, a, y, c, k: "constant"):
    """((x · exp(a)) · k) / (y · exp(c)) = ((x · exp(a - c)) · k) / y for a literal k"""
    return ((x * exp(a)) * k) / (y * exp(c)), ((x * exp(a - c)) * k) / y


@rule(when=lambda k: constant(k), exact=FINITE)
def scaled_exponential_over_exponential(a, c, k: "constant"):
    """(exp(a) · k) / exp(c) = exp(a - c) · k for a literal k"""
    return (exp(a) * k) / exp(c), exp(a - c) * k


@rule(when=lambda k: constant(k), exact=FINITE)
def scaled_product_over_exponential(x, a, c, k: "constant"):
    """((x · exp(a)) · k) / exp(c) = (x · exp(a - c)) · k for a literal k"""
    return ((x * exp(a)) * k) / exp(c), (x * exp(a - c)) * k


@rule(exact=FINITE)
def choice_over_exponential(p: "predicate", a, c):
    """where(p, exp(a), 0) / exp(c) = where(p, exp(a - c), 0)"""
    return where(p, exp(a), ZERO) / exp(c), where(p, exp(a - c), ZERO)


@rule(exact=FINITE)
def chosen_product_over_exponential(p: "predicate", x, a, c):
    """where(p, x · exp(a), 0) / exp(c) = where(p, x · exp(a - c), 0)"""
    return where(p, x * exp(a), ZERO) / exp(c), where(p, x * exp(a - c), ZERO)


@rule(when=lambda k: constant(k), exact=FINITE)
def scaled_choice_over_exponential(p: "predicate", a, c, k: "constant"):
    """where(p, exp(a) · k, 0) / exp(c) = where(p, exp(a - c) · k, 0) for a literal k"""
    return where(p, exp(a) * k, ZERO) / exp(c), where(p, exp(a - c) * k, ZERO)


@rule(when=lambda k: constant(k), exact=FINITE)
def scaled_chosen_product_over_exponential(p: "predicate", x, a, c, k: "constant"):
    """where(p, (x · exp(a)) · k, 0) / exp(c) = where(p, (x · exp(a - c)) · k, 0) for a literal k"""
    return where(p, (x * exp(a)) * k, ZERO) / exp(c), where(p, (x * exp(a - c)) * k, ZERO)


@rule(exact=FINITE)
def exponential_of_nothing(a):
    """exp(a - a) = 1"""
    return exp(a - a), const(1.0)


@rule(exact=FINITE)
def shift_leaves_left_addend(a, b, c):
    """exp((a - c) + b) = exp((a + b) - c)"""
    return exp((a - c) + b), exp((a + b) - c)


@rule(exact=FINITE)
def shift_leaves_right_addend(a, b, c):
    """exp(a + (b - c)) = exp((a + b) - c)"""
    return exp(a + (b - c)), exp((a + b) - c)


@rule(exact=FINITE)
def shift_by_sum(a, b, c):
    """exp(a - (b + c)) = exp((a - b) - c)"""
    return exp(a - (b + c)), exp((a - b) - c)


@rule(exact=FINITE)
def exponential_factor_leaves_logarithm(x, a):
    """log(x · exp(a)) = log(x) + a"""
    return log(x * exp(a)), log(x) + a


@rule(exact=FINITE)
def exponential_leaves_logarithm(a):
    """log(exp(a)) = a"""
    return log(exp(a)), a


@rule(exact=FINITE)
def exponential_leaves_addends(x, y, a):
    """x · exp(a) + y · exp(a) = (x + y) · exp(a)"""
    return x * exp(a) + y * exp(a), (x + y) * exp(a)


@rule(when=lambda k: constant(k), exact=FINITE)
def exponential_leaves_scaled_left_addend(x, y, a, k: "constant"):
    """(x · exp(a)) · k + y · exp(a) = (x · k + y) · exp(a) for a literal k"""
    return (x * exp(a)) * k + y * exp(a), (x * k + y) * exp(a)


@rule(when=lambda k: constant(k), exact=FINITE)
def exponential_leaves_scaled_right_addend(x, y, a, k: "constant"):
    """x · exp(a) + (y · exp(a)) · k = (x + y · k) · exp(a) for a literal k"""
    return x * exp(a) + (y * exp(a)) * k, (x + y * k) * exp(a)


@rule(when=lambda k, n: (constant(k), constant(n)), exact=FINITE)
def exponential_leaves_scaled_addends(x, y, a, k: "constant", n: "constant"):
    """(x · exp(a)) · k + (y · exp(a)) · n = (x · k + y · n) · exp(a) for literals k and n"""
    return (x * exp(a)) * k + (y * exp(a)) * n, (x * k + y * n) * exp(a)


@rule(when=lambda a: independent(a, of="j"), exact=FINITE)
def exponential_out_of_sum(s: "j", a):
    """Σ_j (s · exp(a)) = (Σ_j s) · exp(a) when a does not depend on j"""
    return sum_over("j", s * exp(a)), sum_over("j", s) * exp(a)


# Where weights are multiplied by themselves or stand in other functions, not all divisors of a product meet their
# exponential again in a derivative. With the logarithm of its sum in its exponent, a weight is bounded by itself. Sums
# of such weights are bounded, too, and stay divisors.


@rule(when=lambda s: not_share(s), exact=DIVIDED)
def exponential_over_sum(a, s: "j"):
    """exp(a) / Σ_j exp(s) = exp(a - log Σ_j exp(s))"""
    total = sum_over("j", exp(s))
    return exp(a) / total, exp(a - log(total))


@rule(when=lambda s: not_share(s), exact=DIVIDED)
def exponential_over_masked_sum(a, p: "predicate", s: "j"):
    """exp(a) / Σ_j where(p, exp(s), 0) = exp(a - log Σ_j where(p, exp(s), 0))"""
    total = sum_over("j", where(p, exp(s), ZERO))
    return exp(a) / total, exp(a - log(total))


@rule(when=lambda s: not_share(s), exact=DIVIDED)
def choice_over_sum(p: "predicate", a, s: "j"):
    """where(p, exp(a), 0) / Σ_j exp(s) = where(p, exp(a - log Σ_j exp(s)), 0)"""
    total = sum_over("j", exp(s))
    return where(p, exp(a), ZERO) / total, where(p, exp(a - log(total)), ZERO)


@rule(when=lambda s: not_share(s), exact=DIVIDED)
def choice_over_masked_sum(p: "predicate", a, q: "predicate", s: "j"):
    """where(p, exp(a), 0) / Σ_j where(q, exp(s), 0) = where(p, exp(a - log Σ_j where(q, exp(s), 0)), 0)"""
    total = sum_over("j", where(q, exp(s), ZERO))
    return where(p, exp(a), ZERO) / total, where(p, exp(a - log(total)), ZERO)


EXPONENTS = (shift_leaves_left_addend, shift_leaves_right_addend)
TAKEN_APART = (
    exponential_of_shift,
    exponential_of_larger_shift,
    quotient_adds_to_negative_exponential,
    negative_exponential_adds_to_quotient,
    logarithm_of_quotient,
    shifts_cancel_in_exponent,
    shift_by_what_is_left_and_shift,
    shift_by_shift_and_what_is_left,
    choice_leaves_shifted_exponent,
    infinite_shift_leaves_exponent,
    infinite_logarithm,
    larger_and_what_is_left,
)
TOGETHER = (
    exponential_of_nothing,
    shift_by_sum,
    exponentials_meet,
    exponentials_meet_in_product,
    exponential_goes_right,
    exponential_leaves_left_factor,
    exponential_leaves_right_factor,
    quotient_of_exponentials,
    product_over_exponential,
    product_over_divisor_and_exponential,
    scaled_product_over_divisor_and_exponential,
    chosen_quotient_over_exponential,
    scaled_chosen_quotient_over_exponential,
    exponential_over_product_with_exponential,
    product_over_product_with_exponential,
    scaled_product_over_product_with_exponential,
    scaled_exponential_over_exponential,
    scaled_product_over_exponential,
    choice_over_exponential,
    chosen_product_over_exponential,
    scaled_choice_over_exponential,
    scaled_chosen_product_over_exponential,
    exponential_factor_leaves_logarithm,
    exponential_leaves_logarithm,
)
OUT_OF_SUMS = (
    exponential_leaves_addends,
    exponential_leaves_scaled_left_addend,
    exponential_leaves_scaled_right_addend,
    exponential_leaves_scaled_addends,
    exponential_out_of_sum,
)
OVER_THEIR_SUM = (
    exponential_over_sum,
    exponential_over_masked_sum,
    choice_over_sum,
    choice_over_masked_sum,
    exponential_leaves_logarithm,
)
BEFORE_FACTORS = (exponential_goes_before_factor,)
