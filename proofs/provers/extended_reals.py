"""Values of the extended reals with "undefined", and the meaning of every pointwise operation on them, symbolically.

A value is a Quotient (a real), POS, NEG (±∞), UNDEFINED (NaN, or a division by zero), a bool, or a pair. What a result
depends on is asked of an oracle (case_analysis.py): the sign of a real, or which kind an opaque result is. Mirrors
egraph/terms/ops.py.
"""

from __future__ import annotations

from math import inf, isnan
from typing import Protocol

from ..algebra.floor_division import floor
from ..algebra.polynomial import ONE, Quotient, Undecided, exponential, number, of_atom

POS, NEG, UNDEFINED, REAL = "+∞", "-∞", "undefined", "real"
PAIR_OF_REALS, ABSENT, ANY_PAIR = "pair of reals", "absent state", "any pair"  # states of a rescaled sum
EVERY = (REAL, NEG, POS, UNDEFINED)
INFINITE = (POS, NEG)
COMPARISONS = ("lt", "le", "eq")
LN2 = of_atom("exp of", "ln 2")  # a positive constant, as exponentials are
TWO = number(2)


class Oracle(Protocol):
    """Decides, once per question, along one path through all cases."""

    def sign(self, q: Quotient) -> int: ...

    def implied(self, q: Quotient) -> int | None: ...

    def choose(self, question: tuple, options: tuple): ...


def literal(value):
    """The value of a Python number."""
    if isinstance(value, bool):
        return value
    if isnan(value):
        return UNDEFINED
    return {inf: POS, -inf: NEG}.get(value) or number(value)


def opaque(name: str, args, o: Oracle):
    """An unknown function of the arguments: equal arguments give equal results, and nothing more is known."""
    if any(map(_is_pair, args)):
        raise Undecided(f"{name} of a rescaled state")
    if UNDEFINED in args:
        return UNDEFINED
    key = tuple(a.key if isinstance(a, Quotient) else a for a in args)
    kind = o.choose(("function", name, key), EVERY)
    return of_atom("function", name, key) if kind == REAL else kind


def _strict(meaning, logical=False):
    """UNDEFINED where an argument is; numbers where numbers belong, bools where bools do."""

    def total(*args):
        if UNDEFINED in args[:-1]:
            return UNDEFINED
        if any(isinstance(a, bool) != logical or _is_pair(a) for a in args[:-1]):
            raise Undecided("arithmetic on bools or pairs, or logic on numbers")
        return meaning(*args)

    return total


def _is_pair(a) -> bool:
    return isinstance(a, tuple) and not isinstance(a, Quotient)


def _add(a, b, o):
    if a in INFINITE or b in INFINITE:
        if a in INFINITE and b in INFINITE:
            return a if a == b else UNDEFINED
        return a if a in INFINITE else b
    return a + b


def _negate(a, o):
    return {POS: NEG, NEG: POS}[a] if a in INFINITE else -a


def _sign(a, o) -> int:
    return {POS: 1, NEG: -1}[a] if a in INFINITE else o.sign(a)


def _multiply(a, b, o):
    if a in INFINITE or b in INFINITE:
        return {1: POS, 0: UNDEFINED, -1: NEG}[_sign(a, o) * _sign(b, o)]
    return a * b


def _divide(a, b, o):
    if b in INFINITE:
        return UNDEFINED if a in INFINITE else number(0)
    sign = o.sign(b)
    if sign == 0:
        return UNDEFINED  # also where floating point has ±∞, by the sign of the zero
    if a in INFINITE:
        return a if sign > 0 else _negate(a, o)
    return a / b


def _exponential(a, o):
    return number(0) if a == NEG else a if a == POS else exponential(a)


def _scaled_exponential(a, o):
    return _exponential(_multiply(a, LN2, o), o)


def _logarithm(a, o):
    if a in INFINITE:
        return a if a == POS else UNDEFINED
    if a.key == TWO.key:
        return LN2
    sign = o.sign(a)
    return UNDEFINED if sign < 0 else NEG if sign == 0 else of_atom("log", a.key)


def _root(a, o):
    if a in INFINITE:
        return a if a == POS else UNDEFINED
    sign = o.sign(a)
    return UNDEFINED if sign < 0 else number(0) if sign == 0 else of_atom("root", a.key)


def _compare(a, b, o) -> int:
    """The sign of a - b, where both may be infinite."""
    if a in INFINITE or b in INFINITE:
        return 0 if a == b else 1 if a == POS or b == NEG else -1
    return o.sign(a - b)


def _larger(a, b, o):
    return b if _compare(a, b, o) < 0 else a


def _smaller(a, b, o):
    return a if _compare(a, b, o) < 0 else b


