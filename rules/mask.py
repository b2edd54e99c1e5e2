"""Laws of masks. A masked element is absent: it is the identity of its reduction, -∞ for a maximum and 0 for a sum.

The laws bring every spelling to where(kept, x, identity) at the root of the reduced body. Planning reads the bounds of
loops from there.
"""

from math import inf

from ..egraph import float_dtype, has_dtype, independent, integer, nonzero, not_constant, positive, rule
from ..egraph.terms.ops import cast, const, exp, le, logical_not, lt, sum_over, where

ABSENT = const(-inf)
ZERO = const(0.0)
FINITE = "masked values are finite"


@rule(exact="bitwise")
def hidden_first_score(p: "predicate", s):
    """where(p, -∞, s) = where(¬p, s, -∞)"""
    return where(p, ABSENT, s), where(~p, s, ABSENT)


@rule(when=lambda s: not_constant(s), exact="bitwise")
def hidden_first_term(p: "predicate", s):
    """where(p, 0, s) = where(¬p, s, 0)"""
    return where(p, ZERO, s), where(~p, s, ZERO)


@rule(exact="scores are finite")
def mask_added_right(p: "predicate", s):
    """s + where(p, 0, -∞) = where(p, s, -∞)"""
    return s + where(p, ZERO, ABSENT), where(p, s, ABSENT)


@rule(exact="scores are finite")
def mask_added_left(p: "predicate", s):
    """where(p, 0, -∞) + s = where(p, s, -∞)"""
    return where(p, ZERO, ABSENT) + s, where(p, s, ABSENT)


@rule(exact="scores are finite")
def bias_added_to_masked(p: "predicate", s, t):
    """where(p, s, -∞) + t = where(p, s + t, -∞)"""
    return where(p, s, ABSENT) + t, where(p, s + t, ABSENT)


@rule(exact="scores are finite")
def masked_added_to_bias(p: "predicate", s, t):
    """t + where(p, s, -∞) = where(p, t + s, -∞)"""
    return t + where(p, s, ABSENT), where(p, t + s, ABSENT)


@rule(when=lambda c: positive(c), exact="bitwise")
def masked_scaled(p: "predicate", s, c: "constant"):
    """where(p, s, -∞) · c = where(p, s · c, -∞) for c > 0"""
    return where(p, s, ABSENT) * c, where(p, s * c, ABSENT)


@rule(exact="bitwise")
def mask_of_masked(p: "predicate", q: "predicate", s, f):
    """where(p, where(q, s, f), f) = where(p ∧ q, s, f)"""
    return where(p, where(q, s, f), f), where(p & q, s, f)


@rule(exact="bitwise")
def exponential_of_masked(p: "predicate", s):
    """exp(where(p, s, -∞)) = where(p, exp(s), 0)"""
    return exp(where(p, s, ABSENT)), where(p, exp(s), ZERO)


@rule(when=lambda s, a: (float_dtype(a), has_dtype(s, a)), exact=FINITE)
def truth_times_exponential(p: "predicate", s, a: "dtype"):
    """a(p) · exp(s) = where(p, exp(s), 0) for s of dtype a"""
    return cast(p, a) * exp(s), where(p, exp(s), ZERO)


@rule(when=lambda s, a: (float_dtype(a), has_dtype(s, a)), exact=FINITE)
def exponential_times_truth(p: "predicate", s, a: "dtype"):
    """exp(s) · a(p) = where(p, exp(s), 0) for s of dtype a"""
    return exp(s) * cast(p, a), where(p, exp(s), ZERO)


@rule(exact=FINITE)
def masked_term_times(p: "predicate", s, w):
    """where(p, s, 0) · w = where(p, s · w, 0)"""
    return where(p, s, ZERO) * w, where(p, s * w, ZERO)


@rule(exact=FINITE)
def times_masked_term(p: "predicate", s, w):
    """w · where(p, s, 0) = where(p, w · s, 0)"""
    return w * where(p, s, ZERO), where(p, w * s, ZERO)


