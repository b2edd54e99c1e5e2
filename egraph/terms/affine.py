"""Integer index terms in affine normal form, Σ coefficient · atom + constant, and the intervals of their values.

An atom is what linear arithmetic cannot look into: a coordinate, a size, a load, a quotient, a remainder. Atoms have a
fixed order, so that equal forms give equal terms. Example: 2 · i + i - 1 is the form ({i: 3}, -1).
The laws of floordiv and mod are in rules/layout.py.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from .ops import INTEGER_RANGES, const, make
from .term import Dim, Term
from .traversal import subterms

Affine = tuple[dict[Term, int], int]
Ends = tuple[int | None, int | None]  # the least and the largest value; None where there is no bound
Known = Mapping[Term, Ends] | None  # bounds of atoms that the caller knows
UNBOUNDED: Ends = (None, None)
# The values of narrow dtypes, for casts from them.
NARROW_RANGES: dict[str, Ends] = {"bool": (0, 1)} | {
    dtype: INTEGER_RANGES[dtype] for dtype in ("uint8", "int8", "int16")
}


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


def bounds(x: Term, known: Known = None) -> Ends:
    """The least and the largest value of an integer term, from the sizes of its dims and from `known` atoms."""
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
    """Removes coordinates that meet their own symbolic size, by c · (i - size) ≤ -c; also the sum of these bounds.

    For example i - s0, with i along a dim of size s0, leaves nothing and is at most -1.
    """
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
    """The length of a dim as a term: a literal, or a symbolic size."""
    return const(dim.size) if isinstance(dim.size, int) else make("size", (), (dim.size,))


def linear_size(text: str) -> Affine:
    """The form of a symbolic size: affine for a sum of multiples of symbols ("2*s0 + s1 + 1"), else one atom."""
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


def _atom_bounds(atom: Term, known: Known) -> Ends:
    rule = _BOUNDS_OF_ATOMS.get(atom.op)
    return UNBOUNDED if rule is None else rule(atom, known)


def _coordinate_bounds(atom: Term, _: Known) -> Ends:
    size = atom.attrs[0].size
    return 0, (size - 1 if isinstance(size, int) else None)


def _abs_bounds(atom: Term, known: Known) -> Ends:
    ends = bounds(atom.args[0], known)
    return 0, (None if None in ends else max(map(abs, ends)))


def _cast_bounds(atom: Term, _: Known) -> Ends:
    return NARROW_RANGES.get(atom.args[0].dtype, UNBOUNDED)


def _product_bounds(atom: Term, known: Known) -> Ends:
    one, other = (bounds(x, known) for x in atom.args)
    if None in (*one, *other):
        return UNBOUNDED
    found = [a * b for a in one for b in other]
    return min(found), max(found)


def _division_bounds(atom: Term, known: Known) -> Ends:
    """Bounds of a quotient or a remainder by a literal. A remainder has the sign of its divisor."""
    dividend, divisor = atom.args
    if divisor.op != "const" or not divisor.attrs[0]:
        return UNBOUNDED
    g = divisor.attrs[0]
    if atom.op == "mod":
        return (0, g - 1) if g > 0 else (g + 1, 0)
    low, high = (None if end is None else end // g for end in bounds(dividend, known))
    return (low, high) if g > 0 else (high, low)


def _choice_bounds(atom: Term, known: Known) -> Ends:
    lows, highs = zip(*(bounds(x, known) for x in atom.args[1:]), strict=True)
    return None if None in lows else min(lows), None if None in highs else max(highs)


def _extremum_bounds(atom: Term, known: Known) -> Ends:
    """Bounds of a maximum or a minimum. One known operand bounds it on one side; the other side needs all operands."""
    is_maximum = atom.op == "maximum"
    pick = max if is_maximum else min
    lows, highs = zip(*(bounds(x, known) for x in atom.args), strict=True)
    near, far = (lows, highs) if is_maximum else (highs, lows)
    one = pick((x for x in near if x is not None), default=None)
    other = None if None in far else pick(far)
    return (one, other) if is_maximum else (other, one)


# Operation of an atom: the rule for its bounds. An atom without a row is unbounded.
_BOUNDS_OF_ATOMS: dict[str, Callable[[Term, Known], Ends]] = {
    "iota": _coordinate_bounds,
    "size": lambda atom, known: (0, None),
    "abs": _abs_bounds,
    "cast": _cast_bounds,
    "mul": _product_bounds,
    "floordiv": _division_bounds,
    "mod": _division_bounds,
    "where": _choice_bounds,
    "maximum": _extremum_bounds,
    "minimum": _extremum_bounds,
}


def split_multiple(x: Term, divisor: int) -> tuple[Term, Term]:
    """x = a · divisor + rest, with every multiple of the divisor in a."""
    coefficients, constant = affine(x)
    whole = {atom: c // divisor for atom, c in coefficients.items() if c % divisor == 0}
    rest = {atom: c for atom, c in coefficients.items() if c % divisor}
    return to_term((whole, constant // divisor)), to_term((rest, constant % divisor))


def compare(op: str, left: Term, right: Term) -> Term:
    """left ≤ right, left < right or left = right ("le", "lt", "eq") of integer terms, in normal form.

    A literal if the bounds decide it. Else a < b becomes a + 1 ≤ b, and no atom is on both sides. It stays where both
    sides read memory: either may hold the last number of its type.
    """
    form = combine(affine(left), affine(right), -1)
    if op == "lt":
        op, form = "le", (form[0], form[1] + 1)
    truth = _decided(op, form)
    return _balanced(op, form) if truth is None else const(truth)


def _decided(op: str, form: Affine) -> bool | None:
    """The truth of form ≤ 0 or form = 0, if the bounds decide it."""
    low, high = bounds(to_term(form))
    above, below = low is not None and low > 0, high is not None and high < 0
    if op == "eq":
        return True if (low, high) == (0, 0) else False if above or below else None
    if high is not None and high <= 0:
        return True
    return False if above else None


def _balanced(op: str, form: Affine) -> Term:
    """form ≤ 0 or form = 0 as a comparison in which no side has a negative coefficient."""
    coefficients, constant = form
    positive = {a: c for a, c in coefficients.items() if c > 0}
    negative = {a: -c for a, c in coefficients.items() if c < 0}
    if op == "eq" and repr(to_term((positive, 0))) > repr(to_term((negative, 0))):
        positive, negative, constant = negative, positive, -constant
    if op == "le" and constant == 1 and _loads(positive) and _loads(negative):
        return make("lt", (to_term((positive, 0)), to_term((negative, 0))))
    on_the_left = constant > 0
    if constant and _loads(positive) != _loads(negative):  # a sum with loaded data may overflow
        on_the_left = _loads(negative)
    left, right = (constant, 0) if on_the_left else (0, -constant)
    return make(op, (to_term((positive, left)), to_term((negative, right))))


def _loads(atoms: Mapping[Term, int]) -> bool:
    return any(n.op == "load" for a in atoms for n in subterms(a))
