"""Laws of products.

A matrix product is a sum of products, so its reassociation follows from these and the laws of sums.
"""

from ..egraph import independent, rule
from ..egraph.ops import sum_over


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


ALGEBRA = (product_commutes, product_associates, quotient_times, contraction_associates)
