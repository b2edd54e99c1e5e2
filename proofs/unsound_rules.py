"""Wrong rules that look right. Each must be refuted or stay unknown; none may ever be proved.

The docstring of a rule says what it claims, why it tempts, and where it fails. Some come from well-known systems.
"""

from math import inf

from ..egraph import constant, float_dtype, has_dtype, in_blocks, in_two, independent, nonzero, not_constant, rule
from ..egraph.terms.ops import (
    at,
    cast,
    const,
    eq,
    exp,
    iota,
    le,
    log,
    logical_not,
    lt,
    mantissa,
    max_over,
    maximum,
    minimum,
    only,
    reduce,
    rescaled_sum,
    scale,
    size_of,
    sqrt,
    sum_over,
    tanh,
    where,
)

ABSENT, ZERO = const(-inf), const(0.0)


@rule(when=lambda c: constant(c))
def factor_out_of_max(s: "j", c: "constant"):
    """max_j (s · c) = (max_j s) · c. Tempts: holds for c > 0. Wrong: c = -1 makes it a minimum."""
    return max_over("j", s * c), max_over("j", s) * c


@rule
def factor_out_of_sum(s: "j", c):
    """Σ_j (s · c) = (Σ_j s) · c. Tempts: c looks like a constant. Wrong: nothing says that c does not vary with j."""
    return sum_over("j", s * c), sum_over("j", s) * c


@rule(when=lambda c: independent(c, of="j"))
def addend_out_of_sum(s: "j", c):
    """Σ_j (s + c) = (Σ_j s) + c. Tempts: true of maxima. Wrong: c is added once per element."""
    return sum_over("j", s + c), sum_over("j", s) + c


@rule(when=lambda c: independent(c, of="j"))
def dividend_out_of_sum(s: "j", c):
    """Σ_j (c / s) = c / Σ_j s. Tempts: dividing by c distributes. Wrong: c is the dividend, not the divisor."""
    return sum_over("j", c / s), c / sum_over("j", s)


@rule(exact="scores are finite")
def sum_of_products(s: "j", t: "j"):
    """Σ_j s · t = (Σ_j s) · (Σ_j t). Tempts: sums are linear. Wrong: not in two factors at once."""
    return sum_over("j", s * t), sum_over("j", s) * sum_over("j", t)


@rule
def max_of_sum(s: "j", t: "j"):
    """max_j (s + t) = max_j s + max_j t. Tempts: holds for sums. Wrong: the maxima may be at different places."""
    return max_over("j", s + t), max_over("j", s) + max_over("j", t)


@rule
def max_and_sum_exchange(s: "j k"):
    """max_j Σ_k s = Σ_k max_j s. Tempts: two sums do change places. Wrong: a maximum and a sum do not."""
    return max_over("j", sum_over("k", s)), sum_over("k", max_over("j", s))


@rule
def reductions_of_one_body(s: "j k"):
    """Σ_j Σ_k s = Σ_j Σ_j s. Tempts: one letter off. Wrong: k is free on the right and folded on the left."""
    return sum_over("j", sum_over("k", s)), sum_over("j", sum_over("j", s) * 1.0)


@rule(exact="scores are finite")
def exponential_of_product(a, b):
    """exp(a · b) = exp(a) · exp(b). Tempts: exp turns + into ·. Wrong: it does not keep ·."""
    return exp(a * b), exp(a) * exp(b)


@rule(exact="scores are finite")
def exponential_of_sum_over(s: "j"):
    """exp(Σ_j s) = Σ_j exp(s). Tempts: exp is a homomorphism. Wrong: of sums into products."""
    return exp(sum_over("j", s)), sum_over("j", exp(s))


@rule
def absent_minus_absent(s):
    """max(s, s) = (s - s) + s. Tempts: s - s = 0. Wrong: -∞ - -∞ is undefined, and an absent score is -∞."""
    return maximum(s, s), (s - s) + s


