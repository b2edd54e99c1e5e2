"""64 true laws, written from mathematics and kept apart from the shipped ones: a measure of what the provers can prove.

A law may hold only where its left side is a number, as a law promises unless it says more. Under "scores are finite"
all variables are reals, and both sides are defined at the same places.
"""

from math import inf

from onepass.egraph import float_dtype, has_dtype, independent, nonzero, positive, rule
from onepass.egraph.terms.ops import (
    cast,
    const,
    exp,
    exp2,
    le,
    log,
    log2,
    lt,
    make,
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

ABSENT, ZERO, ONE = const(-inf), const(0.0), const(1.0)
REALS = "scores are finite"


def function(name):
    return lambda x: make(name, (x,))


sin, cos, floor, log1p, sigmoid = map(function, ("sin", "cos", "floor", "log1p", "sigmoid"))

# Logarithms and exponentials -----------------------------------------------------------------------------------------


@rule
def log_of_exp(x):
    """log(exp(x)) = x"""
    return log(exp(x)), x


@rule
def exp_of_log(x):
    """exp(log(x)) = x where there is a logarithm"""
    return exp(log(x)), x


@rule
def sum_of_logs(x, y):
    """log x + log y = log(x · y) where there are both"""
    return log(x) + log(y), log(x * y)


@rule(exact=REALS)
def log_of_quotient(x, y):
    """log(exp(x) / (1 + exp(y))) = x - log(1 + exp(y))"""
    return log(exp(x) / (1.0 + exp(y))), x - log(1.0 + exp(y))


@rule
def twice_a_log(x):
    """2 · log x = log(x · x) where there is a logarithm"""
    return log(x) * 2.0, log(x * x)


@rule(exact=REALS)
def log_of_square(x):
    """log(x · x) = 2 · log |x|"""
    return log(x * x), log(abs(x)) * 2.0


@rule
def log_of_root(x):
    """log √x = log(x) / 2"""
    return log(sqrt(x)), log(x) / 2.0


@rule
def exp_of_sum_of_logs(x, y):
    """exp(2 · log x + log y) = x · x · y where there are both"""
    return exp(log(x) * 2.0 + log(y)), x * x * y


@rule
def log_of_power_of_two(x):
    """log2(2^x) = x"""
    return log2(exp2(x)), x


# Roots ---------------------------------------------------------------------------------------------------------------


@rule
def square_of_root(x):
    """√x · √x = x where there is a root"""
    return sqrt(x) * sqrt(x), x


@rule(exact=REALS)
def root_of_square(x):
    """√(x · x) = |x|"""
    return sqrt(x * x), abs(x)


@rule
def product_of_roots(x, y):
    """√x · √y = √(x · y) where there are both"""
    return sqrt(x) * sqrt(y), sqrt(x * y)


@rule
def root_of_exponential(x):
    """√exp(x) = exp(x / 2)"""
    return sqrt(exp(x)), exp(x / 2.0)


@rule
def difference_of_roots(x, y):
    """(√x - √y) · (√x + √y) = x - y where there are both"""
    return (sqrt(x) - sqrt(y)) * (sqrt(x) + sqrt(y)), x - y


@rule
def rationalised(x, y):
    """(√x - √y) / (x - y) = 1 / (√x + √y) where x ≠ y"""
    return (sqrt(x) - sqrt(y)) / (x - y), 1.0 / (sqrt(x) + sqrt(y))


@rule
def largest_root(x, y):
    """max(√x, √y) = √max(x, y) where there are both"""
    return maximum(sqrt(x), sqrt(y)), sqrt(maximum(x, y))


# Softplus, sigmoid, tanh ---------------------------------------------------------------------------------------------


@rule(exact=REALS)
def softplus_reflected(x):
    """log(1 + exp(x)) - log(1 + exp(-x)) = x"""
    return log(1.0 + exp(x)) - log(1.0 + exp(-x)), x


@rule(exact=REALS)
def softplus_without_overflow(x):
    """log(1 + exp(x)) = max(x, 0) + log1p(exp(-|x|))"""
    return log(1.0 + exp(x)), maximum(x, ZERO) + log1p(exp(-abs(x)))


@rule(exact=REALS)
def softplus_of_sigmoid(x):
    """-log(sigmoid(-x)) = log(1 + exp(x))"""
    return -log(sigmoid(-x)), log(1.0 + exp(x))


@rule(exact=REALS)
def sigmoid_reflected(x):
    """sigmoid(-x) = 1 - sigmoid(x)"""
    return sigmoid(-x), 1.0 - sigmoid(x)


@rule(exact=REALS)
def logit_of_sigmoid(x):
    """log(sigmoid(x) / (1 - sigmoid(x))) = x"""
    return log(sigmoid(x) / (1.0 - sigmoid(x))), x


@rule(exact=REALS)
def tanh_of_sum(a, b):
    """tanh(a + b) = (tanh a + tanh b) / (1 + tanh a · tanh b)"""
    return tanh(a + b), (tanh(a) + tanh(b)) / (1.0 + tanh(a) * tanh(b))


# Sines ---------------------------------------------------------------------------------------------------------------


@rule(exact=REALS)
def pythagoras(x):
    """sin² x + cos² x = 1"""
    return sin(x) * sin(x) + cos(x) * cos(x), ONE


@rule(exact=REALS)
def sine_of_sum(a, b):
    """sin(a + b) = sin a · cos b + cos a · sin b"""
    return sin(a + b), sin(a) * cos(b) + cos(a) * sin(b)


@rule(exact=REALS)
def cosine_of_double(x):
    """cos(2 · x) = 1 - 2 · sin² x"""
    return cos(x * 2.0), 1.0 - sin(x) * sin(x) * 2.0


@rule
def sine_of_negated(x):
    """sin(-x) = -sin x"""
    return sin(-x), -sin(x)


# Powers --------------------------------------------------------------------------------------------------------------


@rule
def second_power(x):
    """x² = x · x"""
    return x**2.0, x * x


@rule(exact=REALS)
def power_of_exponential(x, a):
    """exp(x)^a = exp(x · a)"""
    return exp(x) ** a, exp(x * a)


@rule(when=lambda x: has_dtype(x, "float32"), exact=REALS)
def power_of_one_half(x):
    """x^0.5 = √x for a floating x"""
    return x**0.5, sqrt(x)


@rule(exact=REALS)
def product_of_powers(x, a, b):
    """(1 + x²)^a · (1 + x²)^b = (1 + x²)^(a + b)"""
    base = 1.0 + x * x
    return base**a * base**b, base ** (a + b)


# Sums ----------------------------------------------------------------------------------------------------------------


@rule
def softmax_sums_to_one(s: "j"):
    """Σ_j (exp(s) / Σ_j exp(s)) = 1 where it is a number"""
    return sum_over("j", exp(s) / sum_over("j", exp(s))), ONE


@rule(when=lambda c: independent(c, of="j"), exact=REALS)
def log_sum_exp_shifted(s: "j", c):
    """log Σ_j exp(s + c) = log Σ_j exp(s) + c"""
    return log(sum_over("j", exp(s + c))), log(sum_over("j", exp(s))) + c


@rule(exact=REALS)
def log_sum_exp_by_maximum(s: "j"):
    """log Σ_j exp(s) = max_j s + log Σ_j exp(s - max_j s)"""
    highest = max_over("j", s)
    return log(sum_over("j", exp(s))), highest + log(sum_over("j", exp(s - highest)))


@rule(when=lambda s, t: (independent(s, of="k"), independent(t, of="j")), exact=REALS)
def sum_of_outer_product(s: "j", t: "k"):
    """Σ_j Σ_k s · t = (Σ_j s) · (Σ_k t)"""
    return sum_over("j", sum_over("k", s * t)), sum_over("j", s) * sum_over("k", t)


@rule(exact=REALS)
def variance_by_moments(x: "j"):
    """Σ_j (x - m)² = Σ_j x² - (Σ_j x)² / n for the mean m"""
    count, total = sum_over("j", ONE), sum_over("j", x)
    deviation = x - total / count
    return sum_over("j", deviation * deviation), sum_over("j", x * x) - total * total / count


@rule(exact=REALS)
def squared_distance(x: "j", y: "j"):
    """Σ_j (x - y)² = Σ_j x² - 2 · Σ_j x · y + Σ_j y²"""
    products = sum_over("j", x * x) - sum_over("j", x * y) * 2.0 + sum_over("j", y * y)
    return sum_over("j", (x - y) * (x - y)), products


@rule
def log_of_product(s: "j"):
    """Σ_j log s = log Π_j s where there are all logarithms"""
    return sum_over("j", log(s)), log(reduce("prod", "j", s))


@rule(exact=REALS)
def product_of_exponentials(s: "j"):
    """Π_j exp(s) = exp(Σ_j s)"""
    return reduce("prod", "j", exp(s)), exp(sum_over("j", s))


@rule(when=lambda c: positive(c), exact=REALS)
def scaled_norm(x: "j", c: "constant"):
    """√Σ_j (x · c)² = √(Σ_j x²) · c for c > 0"""
    return sqrt(sum_over("j", (x * c) * (x * c))), sqrt(sum_over("j", x * x)) * c


# Maxima --------------------------------------------------------------------------------------------------------------


@rule
def exp_out_of_maximum(s: "j"):
    """max_j exp(s) = exp(max_j s)"""
    return max_over("j", exp(s)), exp(max_over("j", s))


@rule
def log_out_of_maximum(s: "j"):
    """max_j log s = log(max_j s) where there are all logarithms"""
    return max_over("j", log(s)), log(max_over("j", s))


@rule(exact=REALS)
def largest_magnitude(s: "j"):
    """max_j |s| = max(max_j s, -min_j s)"""
    return max_over("j", abs(s)), maximum(max_over("j", s), -reduce("min", "j", s))


@rule(exact=REALS)
def clamp_out_of_maximum(s: "j"):
    """max_j min(max(s, 0), 6) = min(max(max_j s, 0), 6)"""
    return max_over("j", minimum(maximum(s, ZERO), const(6.0))), minimum(maximum(max_over("j", s), ZERO), const(6.0))


# States of rescaled sums ---------------------------------------------------------------------------------------------


@rule(exact=REALS)
def log_sum_exp_of_state(s: "j"):
    """scale + log(mantissa) of ⊕_j ⟨s, 1⟩ = log Σ_j exp(s)"""
    state = rescaled_sum("j", s, ONE)
    return scale(state) + log(mantissa(state)), log(sum_over("j", exp(s)))


@rule(when=lambda c: independent(c, of="j"), exact=REALS)
def state_of_shifted_scores(s: "j", w: "j", c):
    """mantissa(⊕_j ⟨s + c, w⟩) = mantissa(⊕_j ⟨s, w⟩)"""
    return mantissa(rescaled_sum("j", s + c, w)), mantissa(rescaled_sum("j", s, w))


@rule(exact=REALS)
def mean_of_states(s: "j", w: "j"):
    """mantissa(⊕_j ⟨s, w⟩) / mantissa(⊕_j ⟨s, 1⟩) = Σ_j exp(s) · w / Σ_j exp(s)"""
    quotient = mantissa(rescaled_sum("j", s, w)) / mantissa(rescaled_sum("j", s, ONE))
    return quotient, sum_over("j", exp(s) * w) / sum_over("j", exp(s))


# Magnitudes, signs, order --------------------------------------------------------------------------------------------


@rule(exact=REALS)
def magnitude_of_product(x, y):
    """|x · y| = |x| · |y|"""
    return abs(x * y), abs(x) * abs(y)


@rule(exact=REALS)
def triangle(x, y):
    """max(|x + y|, |x| + |y|) = |x| + |y|"""
    return maximum(abs(x + y), abs(x) + abs(y)), abs(x) + abs(y)


@rule(exact=REALS)
def sign_times_magnitude(x):
    """sign(x) · |x| = x"""
    sign = where(lt(ZERO, x), ONE, where(lt(x, ZERO), const(-1.0), ZERO))
    return sign * abs(x), x


@rule(exact=REALS)
def two_ramps(x):
    """max(x, 0) - max(-x, 0) = x"""
    return maximum(x, ZERO) - maximum(-x, ZERO), x


@rule
def absorption(x, y):
    """max(x, min(x, y)) = x"""
    return maximum(x, minimum(x, y)), x


@rule
def minimum_distributes(x, y, z):
    """min(x, max(y, z)) = max(min(x, y), min(x, z))"""
    return minimum(x, maximum(y, z)), maximum(minimum(x, y), minimum(x, z))


@rule
def larger_by_choice(x, y):
    """where(x ≤ y, y, x) = max(x, y)"""
    return where(le(x, y), y, x), maximum(x, y)


# Floors and indices --------------------------------------------------------------------------------------------------


@rule(exact=REALS)
def floor_of_next(x):
    """⌊x + 1⌋ = ⌊x⌋ + 1"""
    return floor(x + 1.0), floor(x) + 1.0


@rule
def floor_is_below(x):
    """min(⌊x⌋, x) = ⌊x⌋"""
    return minimum(floor(x), x), floor(x)


@rule(when=lambda g: nonzero(g), exact="sizes are positive")
def remainder_twice(a: "index", g: "index constant"):
    """(a % g) % g = a % g"""
    return (a % g) % g, a % g


@rule(when=lambda g: nonzero(g))
def quotient_and_remainder(a: "index", g: "index constant"):
    """(a // g) · g + a % g = a"""
    return (a // g) * g + a % g, a


@rule(when=lambda g: nonzero(g), exact="sizes are positive")
def remainder_of_sum(a: "index", b: "index", g: "index constant"):
    """(a % g + b) % g = (a + b) % g"""
    return (a % g + b) % g, (a + b) % g


# Casts and masks -----------------------------------------------------------------------------------------------------


@rule(when=lambda a: float_dtype(a))
def cast_twice(x, a: "dtype"):
    """a(a(x)) = a(x)"""
    return cast(cast(x, a), a), cast(x, a)


@rule
def choice_negated(p: "predicate", x, y):
    """where(¬p, x, y) = where(p, y, x)"""
    return where(~p, x, y), where(p, y, x)


@rule(exact=REALS)
def mask_shifted(p: "predicate", s, c):
    """where(p, s, -∞) + c = where(p, s + c, -∞)"""
    return where(p, s, ABSENT) + c, where(p, s + c, ABSENT)


@rule
def none_is_all_not(p: "predicate"):
    """¬any_j p = all_j ¬p"""
    return ~reduce("any", "j", p), reduce("all", "j", ~p)


@rule
def masked_exponentials(p: "predicate", s: "j"):
    """Σ_j exp(where(p, s, -∞)) = Σ_j where(p, exp(s), 0)"""
    return sum_over("j", exp(where(p, s, ABSENT))), sum_over("j", where(p, exp(s), ZERO))


@rule(exact=REALS)
def two_masks(p: "predicate", s: "j"):
    """Σ_j where(p, s, 0) + Σ_j where(¬p, s, 0) = Σ_j s"""
    return sum_over("j", where(p, s, ZERO)) + sum_over("j", where(~p, s, ZERO)), sum_over("j", s)


TRUE_LAWS = tuple(value for value in list(globals().values()) if type(value).__name__ == "Rule")
