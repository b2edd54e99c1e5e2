"""64 false laws beside the 64 true ones: a condition is dropped, a sign, a constant, a dim or a state is wrong.

None may ever be proved. A law that is true under a condition only is false without it: log(x · y) = log x + log y fails
for x = y = -1.
"""

from math import inf

from onepass.egraph import independent, nonzero, rule
from onepass.egraph.terms.ops import (
    const,
    eq,
    exp,
    exp2,
    log,
    log2,
    mantissa,
    max_over,
    maximum,
    minimum,
    reduce,
    rescaled_sum,
    scale,
    sqrt,
    sum_over,
    tanh,
    where,
)
from tests.proofs.true_laws import ABSENT, ONE, REALS, ZERO, cos, floor, log1p, sigmoid, sin

# Logarithms and exponentials -----------------------------------------------------------------------------------------


@rule(exact=REALS)
def log_of_any_product(x, y):
    """log(x · y) = log x + log y. Wrong: x = y = -1"""
    return log(x * y), log(x) + log(y)


@rule(exact=REALS)
def log_of_any_square(x):
    """log(x · x) = 2 · log x. Wrong: x = -1"""
    return log(x * x), log(x) * 2.0


@rule(exact=REALS)
def log_of_sum(x, y):
    """log x + log y = log(x + y). Wrong: x = y = 1"""
    return log(x) + log(y), log(x + y)


@rule(exact=REALS)
def log_of_sum_of_exponentials(x, y):
    """log(exp(x) + exp(y)) = x + y. Wrong: x = y = 0"""
    return log(exp(x) + exp(y)), x + y


@rule(exact=REALS)
def exp_of_any_log(x):
    """exp(log(x)) = x, defined alike. Wrong: x = -1"""
    return exp(log(x)), x


@rule
def log_of_magnitude(x):
    """log |x| = |log x|. Wrong: x = 1 / 2"""
    return log(abs(x)), abs(log(x))


@rule
def difference_of_logs(x, y):
    """log x - log y = log(x - y). Wrong: x = y = 1"""
    return log(x) - log(y), log(x - y)


@rule
def log_of_eightfold(x):
    """log2(8 · x) = 3 · log2(x). Wrong: x = 1"""
    return log2(x * 8.0), log2(x) * 3.0


@rule(exact=REALS)
def power_of_two_of_sum(x, y):
    """2^(x + y) = 2^x + 2^y. Wrong: x = y = 0"""
    return exp2(x + y), exp2(x) + exp2(y)


@rule
def log_of_reciprocal_of_zero(x):
    """log x = -log(1 / x). Wrong: x = 0, where the right side is undefined"""
    return log(x), -log(1.0 / x)


# Roots ---------------------------------------------------------------------------------------------------------------


@rule(exact=REALS)
def root_of_any_square(x):
    """√(x · x) = x. Wrong: x = -1"""
    return sqrt(x * x), x


@rule(exact=REALS)
def square_of_any_root(x):
    """√x · √x = x, defined alike. Wrong: x = -1"""
    return sqrt(x) * sqrt(x), x


@rule(exact=REALS)
def root_of_any_product(x, y):
    """√(x · y) = √x · √y. Wrong: x = y = -1"""
    return sqrt(x * y), sqrt(x) * sqrt(y)


@rule
def root_of_sum(x, y):
    """√(x · x + y · y) = |x| + |y|. Wrong: x = y = 1"""
    return sqrt(x * x + y * y), abs(x) + abs(y)


@rule
def root_of_fourfold(x):
    """√(4 · x) = 4 · √x. Wrong: x = 1"""
    return sqrt(x * 4.0), sqrt(x) * 4.0


@rule
def root_of_exponential(x):
    """√exp(x) = exp(x) / 2. Wrong: x = 0"""
    return sqrt(exp(x)), exp(x) / 2.0


@rule(exact=REALS)
def root_by_reciprocal_root(x):
    """√x = x / √x, defined alike. Wrong: x = 0"""
    return sqrt(x), x / sqrt(x)


@rule
def rationalised_everywhere(x, y):
    """1 / (√x + √y) = (√x - √y) / (x - y). Wrong: x = y"""
    return 1.0 / (sqrt(x) + sqrt(y)), (sqrt(x) - sqrt(y)) / (x - y)


