"""Simplifies integer index terms: affine normal form, and floordiv and mod of it where ranges are known.

Only integer and bool subterms change. The laws are (a·g + b)//g = a + b//g, x//g = 0 and x%g = x for 0 <= x < g,
(x//g)·g + x%g = x, (x//a)//b = x//(a·b), (a·x + b)//(a·g) = x//g for 0 <= b < a, and x//-g = (-x)//g. Example:
(8·i + j)//8 is i, for 0 <= j < 8.
"""

from __future__ import annotations

from functools import lru_cache, reduce
from math import gcd
from typing import NamedTuple

from .affine import Affine, affine, bounds, combine, compare, to_term
from .ops import const, make
from .term import Term
from .traversal import operands, rebuild

MAX_NODES_KEPT = 8192
_ARITHMETIC = ("add", "sub", "mul", "neg")


def simplify_index(root: Term) -> Term:
    """The same term with every integer subterm and every comparison of integers in normal form."""
    return rebuild(root, simplify_node)


@lru_cache(MAX_NODES_KEPT)
def simplify_node(node: Term, args: tuple[Term, ...]) -> Term:
    """One node with simplified arguments, simplified: the step of `simplify_index`.

    Memoised, because a compile simplifies the same indices again and again: they stay, and what is around them changes.
    """
    if node.op in ("lt", "le", "eq") and args[0].dtype == "int64" == args[1].dtype:
        return _without_abs(compare(node.op, *args))
    if node.op in ("and", "or", "not", "where"):
        return _logic(node.op, args)
    if node.dtype != "int64" or not args:
        return node if args == node.args else make(node.op, args, node.attrs)
    if node.op in _ARITHMETIC:
        return to_term(_rejoin(affine(make(node.op, args))))
    if node.op == "floordiv":
        return floordiv(*args)
    if node.op == "mod":
        return mod(*args)
    if node.op in ("minimum", "maximum"):
        return _extremum(node.op, *args)
    return make(node.op, args, node.attrs)


def _extremum(op: str, x: Term, y: Term) -> Term:
    """The minimum or the maximum of two terms; one of them, if their bounds tell which."""
    low, high = bounds(to_term(combine(affine(x), affine(y), -1)))
    if high is not None and high <= 0:
        return x if op == "minimum" else y
    if low is not None and low >= 0:
        return y if op == "minimum" else x
    return make(op, (x, y))


def _without_abs(p: Term) -> Term:
    """|x| ≤ y as -y ≤ x ∧ x ≤ y: loop limits can be read from two affine comparisons, not from one of |x|."""
    if p.op in ("le", "lt") and p.args[0].op == "abs":
        x, y = p.args[0].args[0], p.args[1]
        return make("and", (compare(p.op, to_term(affine(-y)), x), compare(p.op, x, y)))
    return p


def floordiv(x: Term, g: Term) -> Term:
    """x // g in normal form. A negative literal g gives (-x) // -g, so that divisors are positive elsewhere."""
    if _is_negative(g):
        return floordiv(to_term(affine(-x)), const(-g.attrs[0]))
    if rounded := _nearest_multiple(x, g):
        return to_term(rounded[0])
    whole, rest = _split(x, g)
    if _below(rest, g):
        return to_term(whole)
    if scaled := _without_fraction(rest, g):
        return to_term(combine(whole, affine(floordiv(to_term(scaled.multiple), const(scaled.divisor))), 1))
    rest_term = to_term(rest)
    if rest_term.op == "floordiv" and _is_positive(g) and _is_positive(rest_term.args[1]):
        rest_term, g = rest_term.args[0], simplify_node(g * rest_term.args[1], (g, rest_term.args[1]))
    return to_term(combine(whole, affine(make("floordiv", (rest_term, g))), 1))


def mod(x: Term, g: Term) -> Term:
    """x % g in normal form. A negative literal g gives -((-x) % -g)."""
    if _is_negative(g):
        return to_term(affine(-mod(to_term(affine(-x)), const(-g.attrs[0]))))
    if rounded := _nearest_multiple(x, g):
        return to_term(rounded[1])
    _, rest = _split(x, g)
    if _below(rest, g):
        return to_term(rest)
    if scaled := _without_fraction(rest, g):
        multiple = affine(mod(to_term(scaled.multiple), const(scaled.divisor)))
        return to_term(combine(scaled.fraction, multiple, scaled.factor))
    inner = to_term(rest)
    if inner.op == "mod" and _is_positive(g) and _is_positive(inner.args[1]):
        if inner.args[1].attrs[0] % g.attrs[0] == 0:
            inner = inner.args[0]
    return make("mod", (inner, g))


class _Scaled(NamedTuple):
    """A form as factor · multiple + fraction with 0 <= fraction < factor, and a literal divisor over the factor."""

    factor: int
    multiple: Affine
    fraction: Affine
    divisor: int