def _power(a, b, o):
    constant = isinstance(b, Quotient) and set(b.over) <= {()} and b.under == ONE
    exponent = b.over.get((), 0) if constant else -1
    if isinstance(a, Quotient) and exponent == int(exponent) and 0 <= exponent <= 8:
        result = number(1)
        for _ in range(int(exponent)):
            result = result * a
        return result
    return opaque("pow", (a, b), o)


def _sigmoid(a, o):
    return _divide(number(1), _add(number(1), _exponential(_negate(a, o), o), o), o)


def _tanh(a, o):
    if a in INFINITE:
        return number(1 if a == POS else -1)
    up, down = exponential(a), exponential(-a)
    return _divide(up - down, up + down, o)


def _finite(a, o):
    if _is_pair(a):
        raise Undecided("whether a rescaled state is finite")
    return isinstance(a, Quotient)


def _choice(p, a, b, o):
    if p == UNDEFINED:
        return UNDEFINED
    if not isinstance(p, bool):
        raise Undecided("a condition that is no bool")
    return a if p else b


def _scale(state, o):
    if not _is_pair(state):
        raise Undecided("the scale of what is no pair")
    return state[0]


def _mantissa(state, o):
    return UNDEFINED if _scale(state, o) == NEG else state[1]


def _floor(a, o):
    return a if a in INFINITE else floor(a, o)


def _quotient(a, b, o):
    if a in INFINITE or b in INFINITE or o.sign(b) == 0:
        return opaque("floordiv", (a, b), o)
    return floor(a / b, o)


def _remainder(a, b, o):
    if a in INFINITE or b in INFINITE or o.sign(b) == 0:
        return opaque("mod", (a, b), o)
    return a - floor(a / b, o) * b


MEANINGS = {
    "neg": _strict(_negate),
    "exp": _strict(_exponential),
    "exp2": _strict(_scaled_exponential),
    "log": _strict(_logarithm),
    "log2": _strict(lambda a, o: _divide(_logarithm(a, o), LN2, o) if _logarithm(a, o) != UNDEFINED else UNDEFINED),
    "sqrt": _strict(_root),
    "rsqrt": _strict(lambda a, o: UNDEFINED if _root(a, o) == UNDEFINED else _divide(number(1), _root(a, o), o)),
    "sigmoid": _strict(_sigmoid),
    "tanh": _strict(_tanh),
    "abs": _strict(lambda a, o: a if _sign(a, o) >= 0 else _negate(a, o)),
    "finite": _finite,
    "not": _strict(lambda a, o: not a, logical=True),
    "add": _strict(_add),
    "sub": _strict(lambda a, b, o: _add(a, _negate(b, o), o)),
    "mul": _strict(_multiply),
    "div": _strict(_divide),
    "floor": _strict(_floor),
    "floordiv": _strict(_quotient),
    "mod": _strict(_remainder),
    "pow": _strict(_power),
    "maximum": _strict(_larger),
    "minimum": _strict(_smaller),
    "lt": _strict(lambda a, b, o: _compare(a, b, o) < 0),
    "le": _strict(lambda a, b, o: _compare(a, b, o) <= 0),
    "eq": _strict(lambda a, b, o: _compare(a, b, o) == 0),
    "and": _strict(lambda a, b, o: a and b, logical=True),
    "or": _strict(lambda a, b, o: a or b, logical=True),
    "where": _choice,
    "scaled": lambda a, b, o: (a, b),
    "scale": _scale,
    "mantissa": _mantissa,
}
"""What has no row is an opaque function: congruent, and nothing else."""


def kind_of(value):
    """REAL for any real, the kinds of both parts for a pair; every other value is its own kind."""
    if _is_pair(value):
        return tuple(map(kind_of, value))
    return REAL if isinstance(value, Quotient) else value


def state_kinds(found: set | None) -> tuple[str, ...]:
    """What a fold of rescaled states may be, from the kinds of what it folds (None: not known).

    A fold is absent where every element is: an element whose scale is -∞ contributes nothing, whatever its weight.
    """
    present = {(REAL, REAL)}
    absent = {kinds for kinds in found or () if isinstance(kinds, tuple) and kinds[0] == NEG}
    if not found or found - present - absent:
        return (ANY_PAIR,)
    return tuple(kind for kind, seen in ((PAIR_OF_REALS, found & present), (ABSENT, absent)) if seen)


def same(a, b, equal) -> bool:
    """Whether two values are the same, reals by `equal`."""
    if _is_pair(a) and _is_pair(b):
        return all(same(x, y, equal) for x, y in zip(a, b))
    if isinstance(a, Quotient) and isinstance(b, Quotient):
        return equal(a, b)
    return type(a) is type(b) and a == b
