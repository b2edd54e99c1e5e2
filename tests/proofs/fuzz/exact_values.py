"""Evaluates terms over the extended reals with 120 digits, written apart from the provers and from evaluate.py.

A value is a number, True or False, ±∞, a pair, or None: undefined, as 0/0, 1/0 and ∞ - ∞ are. Ranges may be empty.
Example: the maximum over no elements is -∞, and the mantissa of a state without elements is None.
"""

from __future__ import annotations

from fractions import Fraction

from mpmath import mp, mpf

from onepass.egraph.terms.term import Dim, Term

DIGITS = 120
TIE = mpf(10) ** -60  # numbers that are closer are equal: rounding is far below it
LARGEST_EXPONENT = 60  # of exp: beyond it, digits get lost
LARGEST = mpf(10) ** 30
INF = mpf("inf")
OVERFLOW = {"float16": 65520, "bfloat16": 2**128 - 2**119, "float32": 2**128 - 2**103}
INTEGERS = {"int64": 64, "int32": 32, "int16": 16, "int8": 8}


class Skip(Exception):
    """The value has too many digits, or the term has no meaning here."""


def is_infinite(x) -> bool:
    return not isinstance(x, bool) and abs(x) == INF


def close(a, b) -> bool:
    """Whether two defined values are the same up to rounding."""
    if isinstance(a, tuple) or isinstance(b, tuple):
        return isinstance(a, tuple) and isinstance(b, tuple) and all(map(same, a, b))
    if isinstance(a, bool) or isinstance(b, bool):
        return a is b
    if is_infinite(a) or is_infinite(b):
        return a == b
    return abs(a - b) <= TIE * (1 + abs(a) + abs(b))


def same(a, b) -> bool:
    """Whether two values are the same, undefined ones included."""
    return b is None if a is None else b is not None and close(a, b)


def sign(a) -> int:
    return 0 if not is_infinite(a) and abs(a) <= TIE else 1 if a > 0 else -1


def add(a, b):
    if is_infinite(a) and is_infinite(b):
        return a if a == b else None
    return a + b


def multiply(a, b):
    if is_infinite(a) or is_infinite(b):
        return None if sign(a) * sign(b) == 0 else sign(a) * sign(b) * INF
    return a * b


def divide(a, b):
    if is_infinite(b):
        return None if is_infinite(a) else mpf(0)
    return None if sign(b) == 0 else sign(b) * a if is_infinite(a) else a / b


def exponential(a):
    if is_infinite(a):
        return INF if a > 0 else mpf(0)
    if abs(a) > LARGEST_EXPONENT:
        raise Skip
    return mp.exp(a)


def logarithm(a):
    if is_infinite(a):
        return INF if a > 0 else None
    return None if sign(a) < 0 else -INF if sign(a) == 0 else mp.log(a)


def root(a):
    if is_infinite(a):
        return INF if a > 0 else None
    return None if sign(a) < 0 else mp.sqrt(max(a, 0))


def whole(a):
    """The floor; a number that rounding put just below an integer is that integer."""
    nearest = mp.nint(a) if not is_infinite(a) else a
    return a if is_infinite(a) else nearest if abs(a - nearest) <= TIE else mp.floor(a)


def power(a, b):
    """a^b as in C. Of zero to a negative power it is undefined."""
    if b is not None and sign(b) == 0:
        return mpf(1)
    if a is None or b is None:
        return mpf(1) if a is not None and close(a, mpf(1)) else None
    if is_infinite(b):
        raise Skip
    is_integer = close(b, mp.nint(b))
    odd = is_integer and int(mp.nint(b)) % 2 == 1
    if is_infinite(a):
        return mpf(0) if b < 0 else -INF if a < 0 and odd else INF
    if sign(a) == 0:
        return mpf(0) if b > 0 else None
    if a < 0 and not is_integer:
        return None
    size = exponential(b * mp.log(abs(a)))
    return -size if a < 0 and odd else size


def compare(a, b) -> int:
    """The sign of a - b, ties by rounding left out."""
    return 0 if close(a, b) else 1 if a > b else -1


def quotient(a, b):
    return mpf(0) if sign(b) == 0 else whole(a / b)  # of a division by zero: anything, but always the same


def bounded(a, function):
    if is_infinite(a):
        return None
    return function(a)


def tanh(a):
    return mpf(1 if a > 0 else -1) if is_infinite(a) else mp.tanh(a) if abs(a) < LARGEST_EXPONENT else _skip()


def _skip():
    raise Skip