# Softplus, sigmoid, tanh ---------------------------------------------------------------------------------------------


@rule(exact=REALS)
def softplus_reflected_wrongly(x):
    """log(1 + exp(x)) - log(1 + exp(-x)) = -x. Wrong: x = 1"""
    return log(1.0 + exp(x)) - log(1.0 + exp(-x)), -x


@rule(exact=REALS)
def softplus_is_a_ramp(x):
    """log(1 + exp(x)) = max(x, 0). Wrong: x = 0"""
    return log(1.0 + exp(x)), maximum(x, ZERO)


@rule(exact=REALS)
def softplus_with_overflow(x):
    """log(1 + exp(x)) = max(x, 0) + log1p(exp(|x|)). Wrong: x = 1"""
    return log(1.0 + exp(x)), maximum(x, ZERO) + log1p(exp(abs(x)))


@rule(exact=REALS)
def sigmoid_is_odd(x):
    """sigmoid(-x) = -sigmoid(x). Wrong: x = 0"""
    return sigmoid(-x), -sigmoid(x)


@rule(exact=REALS)
def sigmoid_by_tanh_of_all(x):
    """sigmoid(x) = (1 + tanh(x)) / 2. Wrong: x = 1, half of it is missing"""
    return sigmoid(x), (1.0 + tanh(x)) / 2.0


@rule(exact=REALS)
def logit_reflected(x):
    """log(sigmoid(x) / (1 - sigmoid(x))) = -x. Wrong: x = 1"""
    return log(sigmoid(x) / (1.0 - sigmoid(x))), -x


@rule(exact=REALS)
def tanh_of_sum_with_minus(a, b):
    """tanh(a + b) = (tanh a + tanh b) / (1 - tanh a · tanh b). Wrong: a = b = 1"""
    return tanh(a + b), (tanh(a) + tanh(b)) / (1.0 - tanh(a) * tanh(b))


@rule(exact=REALS)
def tanh_doubled(x):
    """tanh(2 · x) = 2 · tanh x. Wrong: x = 1"""
    return tanh(x * 2.0), tanh(x) * 2.0


# Sines ---------------------------------------------------------------------------------------------------------------


@rule(exact=REALS)
def pythagoras_with_minus(x):
    """sin² x - cos² x = 1. Wrong: x = 0"""
    return sin(x) * sin(x) - cos(x) * cos(x), ONE


@rule(exact=REALS)
def sine_of_sum_with_minus(a, b):
    """sin(a + b) = sin a · cos b - cos a · sin b. Wrong: a = 0, b = 1"""
    return sin(a + b), sin(a) * cos(b) - cos(a) * sin(b)


@rule(exact=REALS)
def cosine_of_double_halved(x):
    """cos(2 · x) = 1 - sin² x. Wrong: x = 1"""
    return cos(x * 2.0), 1.0 - sin(x) * sin(x)


@rule
def cosine_of_negated(x):
    """cos(-x) = -cos x. Wrong: x = 0"""
    return cos(-x), -cos(x)


@rule(exact=REALS)
def root_of_sine(x):
    """√(1 - cos² x) = sin x. Wrong: x = -1"""
    return sqrt(1.0 - cos(x) * cos(x)), sin(x)


# Powers --------------------------------------------------------------------------------------------------------------


@rule(exact=REALS)
def power_in_the_exponent(x, a):
    """exp(x)^a = exp(x^a). Wrong: x = 1, a = 2"""
    return exp(x) ** a, exp(x**a)


@rule(exact=REALS)
def root_of_second_power(x):
    """(x²)^0.5 = x. Wrong: x = -1"""
    return (x**2.0) ** 0.5, x


@rule(exact=REALS)
def product_of_powers_multiplied(x, a, b):
    """(1 + x²)^a · (1 + x²)^b = (1 + x²)^(a · b). Wrong: x = a = b = 1"""
    base = 1.0 + x * x
    return base**a * base**b, base ** (a * b)


