"""Integer index terms in affine normal form, with intervals: Σ coefficient · atom + constant, atoms in a fixed order.

Sums and multiples are decided here by linear arithmetic; what floordiv and mod do to them are laws of rules/layout.py.
"""

from __future__ import annotations

from collections.abc import Mapping

from .ops import INTEGER_RANGES, const, make
from .term import Dim, Term
from .traversal import subterms

Affine = tuple[dict[Term, int], int]
Ends = tuple[int | None, int | None]
HELD = {"bool": (0, 1)} | {dtype: INTEGER_RANGES[dtype] for dtype in ("uint8", "int8", "int16")}


def affine(x: Term) -> Affine:
    """Coefficients of the atoms (iota, load, floordiv, mod, size, ...) and the constant of an integer term."""
    match x.op:
        case "const" if isinstance(x.attrs[0], int):
            return {}, int(x.attrs[0])
        case "add":
            return combine(affine(x.args[0]), affine(x.args[1]), 1)
        case "sub":
            return combine(affine(x.args[0]), affine(x.args[1]), -1)
        case "neg":
            return combine(({}, 0), affine(x.args[0]), -1)
        case "mul":
            left, right = affine(x.args[0]), affine(x.args[1])
            if not left[0]:
                left, right = right, left
            if not right[0]:
                return combine(({}, 0), left, right[1])
            if len(left[0]) + bool(left[1]) + len(right[0]) + bool(right[1]) > 2:
                return _distributed(left, right)
    return {x: 1}, 0


def _distributed(left: Affine, right: Affine) -> Affine:
    """The product of two sums as a sum of products."""
    form: Affine = ({}, left[1] * right[1])
    for one, c in left[0].items():
        form = combine(form, ({one: 1}, 0), c * right[1])
        for other, k in right[0].items():
            form = combine(form, ({one * other: 1}, 0), c * k)
    for other, k in right[0].items():
        form = combine(form, ({other: 1}, 0), k * left[1])
    return form


def combine(left: Affine, right: Affine, factor: int) -> Affine:
    """left + factor · right."""
    coefficients = dict(left[0])
    for atom, c in right[0].items():
        coefficients[atom] = coefficients.get(atom, 0) + factor * c
    return {a: c for a, c in coefficients.items() if c}, left[1] + factor * right[1]


def to_term(form: Affine) -> Term:
    """The normal form as a term: atoms by name, the constant last, subtraction only for negative parts."""
    coefficients, constant = form
    ordered = sorted(coefficients.items(), key=lambda item: (item[1] < 0, repr(item[0])))
    result: Term | None = None
    for atom, c in ordered:
        if result is None:
            result = atom if c == 1 else atom * const(c)
            continue
        part = atom if abs(c) == 1 else atom * const(abs(c))
        result = result + part if c > 0 else result - part
    if result is None:
        return const(constant)
    return result + const(constant) if constant > 0 else result - const(-constant) if constant < 0 else result


def bounds(x: Term, known: Mapping[Term, Ends] | None = None) -> Ends:
    """Least and largest value of an integer term from its dims' sizes (None: unbounded); `known` bounds some atoms."""
    coefficients, constant = affine(x)
    rest, largest = _beside_sizes(coefficients)
    low: int | None = constant if rest == coefficients else None
    coefficients, high = rest, constant + largest
    for atom, c in coefficients.items():
        ends = (known or {}).get(atom) or _atom_bounds(atom, known)
        a, b = ends if c > 0 else (ends[1], ends[0])
        low = None if low is None or a is None else low + c * a
        high = None if high is None or b is None else high + c * b
    return low, high


def _beside_sizes(coefficients: dict[Term, int]) -> tuple[dict[Term, int], int]:
    """Without coordinates that meet their own symbolic size, c · (i - size) ≤ -c; and the sum of these bounds."""
    rest, largest = dict(coefficients), 0
    for atom, c in coefficients.items():
        if atom.op == "iota" and isinstance(atom.attrs[0].size, str) and c > 0:
            sizes, constant = linear_size(atom.attrs[0].size)
            if all(n > 0 and rest.get(size, 0) <= -c * n for size, n in sizes.items()):
                del rest[atom]
                rest |= {size: rest[size] + c * n for size, n in sizes.items()}
                largest += c * (constant - 1)
    return {a: c for a, c in rest.items() if c}, largest


def length(dim: Dim) -> Term:
    """How many places a dim has: a number, or its size by name."""
    return const(dim.size) if isinstance(dim.size, int) else make("size", (), (dim.size,))