def _without_fraction(form: Affine, g: Term) -> _Scaled | None:
    """The form as a multiple of a divisor of g and a rest that the division by g never sees; None if it is none.

    Example: 32 · j + i over 512 is j over 16, for 0 <= i < 32.
    """
    coefficients, constant = form
    if not _is_positive(g):
        return None
    for factor in sorted({gcd(c, g.attrs[0]) for c in coefficients.values()} - {1, g.attrs[0]}, reverse=True):
        fraction = {a: c for a, c in coefficients.items() if c % factor}, constant % factor
        if fraction != ({}, 0) and _below(fraction, const(factor)):
            multiple = {a: c // factor for a, c in coefficients.items() if c % factor == 0}, constant // factor
            return _Scaled(factor, multiple, fraction, g.attrs[0] // factor)
    return None


def _is_positive(g: Term) -> bool:
    return g.op == "const" and g.attrs[0] > 0


def _is_negative(g: Term) -> bool:
    return g.op == "const" and g.attrs[0] < 0


def _split(x: Term, g: Term) -> tuple[Affine, Affine]:
    """whole and rest with x = whole · g + rest; whole has every atom that is visibly a multiple of g."""
    coefficients, constant = affine(x)
    whole: Affine = ({}, 0)
    rest: Affine = ({}, constant)
    if _is_positive(g):
        divisor = g.attrs[0]
        whole, rest = ({}, constant // divisor), ({}, constant % divisor)
    for atom, c in coefficients.items():
        if _is_positive(g) and c % g.attrs[0] == 0:
            whole = combine(whole, affine(atom), c // g.attrs[0])
        elif (quotient := _quotient(atom, g)) is not None:
            whole = combine(whole, affine(quotient), c)
        else:
            rest = combine(rest, ({atom: 1}, 0), c)
    return whole, rest


def _nearest_multiple(x: Term, g: Term) -> tuple[Affine, Affine] | None:
    """whole and rest with x = whole · g + rest and 0 <= rest < g, from the multiples of g nearest to coefficients.

    None if the bounds do not prove 0 <= rest < g. Example: for g = 66, 65 · i + j is i · 66 + (j - i).
    """
    if not _is_positive(g):
        return None
    divisor, (coefficients, constant) = g.attrs[0], affine(x)
    times = {atom: (2 * c + divisor) // (2 * divisor) for atom, c in coefficients.items()}
    rest: Affine = ({a: r for a, c in coefficients.items() if (r := c - times[a] * divisor)}, constant)
    low, high = bounds(to_term(rest))
    if low is None or high is None or low // divisor != high // divisor:
        return None
    k = low // divisor
    return ({a: n for a, n in times.items() if n}, k), (rest[0], constant - k * divisor)


def _quotient(atom: Term, g: Term) -> Term | None:
    """atom / g for a symbolic g, if the atom is g or a product with the factor g; else None."""
    if atom is g:
        return const(1)
    if atom.op != "mul":
        return None
    left, right = atom.args
    if (found := _quotient(left, g)) is not None:
        return right if found is const(1) else found * right
    found = _quotient(right, g)
    return None if found is None else left if found is const(1) else left * found


def _below(form: Affine, g: Term) -> bool:
    """Whether 0 <= form < g is known."""
    x = to_term(form)
    if _is_positive(g):
        low, high = bounds(x)
        return low is not None and high is not None and 0 <= low and high < g.attrs[0]
    if x.op == "mod" and x.args[1] is g:
        return True
    return x.op == "iota" and g.op == "size" and x.attrs[0].size == g.attrs[0]


def _rejoin(form: Affine) -> Affine:
    """Applies c·g·(x // g) + c·(x % g) = c·x wherever the form has both parts."""
    for atom, c in form[0].items():
        if atom.op != "mod":
            continue
        x, g = atom.args
        quotient = floordiv(x, g)
        multiple = affine(quotient * g)
        if all(form[0].get(part) == c * k for part, k in multiple[0].items()) and not multiple[1]:
            return _rejoin(combine(combine(combine(form, multiple, -c), ({atom: 1}, 0), -c), affine(x), c))
    return form


def _logic(op: str, args: tuple[Term, ...]) -> Term:
    """and, or, not and where, simplified if an operand is a literal, or if a nested operand is there twice."""
    literal = [a.attrs[0] if a.op == "const" else None for a in args]
    if op == "not":
        return negate(args[0])
    if op == "where":
        if literal[0] is not None:
            return _chosen(args[1] if literal[0] else args[2], args)
        return args[0] if literal[1] is True and literal[2] is False else make(op, args)
    absorbing = op == "or"
    for mine, other in ((0, 1), (1, 0)):
        if isinstance(literal[mine], bool):
            return const(absorbing) if literal[mine] is absorbing else args[other]
    return _without_repeated(op, *args)


def _without_repeated(op: str, one: Term, other: Term) -> Term:
    """one ∧ other, or one ∨ other, with each nested operand once: p ∧ (p ∧ q) is p ∧ q."""
    mine, others = operands(one, op), operands(other, op)
    more = [x for x in others if x not in mine]
    if len(more) == len(others):
        return make(op, (one, other))
    return other if set(mine) <= set(others) else reduce(lambda p, q: make(op, (p, q)), more, one)


def _chosen(branch: Term, args: tuple[Term, ...]) -> Term:
    """The branch if it has the dtype of the choice; else the choice, because a weak literal would lose the dtype."""
    return branch if branch.dtype == make("where", args).dtype else make("where", args)


def negate(p: Term) -> Term:
    """not p; a literal, an integer comparison or a double negation is simplified."""
    if p.op == "const":
        return const(not p.attrs[0])
    if p.op == "not":
        return p.args[0]
    if p.op in ("le", "lt") and p.args[0].dtype == "int64" == p.args[1].dtype:
        return compare("lt" if p.op == "le" else "le", p.args[1], p.args[0])
    return make("not", (p,))