@rule
def quotient_of_itself(a, b):
    """b · (1 + (a - a)) = (b / a) · a. Tempts: a cancels. Wrong: a = 0 makes the right side undefined."""
    return b * (1.0 + (a - a)), (b / a) * a


@rule(both=True)
def square_root_of_square(a):
    """sqrt(a · a) = a. Tempts: true for a ≥ 0. Wrong: a = -1."""
    return sqrt(a * a), a * 1.0


@rule(exact="scores are finite")
def shift_without_denominator(s: "j"):
    """exp(s - max_j s) / Σ_j exp(s) = exp(s) / Σ_j exp(s). Tempts: softmax shifts. Wrong: only one exponent did."""
    return exp(s - max_over("j", s)) / sum_over("j", exp(s)), exp(s) / sum_over("j", exp(s))


@rule(exact="scores are finite")
def softmax_split_without_rescaling(s: "j", t: "j"):
    """Σ exp(s - m) of two parts, m their common maximum, is Σ exp(s - own). Tempts: sums split. Wrong: two gauges."""
    common = maximum(max_over("j", s), max_over("j", t))
    apart = sum_over("j", exp(s - max_over("j", s))) + sum_over("j", exp(t - max_over("j", t)))
    return sum_over("j", exp(s - common)) + sum_over("j", exp(t - common)), apart


@rule(exact="masked values are finite")
def unshifted_weighted_sum(s: "j", w: "j"):
    """Σ_j exp(s) · w = mantissa(⊕_j ⟨s, w⟩). Tempts: the mantissa is a weighted sum. Wrong: shifted by the maximum."""
    return sum_over("j", exp(s) * w), mantissa(rescaled_sum("j", s, w))


@rule(exact="masked values are finite")
def shifted_by_another_maximum(s: "j", t: "j", w: "j"):
    """Σ_j exp(s - max_j t) · w = mantissa(⊕_j ⟨s, w⟩). Tempts: some maximum is subtracted. Wrong: not that of s."""
    return sum_over("j", exp(s - max_over("j", t)) * w), mantissa(rescaled_sum("j", s, w))


@rule(exact="masked values are finite")
def mantissa_without_gauge(s: "j", w: "j"):
    """mantissa of ⟨s, w⟩ · exp(max_j s) = Σ_j exp(s) · exp(w). Tempts: both are weighted. Wrong: w is no exponent."""
    return mantissa(rescaled_sum("j", s, w)) * exp(max_over("j", s)), sum_over("j", exp(s) * exp(w))


@rule(exact="scores are finite")
def scale_is_sum(s: "j"):
    """Σ_j s = scale(⊕_j ⟨s, 1⟩). Tempts: the state folds s. Wrong: its scale is the maximum."""
    return sum_over("j", s), scale(rescaled_sum("j", s, const(1.0)))


@rule
def finite_fill_is_absent(p: "predicate", s: "j"):
    """max_j where(p, s, -1e9) = max_j where(p, s, -∞). Tempts: a fill is absent. Wrong: not in an empty row."""
    return max_over("j", where(p, s, const(-1e9))), max_over("j", where(p, s, ABSENT))


@rule
def fill_forgotten(p: "predicate", s: "j"):
    """Σ_j exp(where(p, s, -∞)) = Σ_j exp(s). Tempts: most masks keep all. Wrong: a hidden element counts."""
    return sum_over("j", exp(where(p, s, ABSENT))), sum_over("j", exp(s))


@rule
def mask_added_to_anything(p: "predicate", s):
    """where(p, s, -∞) = s + where(p, 0, -∞), no assumption. Tempts: holds for finite s. Wrong: s = +∞, here s · ∞."""
    return where(p, s * const(inf), ABSENT), (s * const(inf)) + where(p, ZERO, ABSENT)


@rule
def zero_times_masked(p: "predicate", s, w):
    """where(p, s · w, 0) = where(p, s, 0) · w, no assumption. Tempts: 0 · w = 0. Wrong: not for w = -∞."""
    return where(p, s * w, ZERO), where(p, s, ZERO) * w