def linear_size(text: str) -> Affine:
    """A symbolic size, affine where it is a sum of symbols and their multiples ("2*s0 + s1 + 1"), else one atom."""
    form: Affine = ({}, 0)
    for part in text.split(" + "):
        times, _, name = part.rpartition("*")
        if part.isdecimal():
            form = form[0], form[1] + int(part)
        elif name.isidentifier() and (not times or times.isdecimal()):
            form = combine(form, ({make("size", (), (name,)): 1}, 0), int(times or 1))
        else:
            return {make("size", (), (text,)): 1}, 0
    return form


def _atom_bounds(atom: Term, known):
    if atom.op == "iota":
        size = atom.attrs[0].size
        return 0, (size - 1 if isinstance(size, int) else None)
    if atom.op == "size":
        return 0, None
    if atom.op in ("floordiv", "mod") and atom.args[1].op == "const" and atom.args[1].attrs[0]:
        return _division_bounds(atom.op, bounds(atom.args[0], known), atom.args[1].attrs[0])
    if atom.op == "abs":
        ends = bounds(atom.args[0], known)
        return 0, (None if None in ends else max(map(abs, ends)))
    if atom.op == "cast":
        return HELD.get(atom.args[0].dtype, (None, None))
    if atom.op == "mul":
        return _product_bounds(*(bounds(x, known) for x in atom.args))
    if atom.op == "where":
        lows, highs = zip(*(bounds(x, known) for x in atom.args[1:]), strict=True)
        return None if None in lows else min(lows), None if None in highs else max(highs)
    if atom.op in ("maximum", "minimum"):
        return _extreme_bounds(atom.op == "maximum", [bounds(x, known) for x in atom.args])
    return None, None


def _product_bounds(one: Ends, other: Ends) -> Ends:
    if None in (*one, *other):
        return None, None
    found = [a * b for a in one for b in other]
    return min(found), max(found)


def _division_bounds(op: str, ends: Ends, divisor: int) -> Ends:
    """Of a quotient, which falls as a negative divisor's dividend rises, or of a rest, which has its divisor's sign."""
    if op == "mod":
        return (0, divisor - 1) if divisor > 0 else (divisor + 1, 0)
    low, high = (None if end is None else end // divisor for end in ends)
    return (low, high) if divisor > 0 else (high, low)


def _extreme_bounds(largest: bool, ends: list[Ends]) -> Ends:
    """Of the largest of some values, or the least: one end from any that is known, the other only from all."""
    pick = max if largest else min
    lows, highs = ([e[n] for e in ends] for n in range(2))
    near, far = (lows, highs) if largest else (highs, lows)
    one = pick((x for x in near if x is not None), default=None)
    other = None if None in far else pick(far)
    return (one, other) if largest else (other, one)


def split_multiple(x: Term, divisor: int) -> tuple[Term, Term]:
    """x = a · divisor + rest, with every multiple of the divisor in a."""
    coefficients, constant = affine(x)
    whole = {atom: c // divisor for atom, c in coefficients.items() if c % divisor == 0}
    rest = {atom: c for atom, c in coefficients.items() if c % divisor}
    return to_term((whole, constant // divisor)), to_term((rest, constant % divisor))


def compare(op: str, left: Term, right: Term) -> Term:
    """le, lt or eq of two integer terms in normal form: le only (a < b is a + 1 ≤ b), nothing on both sides twice, the
    constant on the side that reads nothing.
    """
    form = combine(affine(left), affine(right), -1)
    if op == "lt":
        op, form = "le", (form[0], form[1] + 1)
    low, high = bounds(to_term(form))
    if op == "le" and high is not None and high <= 0:
        return const(True)
    if op == "le" and low is not None and low > 0:
        return const(False)
    positive = {a: c for a, c in form[0].items() if c > 0}
    negative = {a: -c for a, c in form[0].items() if c < 0}
    if op == "eq" and (low, high) == (0, 0):
        return const(True)
    k = form[1]
    if op == "eq" and repr(to_term((positive, 0))) > repr(to_term((negative, 0))):
        positive, negative, k = negative, positive, -k
    reads = lambda side: any(n.op == "load" for a in side for n in subterms(a))
    one, other = map(reads, (positive, negative)) if k else (False, False)
    if one != other and (k > 0) == one:  # a sum with data may overflow
        return make(op, (to_term((positive, 0 if one else k)), to_term((negative, -k if one else 0))))
    return make(op, (to_term((positive, max(k, 0))), to_term((negative, max(-k, 0)))))