@rule
def power_of_undefined(x):
    """(x / x)^0 = where(x = 0, 5, 1). Wrong: x = 0, because any value to the power 0 is 1"""
    return (x / x) ** 0.0, where(eq(x, ZERO), const(5.0), ONE)


@rule
def power_of_minus_one(x):
    """x^-1 = -x. Wrong: x = 2"""
    return x**-1.0, -x


# Sums ----------------------------------------------------------------------------------------------------------------


@rule(exact=REALS)
def shifted_exponentials_sum_to_one(s: "j"):
    """Σ_j exp(s - max_j s) = 1. Wrong: two elements"""
    return sum_over("j", exp(s - max_over("j", s))), ONE


@rule(exact=REALS)
def log_sum_exp_shifted_by_elements(s: "j", c):
    """log Σ_j exp(s + c) = log Σ_j exp(s) + c. Wrong: c may depend on j"""
    return log(sum_over("j", exp(s + c))), log(sum_over("j", exp(s))) + c


@rule
def log_sum_exp_of_absent_rows(s: "j"):
    """log Σ_j exp(s) = max_j s + log Σ_j exp(s - max_j s). Wrong: where all are -∞, the right side is undefined"""
    highest = max_over("j", s)
    return log(sum_over("j", exp(s))), highest + log(sum_over("j", exp(s - highest)))


@rule(when=lambda s: independent(s, of="k"), exact=REALS)
def sum_of_product_without_guard(s: "j", t: "k"):
    """Σ_j Σ_k s · t = (Σ_j s) · (Σ_k t). Wrong: t may depend on j"""
    return sum_over("j", sum_over("k", s * t)), sum_over("j", s) * sum_over("k", t)


@rule(exact=REALS)
def variance_without_count(x: "j"):
    """Σ_j (x - m)² = Σ_j x² - (Σ_j x)² for the mean m. Wrong: the count is missing"""
    count, total = sum_over("j", ONE), sum_over("j", x)
    deviation = x - total / count
    return sum_over("j", deviation * deviation), sum_over("j", x * x) - total * total


@rule(exact=REALS)
def squared_distance_without_products(x: "j", y: "j"):
    """Σ_j (x - y)² = Σ_j x² + Σ_j y². Wrong: the products are missing"""
    return sum_over("j", (x - y) * (x - y)), sum_over("j", x * x) + sum_over("j", y * y)


@rule(exact=REALS)
def log_of_sum_over(s: "j"):
    """log Σ_j exp(s) = Σ_j s. Wrong: two zeros"""
    return log(sum_over("j", exp(s))), sum_over("j", s)


@rule(exact=REALS)
def product_of_exponentials_is_exponential_of_product(s: "j"):
    """Π_j exp(s) = exp(Π_j s). Wrong: zeros"""
    return reduce("prod", "j", exp(s)), exp(reduce("prod", "j", s))


@rule(when=lambda c: nonzero(c), exact=REALS)
def norm_scaled_by_any(x: "j", c: "constant"):
    """√Σ_j (x · c)² = √(Σ_j x²) · c. Wrong: c = -1"""
    return sqrt(sum_over("j", (x * c) * (x * c))), sqrt(sum_over("j", x * x)) * c


@rule(exact=REALS)
def count_is_one(x: "j"):
    """Σ_j (x - x + 1) = 1. Wrong: two elements"""
    return sum_over("j", x - x + 1.0), ONE


# Maxima --------------------------------------------------------------------------------------------------------------


@rule
def decreasing_out_of_maximum(s: "j"):
    """max_j exp(-s) = exp(-max_j s). Wrong: -s falls as s rises"""
    return max_over("j", exp(-s)), exp(-max_over("j", s))


@rule(exact=REALS)
def sine_out_of_maximum(s: "j"):
    """max_j sin s = sin(max_j s). Wrong: a sine rises and falls"""
    return max_over("j", sin(s)), sin(max_over("j", s))


@rule(exact=REALS)
def square_out_of_maximum(s: "j"):
    """max_j s² = (max_j s)². Wrong: -2 and 1"""
    return max_over("j", s * s), max_over("j", s) * max_over("j", s)


@rule(exact=REALS)
def magnitude_out_of_maximum(s: "j"):
    """max_j |s| = |max_j s|. Wrong: -2 and 1"""
    return max_over("j", abs(s)), abs(max_over("j", s))