@rule(when=lambda c: nonzero(c))
def masked_scaled_by_any(p: "predicate", s, c: "constant"):
    """where(p, s, -∞) · c = where(p, s · c, -∞) for c ≠ 0. Tempts: holds for c > 0. Wrong: c < 0 gives +∞."""
    return where(p, s, ABSENT) * c, where(p, s * c, ABSENT)


@rule
def choice_out_of_sum(p: "predicate", s: "j"):
    """Σ_j where(p, s, 0) = where(p, Σ_j s, 0). Tempts: holds where p is one for all j. Wrong: no guard says so."""
    return sum_over("j", where(p, s, ZERO)), where(p, sum_over("j", s), ZERO)


@rule(when=lambda p: independent(p, of="j"))
def choice_out_of_max(p: "predicate", s: "j"):
    """max_j where(p, s, 0) = where(p, max_j s, -∞). Tempts: absent rows. Wrong: 0 is no identity of a maximum."""
    return max_over("j", where(p, s, ZERO)), where(p, max_over("j", s), ABSENT)


@rule
def not_less_of_floats(a, b):
    """¬(a < b) = b < a. Tempts: the other way round. Wrong: a = b."""
    return logical_not(lt(a, b)), lt(b, a)


@rule
def not_and(p: "predicate", q: "predicate"):
    """¬(p ∧ q) = ¬p ∧ ¬q. Tempts: negation distributes. Wrong: it turns ∧ into ∨."""
    return ~(p & q), ~p & ~q


@rule(when=lambda g: nonzero(g))
def quotient_of_sum(a: "index", b: "index", g: "index constant"):
    """(a + b) // g = a // g + b // g. Tempts: true of /. Wrong: rests add up."""
    return (a + b) // g, a // g + b // g


