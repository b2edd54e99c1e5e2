"""Where the finite numbers of a term may lie: intervals, taking factors that are loaded and sums over dims as moderate.

What is added or chosen may be any number of its dtype: masks hold the least one. A bound is no proof where these are
taken as moderate, so it chooses between forms that are both right for moderate numbers.
"""

from __future__ import annotations

from collections.abc import Callable
from math import exp, exp2, floor, inf, isfinite, log2

from ...egraph.terms.ops import INTEGER_RANGES
from ...egraph.terms.term import Term
from ...egraph.terms.traversal import subterms

FACTOR = 2.0**5  # taken to be the most of a tensor that scores are multiplied or divided by
SUM = 2.0**16  # of a sum over a dim, as of a product of queries and keys
LONG = 2.0**16  # of a coordinate along a dim of unknown size
REACH = {"bool": 1.0, "float16": 65504.0}  # of other dtypes as far as float32's, or farther
WIDE, UNKNOWN = 2.0**128, 2.0**512

Interval = tuple[float, float]


def magnitude(term: Term) -> float:
    """The largest absolute value that is finite, as far as the term says."""
    return max(map(abs, interval(term)))


def positive(term: Term) -> bool:
    """Proved: no tensor is read, and what is computed from coordinates along dims of known size is a normal number."""
    unknown = lambda n: n.op == "size" or (n.op == "iota" and not isinstance(n.attrs[0].size, int))
    return not reads(term) and not any(map(unknown, subterms(term))) and interval(term)[0] > 2.0**-100


def reads(term: Term) -> bool:
    """Whether any tensor is read, which may hold anything."""
    return any(n.op in ("load", "reduce") for n in subterms(term))


def interval(term: Term) -> Interval:
    """Where the finite values of a term may lie."""
    done: dict[tuple[Term, bool], Interval] = {}

    def visit(node: Term, added: bool = True) -> Interval:
        if (node, added) not in done:
            low, high = _interval(node, added, visit)
            done[node, added] = max(low, -UNKNOWN), min(high, UNKNOWN)
        return done[node, added]

    return visit(term)


PROVED = "const cast neg abs floor tanh erf sin cos sigmoid add sub mul maximum minimum where".split()
PROVED += ["not", "and", "or", "lt", "le", "eq"]


def proved(term: Term) -> Interval:
    """As interval, but for whatever finite numbers tensors hold: sums and what is loaded may be anything. An infinite
    literal hides an element, and NaN stays NaN.
    """
    done: dict[Term, Interval] = {}

    def visit(node: Term, added: bool = True) -> Interval:
        if node not in done:
            done[node] = _interval(node, True, visit) if node.op in PROVED else _around(UNKNOWN)
        return done[node]

    return visit(term)


def _corners(operation: Callable[[float, float], float], a: Interval, b: Interval) -> Interval:
    found = [operation(x, y) for x in a for y in b]
    return min(found), max(found)


def _around(size: float) -> Interval:
    return -size, size


_UNARY: dict[str, Callable[[Interval], Interval]] = {
    **dict.fromkeys(("cast", "scale", "scaled"), lambda a: a),
    "neg": lambda a: (-a[1], -a[0]),
    "abs": lambda a: (max(0.0, a[0], -a[1]), max(map(abs, a))),
    "floor": lambda a: (a[0] - 1, a[1]),
    "exp": lambda a: (0.0, exp(min(a[1], 300.0))),
    "exp2": lambda a: (0.0, exp2(min(a[1], 500.0))),
    "sqrt": lambda a: (0.0, max(1.0, a[1])),
    **dict.fromkeys(("log", "log2", "log1p"), lambda a: _around(1024.0)),
    **dict.fromkeys(("tanh", "erf", "sin", "cos"), lambda a: (-1.0, 1.0)),
    **dict.fromkeys(("sigmoid", "not", "and", "or", "lt", "le", "eq"), lambda a: (0.0, 1.0)),
    "rsqrt": lambda a: (0.0, FACTOR),
    "mantissa": lambda a: _around(SUM),
}
_BINARY: dict[str, Callable[[Interval, Interval], Interval]] = {
    "add": lambda a, b: (a[0] + b[0], a[1] + b[1]),
    "sub": lambda a, b: (a[0] - b[1], a[1] - b[0]),
    "maximum": lambda a, b: (max(a[0], b[0]), max(a[1], b[1])),
    "minimum": lambda a, b: (min(a[0], b[0]), min(a[1], b[1])),
    "mod": lambda a, b: _around(max(map(abs, b))),
}


def _interval(node: Term, added: bool, visit: Callable[..., Interval]) -> Interval:
    """added: what is loaded may hold any number of its dtype; else it is a factor."""
    op, args = node.op, node.args
    if op == "cast" and node.dtype in INTEGER_RANGES:
        (low, high), (least, largest) = visit(args[0], added), INTEGER_RANGES[node.dtype]
        return (low, high) if least <= low and high <= largest else (float(least), float(largest))
    if op in _UNARY:
        return _UNARY[op](visit(args[0], added))
    if op in _BINARY:
        return _BINARY[op](*(visit(a, added) for a in args))
    match op:
        case "const":
            value = float(node.attrs[0])
            return (value, value) if isfinite(value) else (0.0, 0.0)
        case "iota" | "size":
            size = node.attrs[0].size if op == "iota" else LONG
            return 0.0, float(size if isinstance(size, int) else LONG)
        case "load":
            return _around(REACH.get(node.dtype, WIDE) if added else FACTOR)
        case "where":
            (a, b), (c, d) = (visit(x, added) for x in args[1:])
            return min(a, c), max(b, d)
        case "mul":
            plain = added and any(a.op == "const" for a in args)
            return _corners(lambda x, y: x * y, *(visit(a, plain) for a in args))
        case "div" | "floordiv":
            return _quotient(node, added, visit)
        case "reduce":
            return _reduced(node, added, visit)
        case "pow" if args[0].op == "const" and args[0].attrs[0] > 0:
            power = lambda x, y: exp2(min(500.0, max(-500.0, y * log2(x))))
            return _corners(power, visit(args[0]), visit(args[1], added))
    return _around(UNKNOWN)


def _quotient(node: Term, added: bool, visit) -> Interval:
    one, two = node.args
    if two.op == "const" and two.attrs[0]:
        whole = floor if node.op == "floordiv" else float
        return _corners(lambda x, y: float(whole(x / y)), visit(one, added), visit(two))
    return _around(max(map(abs, visit(one, False))) * FACTOR)


def _reduced(node: Term, added: bool, visit) -> Interval:
    monoid, body = node.attrs[0], node.args[0]
    if monoid in ("max", "min", "rescaled"):
        return visit(body, added)
    if monoid in ("any", "all"):
        return 0.0, 1.0
    outside = subterms(body, lambda n: n.op == "reduce")
    return _around(SUM if monoid == "sum" and not any(_far(t) for t in outside) else UNKNOWN)


def _far(node: Term) -> bool:
    """A large literal, or a square, which a sum of distances is made of."""
    if node.op == "const":
        return SUM < abs(node.attrs[0]) < inf
    return node.op == "pow" or (node.op == "mul" and node.args[0] is node.args[1])