# States of rescaled sums ---------------------------------------------------------------------------------------------


@rule(exact=REALS)
def log_sum_exp_without_log(s: "j"):
    """scale + mantissa of ⊕_j ⟨s, 1⟩ = log Σ_j exp(s). Wrong: the logarithm is missing"""
    state = rescaled_sum("j", s, ONE)
    return scale(state) + mantissa(state), log(sum_over("j", exp(s)))


@rule(when=lambda c: independent(c, of="j"), exact=REALS)
def state_of_shifted_scores_scaled(s: "j", w: "j", c):
    """mantissa(⊕_j ⟨s + c, w⟩) = mantissa(⊕_j ⟨s, w⟩) · exp(c). Wrong: the scale takes the shift"""
    return mantissa(rescaled_sum("j", s + c, w)), mantissa(rescaled_sum("j", s, w)) * exp(c)


@rule(exact="masked values are finite")
def sum_of_absent_state(s: "j", w: "j"):
    """Σ_j exp(s) · w = mantissa · exp(scale) of ⊕_j ⟨s, w⟩. Wrong: where all scores are -∞ there is no mantissa"""
    state = rescaled_sum("j", s, w)
    return sum_over("j", exp(s) * w), mantissa(state) * exp(scale(state))


# Magnitudes, order, floors, masks ------------------------------------------------------------------------------------


@rule(exact=REALS)
def magnitude_of_sum(x, y):
    """|x + y| = |x| + |y|. Wrong: x = 1, y = -1"""
    return abs(x + y), abs(x) + abs(y)


@rule
def absorption_by_the_other(x, y):
    """max(x, min(x, y)) = y. Wrong: x = 1, y = 0"""
    return maximum(x, minimum(x, y)), y


@rule
def minimum_half_distributed(x, y, z):
    """min(x, max(y, z)) = max(min(x, y), z). Wrong: x = 0, y = z = 1"""
    return minimum(x, maximum(y, z)), maximum(minimum(x, y), z)


@rule(exact=REALS)
def floor_of_sum(x, y):
    """⌊x + y⌋ = ⌊x⌋ + ⌊y⌋. Wrong: x = y = 1 / 2"""
    return floor(x + y), floor(x) + floor(y)


@rule(exact=REALS)
def floor_of_double(x):
    """⌊2 · x⌋ = 2 · ⌊x⌋. Wrong: x = 1 / 2"""
    return floor(x * 2.0), floor(x) * 2.0


@rule(when=lambda g: nonzero(g), exact="sizes are positive")
def remainder_forgotten(a: "index", b: "index", g: "index constant"):
    """(a % g + b) % g = a % g + b. Wrong: the sum may exceed g"""
    return (a % g + b) % g, a % g + b


@rule(when=lambda g: nonzero(g))
def quotient_times_divisor(a: "index", g: "index constant"):
    """(a // g) · g = a. Wrong: the remainder is lost"""
    return (a // g) * g, a


@rule(exact=REALS)
def one_mask_twice(p: "predicate", s: "j"):
    """Σ_j where(p, s, 0) + Σ_j where(p, s, 0) = Σ_j s. Wrong: the mask is not negated"""
    return sum_over("j", where(p, s, ZERO)) + sum_over("j", where(p, s, ZERO)), sum_over("j", s)


@rule(when=lambda c: nonzero(c))
def mask_divided_by_any(p: "predicate", s, c: "constant"):
    """where(p, s, -∞) / c = where(p, s / c, -∞). Wrong: c = -1 gives +∞"""
    return where(p, s, const(-inf)) / c, where(p, s / c, ABSENT)


@rule(exact=REALS)
def equal_but_for_one_number(x):
    """where(x = 37.5, 0, x) = x. Wrong: x = 37.5"""
    return where(eq(x, const(37.5)), ZERO, x), x


@rule
def equal_but_for_one_index(n: "index"):
    """where(n = 1000, 0, n) = n. Wrong: n = 1000"""
    return where(eq(n, const(1000)), const(0), n), n


FALSE_LAWS = tuple(value for value in list(globals().values()) if type(value).__name__ == "Rule")
