"""What a form costs: first passes over data too big for the chip, then time by a roofline, then size.

A form that saves passes by far more work than was written, as by doing a product once for each term of a sum, is worse
than any that does not.

A node's time is its volume (product of the sizes of its free dims, before a reduce drops one) over the rate of the unit
that does it. Contractions, products whose factors do not share all dims, run on matrix units.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import inf

from ..terms.term import Dim, Term
from ..terms.traversal import factors, reduces, subterms

NOMINAL = 2048  # stands for a symbolic size, for ranking only
ON_CHIP = 256  # a static dim up to this size is held whole in a tile and needs no pass of its own
WORTH = 1.15  # times the work as written that a form with fewer passes may do
ROUNDED = 2.0  # times as long as matrix units take for a product with what could be outside of the sum
LITTLE = 2**16  # work that is no time on any device
INNER = 1024  # so is one up to this size that is summed in products alone, inside of what streams


@dataclass(frozen=True)
class Target:
    """Rates in elements per unit of time, relative to one pointwise operation; a table, to be calibrated per device."""

    name: str = "generic"
    matrix: float = 16.0
    special: float = 0.25
    memory: float = 1.0


# Unit that does an operation: pointwise rate 1, special functions slower, free ones only rearrange.
UNITS = {
    "free": ("const", "iota", "load", "var", "size", "cast", "scaled", "scale", "mantissa"),
    "special": ("exp", "exp2", "log", "log2", "log1p", "sqrt", "rsqrt", "tanh", "sigmoid", "erf", "sin", "cos", "pow"),
    "pointwise": (
        "neg", "abs", "floor", "finite", "not", "add", "sub", "mul", "div", "maximum", "minimum", "floordiv", "mod",
        "lt", "le", "eq", "and", "or", "where", "reduce",
    ),
}  # fmt: skip
UNIT_OF = {op: unit for unit, ops in UNITS.items() for op in ops}


def length(dim: Dim) -> int:
    """The dim's size, nominal if symbolic."""
    return dim.size if isinstance(dim.size, int) else NOMINAL


def volume(dims) -> float:
    """Number of elements over a set of dims."""
    total = 1.0
    for d in dims:
        total *= length(d)
    return total


def streamed(dim: Dim) -> bool:
    """Too long to be held in a tile: each reduction over it that waits for another is a pass of its own."""
    return not isinstance(dim.size, int) or dim.size > ON_CHIP


def node_time(term: Term, target: Target, contracted: bool = False) -> float:
    """Time of the term's root alone; `contracted` says that a reduce's body is a product to be contracted."""
    op, dims, operand_dims = term.op, term.dims, [a.dims for a in term.args]
    unit = UNIT_OF[op]
    if unit == "free" or _folds_away(term):
        return 0.0
    if (
        op == "mul"
        and len(operand_dims) == 2
        and operand_dims[0] - operand_dims[1]
        and operand_dims[1] - operand_dims[0]
    ):
        return volume(dims) / target.matrix
    if op == "reduce" and contracted:
        product = volume(operand_dims[0]) / target.matrix * (ROUNDED if _scaled_inside(term) else 1)
        return product if term.attrs[0] == "sum" else product + volume(term.args[0].args[0].dims) / target.special
    if op == "reduce":
        return volume(operand_dims[0])
    return volume(dims) / (target.special if unit == "special" else 1.0)


def _scaled_inside(r: Term) -> bool:
    """Whether a factor of the summed product lacks the summed dim: that product's factors are then no stored tensors,
    which matrix units multiply more slowly, or round once more."""
    return any(f.op != "const" and r.attrs[1] not in f.dims for f in factors(r.args[0]))


def work(roots: Sequence[Term], target: Target) -> float:
    """Time of all that the roots compute; what they share counts once."""
    nodes = dict.fromkeys(n for root in roots for n in subterms(root))
    return sum(node_time(n, target, n.op == "reduce" and contracts(n.args[0])) for n in nodes)


def worthwhile(given: Sequence[Term], target: Target) -> float:
    """The most work that a form of the given terms may do to save passes."""
    return max(LITTLE, WORTH * work(given, target)) if given else inf


def _folds_away(term: Term) -> bool:
    """A literal factor of a contraction's result: its consumer multiplies and adds in one step."""
    return term.op == "mul" and term.args[1].op == "const" and term.args[0].op == "reduce"


def contracts(term: Term) -> bool:
    """Whether the term is a product whose factors do not share all dims: a reduce over it is a matrix product."""
    if term.op not in ("mul", "scaled"):
        return False
    left, right = (a.dims for a in term.args)
    return bool(left - right) and bool(right - left)


def inner_dims(roots: Sequence[Term]) -> frozenset[Dim]:
    """Dims that only products are summed over, each inside of a reduction that it depends on: they do not stream."""
    found = list(dict.fromkeys(r for root in roots for r in reduces(root)))
    inside = {r for outer in found for r in reduces(outer.args[0]) if outer.attrs[1] in r.dims}
    others = {r.attrs[1] for r in found if r not in inside or r.attrs[0] != "sum" or not contracts(r.args[0])}
    dims = {r.attrs[1] for r in inside} - others
    return frozenset(d for d in dims if isinstance(d.size, int) and d.size <= INNER)
