"""The derivative of every operation, one row each: how a change of an operand becomes a change of the result.

An operation is pointwise in all dims, so its derivative by one operand is a factor for each element. The same row
serves both directions: it takes a cotangent of the result to the operand (reverse mode), and a tangent of the operand
to the result (forward mode). The table is total: a test compares it with OPS. Example: the row of `exp` is g · exp(x).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from inspect import signature
from math import log, pi, sqrt

from ..terms.ops import OF_LAWS, OPS, cast, const, eq, exp, le, lt, make, power, var, where
from ..terms.ops import log as logarithm
from ..terms.printing import show
from ..terms.term import FLOATS, Term

ZERO = const(0.0)


class NotDifferentiable(Exception):
    """A term whose derivative no row states; the message says why.

    operation: its operation, as exp, or its monoid, as max; empty where no single one is at fault.
    """

    def __init__(self, why: str, operation: str = ""):
        super().__init__(why)
        self.operation = operation


@dataclass(frozen=True)
class Partials:
    """One row: `of(node, g, *operands)` gives g times the derivative by each operand, None where it is constant.

    It is written with the node itself, so that derivatives share the forward's work; g meets a divisor first, as what a
    tangent has in common with it cancels. `why` says why there is none.
    """

    op: str
    of: Callable[..., tuple[Term | None, ...]] | None = None
    why: str = ""


def _half_at_ties(g: Term, mine: Term, other: Term, loses: Term) -> Term:
    """The share of one operand of maximum or minimum, as torch has it: none where it loses, half where both are equal.

    All where one of them is NaN.
    """
    return where(make("not", (loses,)), g * where(eq(mine, other), const(0.5), const(1.0)), ZERO)


def _of_power(node: Term, g: Term, x: Term, y: Term) -> tuple[Term, Term]:
    """y · x^(y - 1), and x^y · log x; 0^0 has the derivative 0 by the base, and 0^y by the exponent, as in torch."""
    by_base = where(eq(y, ZERO), ZERO, g * (y * power(x, y - 1.0)))
    by_exponent = g * where(eq(x, ZERO) & le(ZERO, y), ZERO, node * logarithm(x))
    return by_base, by_exponent


def _constant(*operands) -> tuple[None, ...]:
    return (None,) * (len(operands) - 2)


INDEX = "it is a number of its own, or an index"
STATE = "states are made by the search: the captured term is differentiated"

_ROWS = (
    Partials("const", _constant),
    Partials("iota", _constant),
    Partials("size", _constant),
    Partials("var", why="a pattern variable has no derivative"),
    *(Partials(name, why="a law is written with it, and no term has it") for name in OF_LAWS),
    Partials("load", why="a load is transposed, not multiplied"),
    Partials("reduce", why="a reduction's derivative depends on its monoid: REDUCTIONS"),
    Partials("scaled", why=STATE),
    Partials("scale", why=STATE),
    Partials("mantissa", why=STATE),
    Partials("neg", lambda n, g, x: (-g,)),
    Partials("exp", lambda n, g, x: (g * n,)),
    Partials("exp2", lambda n, g, x: (g * n * log(2.0),)),
    Partials("log", lambda n, g, x: (g / x,)),
    Partials("log2", lambda n, g, x: (g / (x * log(2.0)),)),
    Partials("log1p", lambda n, g, x: (g / (x + 1.0),)),
    Partials("sqrt", lambda n, g, x: (g / (n * 2.0),)),
    Partials("rsqrt", lambda n, g, x: (g * (n * n * n) * -0.5,)),
    Partials("tanh", lambda n, g, x: (g * (1.0 - n * n),)),
    Partials("sigmoid", lambda n, g, x: (g * (n * (1.0 - n)),)),
    Partials("erf", lambda n, g, x: (g * (exp(-(x * x)) * (2.0 / sqrt(pi))),)),
    Partials("sin", lambda n, g, x: (g * make("cos", (x,)),)),
    Partials("cos", lambda n, g, x: (-(g * make("sin", (x,))),)),
    Partials("abs", lambda n, g, x: (g * where(lt(ZERO, x), const(1.0), where(lt(x, ZERO), const(-1.0), ZERO)),)),
    Partials("cast", lambda n, g, x: (cast(g, x.dtype),)),
    Partials("stored", lambda n, g, x: (g,)),
    Partials("add", lambda n, g, x, y: (g, g)),
    Partials("sub", lambda n, g, x, y: (g, -g)),
    Partials("mul", lambda n, g, x, y: (g * y, g * x)),
    Partials("div", lambda n, g, x, y: (g / y, -((g / y) * n))),
    Partials("pow", _of_power),
    Partials("mod", lambda n, g, x, y: (g, -(g * (x // y)))),
    Partials("maximum", lambda n, g, x, y: (_half_at_ties(g, x, y, lt(x, y)), _half_at_ties(g, y, x, lt(y, x)))),
    Partials("minimum", lambda n, g, x, y: (_half_at_ties(g, x, y, lt(y, x)), _half_at_ties(g, y, x, lt(x, y)))),
    Partials("where", lambda n, g, p, x, y: (None, where(p, g, ZERO), where(p, ZERO, g))),
    # Piecewise constant: the derivative is 0 wherever there is one.
    *(Partials(op, _constant) for op in ("floor", "floordiv", "finite", "order", "not", "lt", "le", "eq", "and", "or")),
    Partials("uniform", _constant),
)
PARTIALS: dict[str, Partials] = {row.op: row for row in _ROWS}


def partials(node: Term, g: Term) -> tuple[Term | None, ...]:
    """g times the derivative of a node by each of its operands; None where the operand has none.

    Raises NotDifferentiable with the operation's name.
    """
    row = PARTIALS[node.op]
    if row.of is None:
        raise NotDifferentiable(f"{node.op} has no derivative here: {row.why}")
    found = row.of(node, g, *node.args)
    return tuple(part if x.dtype in FLOATS else None for part, x in zip(found, node.args, strict=True))


WRITTEN = {  # what a row with variables cannot say
    "reduce": "Σ_j x: g for each element",
    "cast": "cast(x): g, cast back",
    "stored": "stored(x): g",
}


def written(op: str) -> str:
    """The row of an operation as mathematics, with g for the cotangent. Example: "mul(x, y): g · y, g · x"."""
    row = PARTIALS[op]
    if op in WRITTEN:
        return WRITTEN[op]
    if row.of is None or row.of is _constant:
        return f"{op}: no derivative" + (f", {row.why}" if row.why else "")
    names = tuple(signature(row.of).parameters)[2:]
    operands = [var(name, "bool" if name == "p" else "float") for name in names]
    parts = row.of(make(op, tuple(operands)), var("g", "float"), *operands)
    return f"{op}({', '.join(names)}): {', '.join('-' if part is None else show(part) for part in parts)}"


assert PARTIALS.keys() == OPS.keys()
