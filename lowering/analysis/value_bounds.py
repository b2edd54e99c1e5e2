"""Intervals in which the finite numbers of a term lie, where loaded factors and sums over dims are of moderate size.

A loaded number that is added or chosen may be any number of its dtype, since masks hold the least one. As moderate
sizes are assumed, a bound is no proof: it chooses between forms that are both right. `proved` assumes nothing.
Example: the magnitude of 2 · tanh(x) is 2.
"""

from __future__ import annotations

from collections.abc import Callable
from math import exp, exp2, floor, inf, isfinite, log2

from ...egraph.terms.ops import INTEGER_RANGES
from ...egraph.terms.term import Term
from ...egraph.terms.traversal import subterms

FACTOR_BOUND = 2.0**4  # assumed of a tensor that scores are multiplied or divided by
SUM_BOUND = 2.0**16  # assumed of a sum over a dim, as of a product of queries and keys
UNKNOWN_SIZE = 2.0**16  # assumed of a dim of unknown size
# Other dtypes reach as far as float32, or farther.
DTYPE_BOUNDS = {"bool": 1.0, "float16": 65504.0, "float8_e4m3fn": 448.0}
FLOAT32_BOUND, UNKNOWN_BOUND = 2.0**128, 2.0**512

Interval = tuple[float, float]
Visit = Callable[..., Interval]  # visit(term, added=True)


def magnitude(term: Term) -> float:
    """The largest finite absolute value of the term, under the assumptions of this module."""
    return max(map(abs, interval(term)))


def positive(term: Term) -> bool:
    """Whether the term is proved to be positive and a normal number: it reads no tensor and knows all its sizes."""
    unknown = lambda n: n.op == "size" or (n.op == "iota" and not isinstance(n.attrs[0].size, int))
    return not reads(term) and not any(map(unknown, subterms(term))) and interval(term)[0] > 2.0**-100


def reads(term: Term) -> bool:
    """Whether the term reads any tensor, which may hold anything."""
    return any(n.op in ("load", "reduce") for n in subterms(term))


def interval(term: Term) -> Interval:
    """The interval of the term's finite values, under the assumptions of this module."""
    done: dict[tuple[Term, bool], Interval] = {}

    def visit(node: Term, added: bool = True) -> Interval:
        if (node, added) not in done:
            low, high = _interval(node, added, visit)
            done[node, added] = max(low, -UNKNOWN_BOUND), min(high, UNKNOWN_BOUND)
        return done[node, added]

    return visit(term)


PROVED = "const cast neg abs floor tanh erf sin cos sigmoid add sub mul maximum minimum where".split()
PROVED += ["not", "and", "or", "lt", "le", "eq"]


def proved(term: Term) -> Interval:
    """The interval of the term's finite values, whatever finite numbers tensors hold.

    Sums and loaded numbers may be anything. An infinite literal hides an element, and NaN stays NaN.
    """
    done: dict[Term, Interval] = {}

    def visit(node: Term, added: bool = True) -> Interval:
        if node not in done:
            done[node] = _interval(node, True, visit) if node.op in PROVED else _around(UNKNOWN_BOUND)
        return done[node]

    return visit(term)


def _corners(operation: Callable[[float, float], float], a: Interval, b: Interval) -> Interval:
    found = [operation(x, y) for x in a for y in b]
    return min(found), max(found)


def _around(size: float) -> Interval:
    return -size, size


_UNARY: dict[str, Callable[[Interval], Interval]] = {
    **dict.fromkeys(("cast", "stored", "scale", "scaled"), lambda a: a),
    "neg": lambda a: (-a[1], -a[0]),
    "abs": lambda a: (max(0.0, a[0], -a[1]), max(map(abs, a))),
    "floor": lambda a: (a[0] - 1, a[1]),
    "exp": lambda a: (0.0, exp(min(a[1], 300.0))),
    "exp2": lambda a: (0.0, exp2(min(a[1], 500.0))),
    "sqrt": lambda a: (0.0, max(1.0, a[1])),
    **dict.fromkeys(("log", "log2", "log1p"), lambda a: _around(1024.0)),
    **dict.fromkeys(("tanh", "erf", "sin", "cos"), lambda a: (-1.0, 1.0)),
    **dict.fromkeys(("sigmoid", "not", "and", "or", "lt", "le", "eq", "uniform"), lambda a: (0.0, 1.0)),
    "rsqrt": lambda a: (0.0, FACTOR_BOUND),
    "mantissa": lambda a: _around(SUM_BOUND),
}
_BINARY: dict[str, Callable[[Interval, Interval], Interval]] = {
    "add": lambda a, b: (a[0] + b[0], a[1] + b[1]),
    "sub": lambda a, b: (a[0] - b[1], a[1] - b[0]),
    "maximum": lambda a, b: (max(a[0], b[0]), max(a[1], b[1])),
    "minimum": lambda a, b: (min(a[0], b[0]), min(a[1], b[1])),
    "mod": lambda a, b: _around(max(map(abs, b))),
}


