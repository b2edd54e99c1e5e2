"""Laws of products.

A matrix product is a sum of products. So its reassociation follows from these laws and the laws of sums.
"""

from ..egraph import apart, has_dtype, independent, rule
from ..egraph.terms.ops import cast, maximum, sum_over


@rule(exact="bitwise")
def product_commutes(a, b):
    """a · b = b · a"""
    return a * b, b * a


@rule(both=True)
def product_associates(a, b, c):
    """(a · b) · c = a · (b · c)"""
    return (a * b) * c, a * (b * c)


@rule(both=True)
def quotient_times(a, b, c):
    """(a / c) · b = (a · b) / c"""
    return (a / c) * b, (a * b) / c


@rule(when=lambda a, c: (independent(a, of="j"), independent(c, of="k")), exact="masked values are finite")
def contraction_associates(a: "k", b: "j k", c: "j"):
    """Σ_j (Σ_k a · b) · c = Σ_k a · (Σ_j b · c) when a does not depend on j and c not on k"""
    return sum_over("j", sum_over("k", a * b) * c), sum_over("k", a * sum_over("j", b * c))


# On the right side, matrix units compute the distances. A product of bfloat16 numbers is exact in float32, and a sum of
# products has a relative error of about 2^-23. A change of the inputs by half a unit in the last place of bfloat16
# changes the distance by far more. For float16 it does not, so the laws are for bfloat16 only. The maximum keeps the
# result from being negative. If x and y are rows of one tensor (`apart` is false), the distance of a row to itself must
# be exactly 0, so the differences stay.
@rule(
    when=lambda x, y: (has_dtype(x, "bfloat16"), has_dtype(y, "bfloat16"), apart(x, y)),
    exact="half inputs are finite and rounded",
)
def distance_by_product(x: "k", y: "k"):
    """Σ_k (x - y)² = max(Σ_k x² + Σ_k y² - 2 · Σ_k x · y, 0) for x, y of bfloat16, not read alike"""
    a, b = cast(x, "float32"), cast(y, "float32")
    squares = sum_over("k", a * a) + sum_over("k", b * b)
    return sum_over("k", (a - b) * (a - b)), maximum(squares - sum_over("k", a * b) * 2.0, 0.0)


@rule(
    when=lambda x, y: (has_dtype(x, "bfloat16"), has_dtype(y, "bfloat16"), apart(x, y)),
    exact="half inputs are finite and rounded",
)
def distance_by_product_over_two(x: "j k", y: "j k"):
    """Σ_j Σ_k (x - y)² = max(Σ_j Σ_k x² + Σ_j Σ_k y² - 2 · Σ_j Σ_k x · y, 0) for x, y of bfloat16, not read alike"""
    a, b = cast(x, "float32"), cast(y, "float32")
    total = lambda s: sum_over("j", sum_over("k", s))
    return total((a - b) * (a - b)), maximum(total(a * a) + total(b * b) - total(a * b) * 2.0, 0.0)


ALGEBRA = (
    product_commutes,
    product_associates,
    quotient_times,
    contraction_associates,
    distance_by_product,
    distance_by_product_over_two,
)
