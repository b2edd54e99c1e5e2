"""The laws of what kernels store for one another, and of reductions that are done in parts.

A stored value is the value. Read from right to left that law stores: a part gets a kernel of its own. Read from left to
right it demotes: the part is computed where it is read. A reduction in blocks or parts can have a kernel or a program
for each. No search uses these laws; cost decides what is stored, and what is reduced in how many parts. Planning and
launches apply them where that is decided, and what they make is read back by them (lowering/readback).
"""

from math import inf

from ..egraph import foldable, in_blocks, in_two, rule
from ..egraph.terms.ops import (
    at,
    combined,
    const,
    eq,
    iota,
    mantissa,
    only,
    reduce,
    rescaled_sum,
    scale,
    size_of,
    stored,
    where,
)


@rule(exact="bitwise")
def read_of_stored(x, t: "name"):
    """stored(x) = x: what a kernel reads in a tensor that another kernel stored is what was stored"""
    return stored(x, t), x


@rule(when=lambda b, i: in_blocks("j", b, i))
def reduction_in_blocks(s: "j", m: "monoid", b: "new dim", i: "new dim"):
    """⊕_j s = ⊕_b ⊕_i s at j = b · |i| + i when |j| = |b| · |i|, for every commutative monoid ⊕"""
    element = at(s, "j", iota(b) * size_of(i) + iota(i))
    return reduce(m, "j", s), reduce(m, b, reduce(m, i, element))


@rule(when=lambda m, a, b: (foldable(m), in_two("j", a, b)))
def reduction_cut_in_two(s: "j", m: "monoid", a: "new dim", b: "new dim"):
    """⊕_j s = (⊕_a s at j = a) ⊕ (⊕_b s at j = |a| + b) when |j| = |a| + |b|, for every monoid ⊕ with an operation"""
    before, behind = at(s, "j", iota(a)), at(s, "j", size_of(a) + iota(b))
    return reduce(m, "j", s), combined(m, reduce(m, a, before), reduce(m, b, behind))


@rule
def reduction_in_parts(s: "j", m: "monoid", c: "new index", p: "new dim"):
    """⊕_j s = ⊕_p ⊕_j (s where c mod |p| = p) for any index c, and every commutative monoid ⊕"""
    return reduce(m, "j", s), reduce(m, p, reduce(m, "j", only(m, eq(c % size_of(p), iota(p)), s)))


@rule(exact="bitwise")
def states_by_their_numbers(s: "j"):
    """⊕_j s = ⊕_j ⟨scale(s), mantissa(s)⟩ for states s of rescaled sums; 0 for the mantissa that an absent one lacks"""
    present = where(eq(scale(s), const(-inf)), const(0.0), mantissa(s))
    return reduce("rescaled", "j", s), rescaled_sum("j", scale(s), present)


DEMOTION = (
    read_of_stored,
    reduction_in_blocks,
    reduction_cut_in_two,
    reduction_in_parts,
    states_by_their_numbers,
)