def _interval(node: Term, added: bool, visit: Visit) -> Interval:
    """added: what is loaded may hold any number of its dtype; else it is a factor."""
    op, args = node.op, node.args
    if op in _UNARY and not (op == "cast" and node.dtype in INTEGER_RANGES):
        return _UNARY[op](visit(args[0], added))
    if op in _BINARY:
        return _BINARY[op](*(visit(a, added) for a in args))
    return _OTHER[op](node, added, visit) if op in _OTHER else _around(UNKNOWN_BOUND)


def _integer_cast(node: Term, added: bool, visit: Visit) -> Interval:
    """An integer that its dtype does not hold wraps to any number of the dtype."""
    (low, high), (least, largest) = visit(node.args[0], added), INTEGER_RANGES[node.dtype]
    return (low, high) if least <= low and high <= largest else (float(least), float(largest))


def _constant(node: Term, added: bool, visit: Visit) -> Interval:
    """An infinite literal has no finite value: it counts as 0."""
    value = float(node.attrs[0])
    return (value, value) if isfinite(value) else (0.0, 0.0)


def _coordinate(node: Term, added: bool, visit: Visit) -> Interval:
    size = node.attrs[0].size if node.op == "iota" else UNKNOWN_SIZE
    return 0.0, float(size if isinstance(size, int) else UNKNOWN_SIZE)


def _loaded(node: Term, added: bool, visit: Visit) -> Interval:
    return _around(DTYPE_BOUNDS.get(node.dtype, FLOAT32_BOUND) if added else FACTOR_BOUND)


def _chosen(node: Term, added: bool, visit: Visit) -> Interval:
    (a, b), (c, d) = (visit(x, added) for x in node.args[1:])
    return min(a, c), max(b, d)


def _product(node: Term, added: bool, visit: Visit) -> Interval:
    """A tensor times a literal may hold any number; in another product a tensor is a factor."""
    scaled = added and any(a.op == "const" for a in node.args)
    return _corners(lambda x, y: x * y, *(visit(a, scaled) for a in node.args))


def _quotient(node: Term, added: bool, visit: Visit) -> Interval:
    """By an infinite literal only 0 is finite, or -1 where it is rounded down."""
    one, two = node.args
    if two.op == "const" and two.attrs[0]:
        down = node.op == "floordiv"
        if not isfinite(two.attrs[0]):
            return (-1.0, 0.0) if down else (0.0, 0.0)
        whole = lambda x: float(floor(x)) if down and isfinite(x) else x
        return _corners(lambda x, y: whole(x / y), visit(one, added), visit(two))
    return _around(max(map(abs, visit(one, False))) * FACTOR_BOUND)


def _reduced(node: Term, added: bool, visit: Visit) -> Interval:
    monoid, body = node.attrs[0], node.args[0]
    if monoid in ("max", "min", "rescaled"):
        return visit(body, added)
    if monoid in ("any", "all"):
        return 0.0, 1.0
    outside = subterms(body, lambda n: n.op == "reduce")
    return _around(SUM_BOUND if monoid == "sum" and not any(_may_be_far(t) for t in outside) else UNKNOWN_BOUND)


def _power(node: Term, added: bool, visit: Visit) -> Interval:
    base, exponent = node.args
    if base.op != "const" or base.attrs[0] <= 0:
        return _around(UNKNOWN_BOUND)
    power = lambda x, y: exp2(min(500.0, max(-500.0, y * log2(x))))
    return _corners(power, visit(base), visit(exponent, added))


_OTHER: dict[str, Callable[[Term, bool, Visit], Interval]] = {
    "cast": _integer_cast,
    "const": _constant,
    **dict.fromkeys(("iota", "size"), _coordinate),
    "load": _loaded,
    "where": _chosen,
    "mul": _product,
    **dict.fromkeys(("div", "floordiv"), _quotient),
    "reduce": _reduced,
    "pow": _power,
}


def _may_be_far(node: Term) -> bool:
    """Whether the node is a large literal, or a square: a sum of squares, as a squared distance, may be large."""
    if node.op == "const":
        return SUM_BOUND < abs(node.attrs[0]) < inf
    return node.op == "pow" or (node.op == "mul" and node.args[0] is node.args[1])
