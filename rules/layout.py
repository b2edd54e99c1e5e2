"""Laws of index arithmetic. A view is an index term; these laws undo a merge of axes that is followed by a split.

Sums and multiples of coordinates are in affine normal form (egraph/terms/affine.py) when these laws are tried.
"""

from ..egraph import in_range, nonzero, rule
from ..egraph.terms.ops import const


@rule(when=lambda g: nonzero(g), exact="bitwise")
def quotient_of_multiple_and_rest(a: "index", b: "index", g: "index constant"):
    """(a · g + b) // g = a + b // g"""
    return (a * g + b) // g, a + b // g


@rule(when=lambda g: nonzero(g), exact="bitwise")
def remainder_of_multiple_and_rest(a: "index", b: "index", g: "index constant"):
    """(a · g + b) % g = b % g"""
    return (a * g + b) % g, b % g


@rule(when=lambda b, g: in_range(b, g), exact="bitwise")
def quotient_of_small(b: "index", g: "index constant"):
    """b // g = 0 when 0 ≤ b < g"""
    return b // g, const(0)


@rule(when=lambda b, g: in_range(b, g), exact="bitwise")
def remainder_of_small(b: "index", g: "index constant"):
    """b % g = b when 0 ≤ b < g"""
    return b % g, b


@rule(when=lambda g, h: (nonzero(g), nonzero(h)), exact="sizes are positive")
def quotient_of_quotient(a: "index", g: "index constant", h: "index constant"):
    """(a // g) // h = a // (g · h) for positive g, h"""
    return (a // g) // h, a // (g * h)


@rule(when=lambda g: nonzero(g), exact="bitwise")
def quotient_and_remainder(a: "index", g: "index constant"):
    """(a // g) · g + a % g = a"""
    return (a // g) * g + a % g, a


NORMAL = (
    quotient_of_multiple_and_rest,
    remainder_of_multiple_and_rest,
    quotient_of_small,
    remainder_of_small,
    quotient_of_quotient,
    quotient_and_remainder,
)