STRICT = {
    "neg": lambda a: -a,
    "exp": exponential,
    "exp2": lambda a: exponential(a * mp.log(2)),
    "log": logarithm,
    "log2": lambda a: None if (x := logarithm(a)) is None else x / mp.log(2),
    "log1p": lambda a: logarithm(a + 1),
    "sqrt": root,
    "rsqrt": lambda a: None if (x := root(a)) is None else divide(mpf(1), x),
    "tanh": tanh,
    "sigmoid": lambda a: divide(mpf(1), add(mpf(1), exponential(-a))),
    "erf": lambda a: mpf(sign(a)) if is_infinite(a) else mp.erf(a),
    "sin": lambda a: bounded(a, mp.sin),
    "cos": lambda a: bounded(a, mp.cos),
    "abs": abs,
    "floor": whole,
    "not": lambda a: not a,
    "add": add,
    "sub": lambda a, b: add(a, -b),
    "mul": multiply,
    "div": divide,
    "maximum": lambda a, b: b if compare(a, b) < 0 else a,
    "minimum": lambda a, b: a if compare(a, b) < 0 else b,
    "floordiv": quotient,
    "mod": lambda a, b: mpf(0) if sign(b) == 0 else a - quotient(a, b) * b,
    "and": lambda a, b: a and b,
    "or": lambda a, b: a or b,
}
COMPARISONS = {"lt": lambda s: s < 0, "le": lambda s: s <= 0, "eq": lambda s: s == 0}
UNITS = {"sum": mpf(0), "prod": mpf(1), "max": -INF, "min": INF, "any": False, "all": True}
STEPS = {"sum": "add", "prod": "mul", "max": "maximum", "min": "minimum", "any": "or", "all": "and"}


class Values:
    """The values of terms at one point.

    variables: for each name a function from the coordinates of dims to a value. sizes: the lengths of dims.
    undefined_is: the truth of a comparison of undefined values, which may be either.
    """

    def __init__(self, variables, sizes: dict[Dim, int], undefined_is: bool, literals=frozenset()):
        self.variables, self.sizes, self.undefined_is, self.literals = variables, sizes, undefined_is, literals

    def value(self, x: Term, at: dict[Dim, int]):
        """The value of the term at the coordinates. Raises Skip."""
        if x.op == "var":
            return self.variables[x.attrs[0]](at)
        if x.op == "const":
            value = x.attrs[0]
            return value if isinstance(value, bool) else None if value != value else mpf(value)
        if x.op == "reduce":
            return self.fold(x, at)
        args = [self.value(a, at) for a in x.args]
        if any(isinstance(a, mpf) and not is_infinite(a) and abs(a) > LARGEST for a in args):
            raise Skip
        return self.pointwise(x, args)

    def pointwise(self, x: Term, args):
        match x.op:
            case "where":
                return None if args[0] is None else args[1] if args[0] else args[2]
            case "finite":
                return args[0] is not None and not is_infinite(args[0])
            case "pow":
                return power(*args)
            case "scaled":
                return tuple(args)
            case "scale":
                return args[0][0]
            case "mantissa":
                scale, weight = args[0]
                return None if scale == -INF else weight
            case "cast":
                return self.cast(x, args[0])
        if x.op in COMPARISONS:
            return self.undefined_is if None in args else COMPARISONS[x.op](compare(*args))
        if x.op not in STRICT:
            raise Skip
        return None if None in args else STRICT[x.op](*args)

    def cast(self, x: Term, a):
        """To a float a real stays, but a literal beyond the range becomes infinite; other dtypes truncate and wrap."""
        dtype = x.attrs[0]
        if dtype == "bool":
            return True if a is None else a if isinstance(a, bool) else sign(a) != 0
        if dtype in INTEGERS:
            if a is None or is_infinite(a):
                return mpf(-7)
            half = 1 << INTEGERS[dtype] - 1
            return mpf((int(whole(abs(a))) * sign(a) + half) % (2 * half) - half)
        beyond = x.args[0] in self.literals and a is not None and abs(a) >= OVERFLOW.get(dtype, INF)
        return sign(a) * INF if beyond else a

    def fold(self, x: Term, at):
        monoid, dim = x.attrs
        values = [self.value(x.args[0], {**at, dim: n}) for n in range(self.sizes[dim])]
        if monoid == "rescaled":
            return fold_states(values)
        total = UNITS[monoid]
        for value in values:
            total = None if total is None or value is None else STRICT[STEPS[monoid]](total, value)
        return total


def fold_states(states):
    """The fold of pairs: present ones are rescaled to the largest scale; without any, the scale is -∞."""
    if any(scale is None for scale, _ in states):
        return None, None
    present = [(scale, weight) for scale, weight in states if scale != -INF]
    if not present:
        return -INF, None
    top = max(scale for scale, _ in present)
    if top == INF:
        raise Skip
    total = mpf(0)
    for scale, weight in present:
        term = None if weight is None else multiply(weight, exponential(scale - top))
        total = None if total is None or term is None else add(total, term)
    return top, total


def number(value: Fraction | float):
    """A rational as a value."""
    return mpf(value.numerator) / value.denominator if isinstance(value, Fraction) else mpf(value)


mp.dps = DIGITS
