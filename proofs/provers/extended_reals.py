"""Symbolic values of the extended reals with "undefined", and the meaning of every pointwise operation on them.

A value is a Quotient (a real), POS or NEG (±∞), UNDEFINED (NaN, or a division by zero), a bool, or a pair. Where a
result depends on the sign of a real or on the kind of an opaque value, the meaning queries an oracle. The meanings
mirror egraph/terms/ops.py. Example: the maximum of x and y needs the sign of x - y.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from fractions import Fraction
from math import inf, isnan
from typing import Any, Protocol, TypeGuard

from ..algebra.floor_division import floor
from ..algebra.functions import circular, log_of, log_of_number
from ..algebra.polynomial import ONE, Polynomial, Quotient, Undecided, exponential, number, of_atom

POS, NEG, UNDEFINED, REAL = "+∞", "-∞", "undefined", "real"
PAIR_OF_REALS, ABSENT, ANY_PAIR = "pair of reals", "absent state", "any pair"  # states of a rescaled sum
EVERY = (REAL, NEG, POS, UNDEFINED)
INFINITE = (POS, NEG)
COMPARISONS = ("lt", "le", "eq")
LN2 = Quotient(log_of_number(Fraction(2)), ONE)
MAX_EXPONENT = 8  # of a power that is written as a product
ExtendedReal = Quotient | bool | str | tuple  # a real; a truth value; POS, NEG or UNDEFINED; a pair of values


class Oracle(Protocol):
    """Answers questions about one case, each question once."""

    def sign(self, q: Quotient) -> int:
        """The sign of a real: 1, 0 or -1."""

    def implied(self, q: Quotient) -> int | None:
        """The sign of a real, if the earlier answers leave only one."""

    def choose(self, question: tuple, options: tuple) -> Any:
        """The option that the case takes for the question."""


def literal(value: float | bool) -> ExtendedReal:
    """The value of a Python number."""
    if isinstance(value, bool):
        return value
    if isnan(value):
        return UNDEFINED
    return {inf: POS, -inf: NEG}.get(value) or number(value)


def opaque(name: str, args: Sequence[ExtendedReal], oracle: Oracle) -> ExtendedReal:
    """The value of an unknown function: equal arguments give equal results, and nothing more is known."""
    if any(map(_is_pair, args)):
        raise Undecided(f"{name} of a rescaled state")
    if UNDEFINED in args:
        return UNDEFINED
    key = tuple(a.key if isinstance(a, Quotient) else a for a in args)
    kind = oracle.choose(("function", name, key), EVERY)
    return of_atom("function", name, key) if kind == REAL else kind


def _strict(meaning, logical=False):
    """The meaning, with UNDEFINED for undefined arguments. Raises Undecided for arguments of a wrong type."""

    def total(*args):
        if UNDEFINED in args[:-1]:
            return UNDEFINED
        if any(isinstance(a, bool) != logical or _is_pair(a) for a in args[:-1]):
            raise Undecided("arithmetic on bools or pairs, or logic on numbers")
        return meaning(*args)

    return total


def _is_pair(a: object) -> TypeGuard[tuple]:
    return isinstance(a, tuple) and not isinstance(a, Quotient)


def _add(a, b, oracle):
    if a in INFINITE or b in INFINITE:
        if a in INFINITE and b in INFINITE:
            return a if a == b else UNDEFINED
        return a if a in INFINITE else b
    return a + b


def _negate(a, oracle):
    return {POS: NEG, NEG: POS}[a] if a in INFINITE else -a


def _sign(a, oracle) -> int:
    return {POS: 1, NEG: -1}[a] if a in INFINITE else oracle.sign(a)


def _multiply(a, b, oracle):
    if a in INFINITE or b in INFINITE:
        return {1: POS, 0: UNDEFINED, -1: NEG}[_sign(a, oracle) * _sign(b, oracle)]
    return a * b


def _divide(a, b, oracle):
    if b in INFINITE:
        return UNDEFINED if a in INFINITE else number(0)
    sign = oracle.sign(b)
    if sign == 0:
        return UNDEFINED  # floating point has ±∞ here, by the sign of the zero
    if a in INFINITE:
        return a if sign > 0 else _negate(a, oracle)
    return a / b


def _exponential(a, oracle):
    return number(0) if a == NEG else a if a == POS else exponential(a)


def _scaled_exponential(a, oracle):
    return _exponential(_multiply(a, LN2, oracle), oracle)


def _logarithm(a, oracle):
    if a in INFINITE:
        return a if a == POS else UNDEFINED
    sign = oracle.sign(a)
    return UNDEFINED if sign < 0 else NEG if sign == 0 else _log(a, oracle)


def _log(a: Quotient, oracle: Oracle) -> Quotient:
    """The logarithm of a positive real."""

    def sign(p: Polynomial) -> int:
        return oracle.sign(Quotient(p, ONE))

    return log_of(a, sign) or of_atom("function", "log", (a.key,))


def _binary_logarithm(a, oracle):
    natural = _logarithm(a, oracle)
    return UNDEFINED if natural == UNDEFINED else _divide(natural, LN2, oracle)


def _root(a, oracle):
    if a in INFINITE:
        return a if a == POS else UNDEFINED
    sign = oracle.sign(a)
    return UNDEFINED if sign < 0 else number(0) if sign == 0 else exponential(_log(a, oracle) * number(Fraction(1, 2)))


def _reciprocal_root(a, oracle):
    root = _root(a, oracle)
    return UNDEFINED if root == UNDEFINED else _divide(number(1), root, oracle)


def _compare(a, b, oracle) -> int:
    """The sign of a - b, where both may be infinite."""
    if a in INFINITE or b in INFINITE:
        return 0 if a == b else 1 if a == POS or b == NEG else -1
    return oracle.sign(a - b)


def _larger(a, b, oracle):
    return b if _compare(a, b, oracle) < 0 else a


def _smaller(a, b, oracle):
    return a if _compare(a, b, oracle) < 0 else b


def _power(a, b, oracle):
    if any(isinstance(x, bool) or _is_pair(x) for x in (a, b)):
        raise Undecided("a power of bools or pairs")
    if isinstance(b, Quotient) and oracle.sign(b) == 0:
        return number(1)  # of an undefined base, too
    if isinstance(a, Quotient) and UNDEFINED not in (a, b):
        return _power_of_real(a, b, oracle)
    if isinstance(a, Quotient):
        return number(1) if oracle.sign(a - number(1)) == 0 else UNDEFINED
    if a == UNDEFINED or b == UNDEFINED:
        return UNDEFINED
    return _power_of_infinite(a, b, oracle)


def _whole(b) -> int | None:
    """The integer that an exponent is, if it is a small one."""
    constant = isinstance(b, Quotient) and set(b.over) <= {()} and b.under == ONE
    value = b.over.get((), Fraction(0)) if constant else Fraction(1, 2)
    return int(value) if value.denominator == 1 and abs(value) <= MAX_EXPONENT else None


def _power_of_real(a, b, oracle):
    """a^b for a real a and b ≠ 0. Of a negative a it is known for constants b only."""
    times = _whole(b)
    if times is not None and times > 0:
        result = number(1)
        for _ in range(times):
            result = result * a
        return result
    if b in INFINITE:
        return opaque("pow", (a, b), oracle)
    sign = oracle.sign(a)
    if sign == 0:
        return number(0) if oracle.sign(b) > 0 else UNDEFINED
    if times is not None:
        return number(1) / _power_of_real(a, number(-times), oracle)
    if sign > 0:
        return exponential(_log(a, oracle) * b)
    constant = set(b.over) <= {()} and b.under == ONE
    return UNDEFINED if constant and b.over[()].denominator > 1 else opaque("pow", (a, b), oracle)


def _power_of_infinite(a, b, oracle):
    """(±∞)^b for a b ≠ 0."""
    times = _whole(b)
    if b in INFINITE or (a == NEG and times is None):
        return opaque("pow", (a, b), oracle)
    if oracle.sign(b) < 0:
        return number(0)
    return NEG if a == NEG and times is not None and times % 2 else POS


def _sigmoid(a, oracle):
    return _divide(number(1), _add(number(1), _exponential(_negate(a, oracle), oracle), oracle), oracle)


def _tanh(a, oracle):
    if a in INFINITE:
        return number(1 if a == POS else -1)
    up, down = exponential(a), exponential(-a)
    return _divide(up - down, up + down, oracle)


def _finite(a, oracle):
    if _is_pair(a):
        raise Undecided("whether a rescaled state is finite")
    return isinstance(a, Quotient)


def _choice(p, a, b, oracle):
    if p == UNDEFINED:
        return UNDEFINED
    if not isinstance(p, bool):
        raise Undecided("a condition that is no bool")
    return a if p else b


def _scale(state, oracle):
    if not _is_pair(state):
        raise Undecided("the scale of what is no pair")
    return state[0]


def _mantissa(state, oracle):
    return UNDEFINED if _scale(state, oracle) == NEG else state[1]


def _floor(a, oracle):
    return a if a in INFINITE else floor(a, oracle)


def _quotient(a, b, oracle):
    if a in INFINITE or b in INFINITE or oracle.sign(b) == 0:
        return opaque("floordiv", (a, b), oracle)
    return floor(a / b, oracle)


def _remainder(a, b, oracle):
    if a in INFINITE or b in INFINITE or oracle.sign(b) == 0:
        return opaque("mod", (a, b), oracle)
    return a - floor(a / b, oracle) * b


MEANINGS = {
    "neg": _strict(_negate),
    "exp": _strict(_exponential),
    "exp2": _strict(_scaled_exponential),
    "log": _strict(_logarithm),
    "log2": _strict(_binary_logarithm),
    "log1p": _strict(lambda a, oracle: _logarithm(_add(number(1), a, oracle), oracle)),
    "sin": _strict(lambda a, oracle: UNDEFINED if a in INFINITE else circular(a)[1]),
    "cos": _strict(lambda a, oracle: UNDEFINED if a in INFINITE else circular(a)[0]),
    "sqrt": _strict(_root),
    "rsqrt": _strict(_reciprocal_root),
    "sigmoid": _strict(_sigmoid),
    "tanh": _strict(_tanh),
    "abs": _strict(lambda a, oracle: a if _sign(a, oracle) >= 0 else _negate(a, oracle)),
    "stored": lambda a, oracle: a,
    "finite": _finite,
    "not": _strict(lambda a, oracle: not a, logical=True),
    "add": _strict(_add),
    "sub": _strict(lambda a, b, oracle: _add(a, _negate(b, oracle), oracle)),
    "mul": _strict(_multiply),
    "div": _strict(_divide),
    "floor": _strict(_floor),
    "floordiv": _strict(_quotient),
    "mod": _strict(_remainder),
    "pow": _power,
    "maximum": _strict(_larger),
    "minimum": _strict(_smaller),
    "lt": _strict(lambda a, b, oracle: _compare(a, b, oracle) < 0),
    "le": _strict(lambda a, b, oracle: _compare(a, b, oracle) <= 0),
    "eq": _strict(lambda a, b, oracle: _compare(a, b, oracle) == 0),
    "and": _strict(lambda a, b, oracle: a and b, logical=True),
    "or": _strict(lambda a, b, oracle: a or b, logical=True),
    "where": _choice,
    "only": lambda kept, state, oracle: _choice(kept, state, (NEG, UNDEFINED), oracle),
    "scaled": lambda a, b, oracle: (a, UNDEFINED if a == NEG else b),
    "scale": _scale,
    "mantissa": _mantissa,
}
"""Operation: its meaning. An operation without a row is an opaque function."""


def kind_of(value: ExtendedReal) -> ExtendedReal:
    """REAL for any real, the kinds of both parts for a pair; every other value is its own kind."""
    if _is_pair(value):
        return tuple(map(kind_of, value))
    return REAL if isinstance(value, Quotient) else value


def state_kinds(found: set | None) -> tuple[str, ...]:
    """The kinds of a fold of rescaled states, from the kinds of its elements (None: not known).

    A fold is absent if every element is absent. An element with the scale -∞ contributes nothing, whatever its weight.
    """
    present = {(REAL, REAL)}
    absent = {kinds for kinds in found or () if isinstance(kinds, tuple) and kinds[0] == NEG}
    if not found or found - present - absent:
        return (ANY_PAIR,)
    return tuple(kind for kind, seen in ((PAIR_OF_REALS, found & present), (ABSENT, absent)) if seen)


def same(a: ExtendedReal, b: ExtendedReal, equal: Callable[[Quotient, Quotient], bool]) -> bool:
    """Whether two values are the same; reals are compared by `equal`."""
    if _is_pair(a) and _is_pair(b):
        return all(same(x, y, equal) for x, y in zip(a, b))
    if isinstance(a, Quotient) and isinstance(b, Quotient):
        return equal(a, b)
    return type(a) is type(b) and a == b
