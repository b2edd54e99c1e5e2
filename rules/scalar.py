"""Laws of scalars: literals move to the right and are multiplied, and casts that only round disappear.

No law here adds, removes or changes a reduction.
"""

from ..egraph import constant, float_dtype, has_dtype, nonzero, not_absorbed, not_constant, rule, within
from ..egraph.terms.ops import cast, maximum, where


@rule(when=lambda x, c: (nonzero(c), not_constant(x)))
def divide_by_constant(x, c: "constant"):
    """x / c = x · (1 / c)"""
    return x / c, x * (1.0 / c)


@rule(when=lambda x, c: (constant(c), not_constant(x)), exact="bitwise")
def constant_goes_right(x, c: "constant"):
    """c · x = x · c"""
    return c * x, x * c


@rule(when=lambda c, d: (constant(c), constant(d)))
def constants_meet(x, c: "constant", d: "constant"):
    """(x · c) · d = x · (c · d)"""
    return (x * c) * d, x * (c * d)


@rule(when=lambda y, c: (constant(c), not_constant(y)))
def constant_leaves_left_factor(x, y, c: "constant"):
    """(x · c) · y = (x · y) · c"""
    return (x * c) * y, (x * y) * c


@rule(when=lambda x, c: (constant(c), not_constant(x)))
def constant_leaves_right_factor(x, y, c: "constant"):
    """x · (y · c) = (x · y) · c"""
    return x * (y * c), (x * y) * c


@rule(exact="bitwise")
def multiply_by_one(x):
    """x · 1 = x"""
    return x * 1.0, x


@rule(exact="bitwise")
def subtract_zero(x):
    """x - 0 = x"""
    return x - 0.0, x


@rule(exact="a zero has no sign")
def add_zero(x):
    """x + 0 = x"""
    return x + 0.0, x


@rule(
    when=lambda x, a, b: (has_dtype(x, a), float_dtype(a), float_dtype(b), not_absorbed(x, b)),
    exact="excess precision",
)
def cast_there_and_back(x, a: "dtype", b: "dtype"):
    """a(b(x)) = x for x of dtype a: a rounding in between is dropped, but for one that makes masked rows alike"""
    return cast(cast(x, b), a), x


@rule(when=lambda x, a: has_dtype(x, a), exact="bitwise")
def cast_to_itself(x, a: "dtype"):
    """a(x) = x for x of dtype a"""
    return cast(x, a), x


@rule(exact="bitwise")
def cast_of_choice(p: "predicate", x, y, a: "dtype"):
    """a(where(p, x, y)) = where(p, a(x), a(y))"""
    return cast(where(p, x, y), a), where(p, cast(x, a), cast(y, a))


@rule(when=lambda c, a: (constant(c), has_dtype(c, "float"), within(c, a)), exact="excess precision")
def cast_of_constant(c: "constant", a: "dtype"):
    """a(c) = c for c within the range of a: floating literals are weak, they take the dtype of what they meet"""
    return cast(c, a), c


@rule(exact="scores are finite")
def shift_out_of_maximum(a, b, c):
    """max(a - c, b - c) = max(a, b) - c: rounding is monotone"""
    return maximum(a - c, b - c), maximum(a, b) - c


@rule(exact="scores are finite")
def shifts_cancel(a, b, c):
    """(a - c) - (b - c) = a - b"""
    return (a - c) - (b - c), a - b


@rule(exact="scores are finite")
def sum_is_subtracted_in_turn(a, b, c):
    """a - (b + c) = (a - b) - c"""
    return a - (b + c), (a - b) - c


ALGEBRA = (shift_out_of_maximum, shifts_cancel)
# Where b may be as large as a mask's number, b + c would have absorbed c.
LARGE_ONES_MEET = (shifts_cancel, sum_is_subtracted_in_turn)
NORMAL = (
    cast_to_itself,
    cast_there_and_back,
    cast_of_choice,
    cast_of_constant,
    divide_by_constant,
    constant_goes_right,
    constants_meet,
    constant_leaves_left_factor,
    constant_leaves_right_factor,
    multiply_by_one,
    subtract_zero,
    add_zero,
)