@rule(when=lambda p: independent(p, of="j"), exact="bitwise")
def choice_out_of_sum(p: "predicate", s: "j"):
    """Σ_j where(p, s, 0) = where(p, Σ_j s, 0) when p does not depend on j"""
    return sum_over("j", where(p, s, ZERO)), where(p, sum_over("j", s), ZERO)


@rule
def masked_sum_of_sum(p: "predicate", s: "j", t: "j"):
    """Σ_j where(p, s + t, 0) = Σ_j where(p, s, 0) + Σ_j where(p, t, 0)"""
    masked = lambda x: sum_over("j", where(p, x, ZERO))
    return masked(s + t), masked(s) + masked(t)


@rule(when=lambda s, c: (nonzero(c), not_constant(s)))
def constant_out_of_masked_sum(p: "predicate", s: "j", c: "constant"):
    """Σ_j where(p, s · c, 0) = (Σ_j where(p, s, 0)) · c for a finite literal c ≠ 0"""
    return sum_over("j", where(p, s * c, ZERO)), sum_over("j", where(p, s, ZERO)) * c


@rule(exact="bitwise")
def choice_of_equals(p: "predicate", x):
    """where(p, x, x) = x"""
    return where(p, x, x), x


@rule(exact="bitwise")
def choice_of_true(x, y):
    """where(true, x, y) = x"""
    return where(const(True), x, y), x


@rule(exact="bitwise")
def choice_of_false(x, y):
    """where(false, x, y) = y"""
    return where(const(False), x, y), y


@rule(exact="bitwise")
def not_not(p: "predicate"):
    """¬¬p = p"""
    return ~~p, p


@rule(when=lambda a, b: (integer(a), integer(b)), exact="bitwise")
def not_less(a: "index", b: "index"):
    """¬(a < b) = b ≤ a for integers"""
    return logical_not(lt(a, b)), le(b, a)


@rule(when=lambda a, b: (integer(a), integer(b)), exact="bitwise")
def not_at_most(a: "index", b: "index"):
    """¬(a ≤ b) = b < a for integers"""
    return logical_not(le(a, b)), lt(b, a)


@rule(exact="bitwise")
def not_and(p: "predicate", q: "predicate"):
    """¬(p ∧ q) = ¬p ∨ ¬q"""
    return ~(p & q), ~p | ~q


@rule(exact="bitwise")
def not_or(p: "predicate", q: "predicate"):
    """¬(p ∨ q) = ¬p ∧ ¬q"""
    return ~(p | q), ~p & ~q


@rule(exact="bitwise")
def true_and(p: "predicate"):
    """true ∧ p = p"""
    return const(True) & p, p


@rule(exact="bitwise")
def and_true(p: "predicate"):
    """p ∧ true = p"""
    return p & const(True), p


@rule(exact="bitwise")
def false_or(p: "predicate"):
    """false ∨ p = p"""
    return const(False) | p, p


@rule(exact="bitwise")
def or_false(p: "predicate"):
    """p ∨ false = p"""
    return p | const(False), p


ADDED = (mask_added_right, mask_added_left, bias_added_to_masked, masked_added_to_bias)
NORMAL = (
    choice_of_equals,
    choice_of_true,
    choice_of_false,
    not_not,
    not_less,
    not_at_most,
    not_and,
    not_or,
    true_and,
    and_true,
    false_or,
    or_false,
    *ADDED,
    hidden_first_score,
    hidden_first_term,
    masked_scaled,
    mask_of_masked,
    exponential_of_masked,
    masked_term_times,
    times_masked_term,
    choice_out_of_sum,
)
# These are used for gradients only. In a forward they would mask the sums and not the maximum, which would then need a
# loop of its own.
CHOSEN_BY_TRUTH = (truth_times_exponential, exponential_times_truth)