@rule(when=lambda g, h: (nonzero(g), nonzero(h)))
def quotient_of_quotient(a: "index", g: "index constant", h: "index constant"):
    """(a // g) // h = a // (g · h). Tempts: holds for positive g, h. Wrong: h = -1."""
    return (a // g) // h, a // (g * h)


@rule(when=lambda g: nonzero(g))
def remainder_of_small(b: "index", g: "index constant"):
    """b % g = b. Tempts: coordinates are small. Wrong: no guard bounds b."""
    return b % g, b * 1


@rule(when=lambda g, h: (nonzero(g), nonzero(h)))
def split_with_sizes_exchanged(a: "index", g: "index constant", h: "index constant"):
    """(a // g) % h = (a // h) % g. Tempts: a view with sizes g, h permuted. Wrong: a transpose is another index map."""
    return (a // g) % h, (a // h) % g


@rule(exact="scores are finite")
def hyperbolic_addition(a, b):
    """tanh(a + b) = tanh(a) + tanh(b). Tempts: nearly true for small scores (softcap). Wrong: tanh saturates."""
    return tanh(a + b), tanh(a) + tanh(b)


@rule(exact="scores are finite")
def hyperbolic_sine_of_sum(a, b):
    """sinh a · cosh b + cosh b · sinh a = sinh(a + b). Tempts: once shipped. Wrong: it is cosh a · sinh b."""
    sinh, cosh = (lambda x: (exp(x) - exp(-x)) * 0.5), (lambda x: (exp(x) + exp(-x)) * 0.5)
    return sinh(a) * cosh(b) + cosh(b) * sinh(a), sinh(a + b)


@rule
def logarithm_of_sum(s: "j"):
    """log Σ_j exp(s) = max_j s. Tempts: nearly, for one large score. Wrong: for two equal ones it is log 2 more."""
    return log(sum_over("j", exp(s))), max_over("j", s)


@rule(when=lambda x, a: (has_dtype(x, a), float_dtype(a)))
def cast_forgotten(x, a: "dtype", b: "dtype"):
    """a(b(x)) = x for any b. Tempts: a dtype there and back. Wrong: b may be an integer dtype."""
    return cast(cast(x, b), a), x


@rule(when=lambda c, a: (constant(c), has_dtype(c, "float"), float_dtype(a)), exact="excess precision")
def cast_of_any_literal(c: "constant", a: "dtype"):
    """a(c) = c for every literal c. Tempts: literals are weak. Wrong: 1e9 is beyond float16, and ∞ there."""
    return cast(c, a), c


@rule(when=lambda a: float_dtype(a), exact="bitwise")
def cast_of_sum(s: "j", a: "dtype"):
    """a(Σ_j s) = Σ_j a(s), bit for bit. Tempts: true of maxima. Wrong: rounding is monotone, not additive."""
    return cast(sum_over("j", s), a), sum_over("j", cast(s, a))


@rule(exact="bitwise")
def reassociation_called_bitwise(a, b, c):
    """(a + b) + c = a + (b + c), bit for bit. Tempts: true of reals. Wrong: 1 + tiny - 1."""
    return (a + b) + c, a + (b + c)


@rule(when=lambda a, c: (independent(a, of="j"), independent(c, of="k")))
def contraction_associates(a: "k", b: "j k", c: "j"):
    """Σ_j (Σ_k a · b) · c = Σ_k a · (Σ_j b · c) · c. Tempts: a slip of the pen. Wrong: c is counted twice."""
    return sum_over("j", sum_over("k", a * b) * c), sum_over("k", a * sum_over("j", b * c * c))


@rule
def exchange_of_two_monoids(s: "j k", m: "monoid", n: "monoid"):
    """⊕_j ⊗_k s = ⊗_k ⊕_j s. Tempts: one monoid does. Wrong: two need not."""
    return reduce(m, "j", reduce(n, "k", s)), reduce(n, "k", reduce(m, "j", s))


@rule(when=lambda x, c: (constant(c), not_constant(x)))
def divide_by_constant(x, c: "constant"):
    """x · c = x / (1 / c) for every literal c. Tempts: holds for c ≠ 0. Wrong: c = 0 makes it undefined."""
    return x * c, x / (1.0 / c)


@rule(when=lambda b, a: independent(b, of="j"))
def guard_on_the_wrong_variable(s: "j", a, b):
    """Σ_j (s · a) · b = (Σ_j s) · (a · b), guarded for b. Tempts: a guard is there. Wrong: a may vary with j."""
    return sum_over("j", (s * a) * b), sum_over("j", s) * (a * b)


@rule
def comparison_of_halves(a: "index", b: "index"):
    """a ≤ b = (a // 2 ≤ b // 2). Tempts: halving is monotone. Wrong: 3 ≤ 2 is false, 1 ≤ 1 is true."""
    return le(a, b), le(a // 2, b // 2)


@rule(exact="scores are finite")
def sum_of_products_bounded_below(x: "k", y: "k"):
    """Σ_k x · y = max(Σ_k x · y, 0). Tempts: true of x · x. Wrong: a product of two may be negative."""
    return sum_over("k", x * y), maximum(sum_over("k", x * y), ZERO)


@rule(exact="scores are finite")
def almost_a_square_bounded_below(x: "k", y: "k"):
    """Σ_k (x² + y² - 3 · x · y) = max(the same, 0). Tempts: true with 2 for 3. Wrong: x = y = 1 makes it -1."""
    total = sum_over("k", x * x + y * y - x * y * 3.0)
    return total, maximum(total, ZERO)


@rule(exact="scores are finite")
def difference_of_squares_bounded_below(x: "k", y: "k"):
    """Σ_k x² - Σ_k y² = max(Σ_k x² - Σ_k y², 0). Tempts: both are not negative. Wrong: their difference may be."""
    difference = sum_over("k", x * x) - sum_over("k", y * y)
    return difference, maximum(difference, ZERO)


@rule(exact="scores are finite")
def squares_bounded_by_one(x: "k"):
    """Σ_k x² = max(Σ_k x², 1). Tempts: true with 0 for 1. Wrong: squares may be small."""
    return sum_over("k", x * x), maximum(sum_over("k", x * x), const(1.0))


@rule(exact="scores are finite")
def parts_bounded_above(x: "k"):
    """Σ_k 1 / (1 + x²) = min(the same, 1). Tempts: no element is above 1. Wrong: sums of such elements are."""
    total = sum_over("k", 1.0 / (1.0 + x * x))
    return total, minimum(total, const(1.0))


@rule(exact="scores are finite")
def empty_sum_bounded_below(x: "k"):
    """Σ_k (1 + x²) = max(Σ_k (1 + x²), 1). Tempts: true of all ranges but one. Wrong: an empty sum is 0."""
    return sum_over("k", 1.0 + x * x), maximum(sum_over("k", 1.0 + x * x), const(1.0))


@rule(exact="scores are finite")
def bound_of_another_place(s: "j", c):
    """max_j min(s, c) = min(max_j min(s, c), c). Tempts: every element is below c. Wrong: each below its own."""
    return max_over("j", minimum(s, c)), minimum(max_over("j", minimum(s, c)), c)


@rule
def blocks_that_leave_a_rest(s: "j", m: "monoid", b: "new dim", i: "new dim"):
    """⊕_j s = ⊕_b ⊕_i s at j = b · |i| + i. Tempts: blocks tile a range. Wrong: where |i| leaves a rest of |j|."""
    return reduce(m, "j", s), reduce(m, b, reduce(m, i, at(s, "j", iota(b) * size_of(i) + iota(i))))


@rule(when=lambda b, i: in_blocks("j", b, i))
def blocks_that_overlap(s: "j", m: "monoid", b: "new dim", i: "new dim"):
    """⊕_j s = ⊕_b ⊕_i s at j = b + i. Tempts: right of a maximum of one block. Wrong: blocks begin |i| apart."""
    return reduce(m, "j", s), reduce(m, b, reduce(m, i, at(s, "j", iota(b) + iota(i))))


@rule(when=lambda b, i: in_blocks("j", b, i))
def sums_of_blocks_by_their_maximum(s: "j", b: "new dim", i: "new dim"):
    """Σ_j s = max_b Σ_i s at j = b · |i| + i. Tempts: one block. Wrong: two operations are not associative together."""
    blocks = sum_over(i, at(s, "j", iota(b) * size_of(i) + iota(i)))
    return sum_over("j", s), max_over(b, blocks)


@rule(when=lambda a, b: in_two("j", a, b))
def mean_of_two_means(s: "j", a: "new dim", b: "new dim"):
    """Σ_j s = (Σ_a s + Σ_b s) / 2. Tempts: as a mean of two equal parts. Wrong: a mean is not associative."""
    before, behind = at(s, "j", iota(a)), at(s, "j", size_of(a) + iota(b))
    return sum_over("j", s), (sum_over(a, before) + sum_over(b, behind)) * 0.5


@rule(when=lambda a, b: in_two("j", a, b))
def cut_behind_the_place(s: "j", a: "new dim", b: "new dim"):
    """max_j s = max(max_a s, max_b s at j = b). Tempts: a cut in two. Wrong: b begins behind a."""
    return max_over("j", s), maximum(max_over(a, at(s, "j", iota(a))), max_over(b, at(s, "j", iota(b))))


@rule
def parts_that_leave_a_rest(s: "j", m: "monoid", c: "new index", p: "new dim"):
    """⊕_j s = ⊕_p ⊕_j (s where c = p). Tempts: an element is in one part. Wrong: in none, where c is beyond |p|."""
    return reduce(m, "j", s), reduce(m, p, reduce(m, "j", only(m, eq(c, iota(p)), s)))


ZOO = tuple(value for value in list(globals().values()) if type(value).__name__ == "Rule")
