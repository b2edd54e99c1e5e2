"""The cost model: the time of a term's nodes by a roofline, and the most work that saved passes are worth.

The time of a node is its volume over the rate of its unit. The volume is the product of the sizes of the free dims, for
a reduce those of its body. A contraction, whose factors do not share all dims, runs on matrix units. Example: x + y
over dims of 8 and 4 takes 32 units of time.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from math import inf

from ..terms.ops import OF_LAWS
from ..terms.term import Dim, Term
from ..terms.traversal import factors, reduces, subterms

NOMINAL_SIZE = 2048  # of a symbolic dim, for ranking only
MAX_RESIDENT_SIZE = 256  # a static dim up to this size fits in a tile, so it needs no pass of its own
MAX_WORK_RATIO = 1.15  # of a form with fewer passes to the given terms
ROUNDED_FACTOR_SLOWDOWN = 2.0  # of a matrix product with a factor that could be moved out of the sum
WORK_OF_A_RANDOM_NUMBER = 30.0  # pointwise operations
NEGLIGIBLE_WORK = 2**16  # takes no time on any device
MAX_INNER_SIZE = 1024  # a dim up to this size is resident, too, if only products inside other reductions sum over it


@dataclass(frozen=True)
class Target:
    """The rates of a device in elements per unit of time, relative to pointwise operations."""

    name: str = "generic"
    matrix: float = 16.0
    special: float = 0.25
    memory: float = 1.0


# The unit of each operation: pointwise ones have rate 1, special functions are slower, free operations take no time.
# A random number takes ten rounds of two wide products and four bitwise operations.
UNITS = {
    "free": ("const", "iota", "load", "var", "size", *OF_LAWS, "cast", "stored", "scaled", "scale", "mantissa"),
    "special": ("exp", "exp2", "log", "log2", "log1p", "sqrt", "rsqrt", "tanh", "sigmoid", "erf", "sin", "cos", "pow"),
    "pointwise": (
        "neg", "abs", "floor", "finite", "order", "not", "add", "sub", "mul", "div", "maximum", "minimum", "floordiv",
        "mod", "lt", "le", "eq", "and", "or", "where", "reduce",
    ),
    "random": ("uniform",),
}  # fmt: skip
UNIT_OF = {op: unit for unit, ops in UNITS.items() for op in ops}


def length(dim: Dim) -> int:
    """The size of the dim; a nominal one if it is symbolic."""
    return dim.size if isinstance(dim.size, int) else NOMINAL_SIZE


def volume(dims: Iterable[Dim]) -> float:
    """The number of elements over a set of dims."""
    total = 1.0
    for d in dims:
        total *= length(d)
    return total


def streamed(dim: Dim) -> bool:
    """Whether the dim is too long for a tile: then each nested reduction over it is one more pass."""
    return not isinstance(dim.size, int) or dim.size > MAX_RESIDENT_SIZE


def node_time(term: Term, target: Target, contracted: bool = False) -> float:
    """The time of the term's root alone. `contracted`: the root is a reduce that matrix units do."""
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
        product = volume(operand_dims[0]) / target.matrix * (ROUNDED_FACTOR_SLOWDOWN if _scaled_inside(term) else 1)
        return product if term.attrs[0] == "sum" else product + volume(term.args[0].args[0].dims) / target.special
    if op == "reduce":
        return volume(operand_dims[0])
    if unit == "random":
        return volume(dims) * WORK_OF_A_RANDOM_NUMBER
    return volume(dims) / (target.special if unit == "special" else 1.0)


def _scaled_inside(r: Term) -> bool:
    """Whether a factor of the summed product does not depend on the summed dim.

    Then a factor of the matrix product is no stored tensor: it is multiplied more slowly, or rounded once more.
    """
    return any(f.op != "const" and r.attrs[1] not in f.dims for f in factors(r.args[0]))


def work(roots: Sequence[Term], target: Target) -> float:
    """The time of all nodes of the roots; shared nodes count once."""
    nodes = dict.fromkeys(n for root in roots for n in subterms(root))
    return sum(node_time(n, target, n.op == "reduce" and contracts(n.args[0])) for n in nodes)


def worthwhile(given: Sequence[Term], target: Target) -> float:
    """The most work that a form of the given terms may do; no saved pass is worth more."""
    return max(NEGLIGIBLE_WORK, MAX_WORK_RATIO * work(given, target)) if given else inf


def _folds_away(term: Term) -> bool:
    """Whether the node multiplies the result of a reduce by a literal: its consumer does that with an addition."""
    return term.op == "mul" and term.args[1].op == "const" and term.args[0].op == "reduce"


def contracts(term: Term) -> bool:
    """Whether the term is a product with dims that only one factor has: a reduce over it is a matrix product.

    Factors of a weight that have no other dims than the exponent are multiplied by the exponential.
    """
    if term.op not in ("mul", "scaled"):
        return False
    left, right = (a.dims for a in term.args)
    if term.op == "scaled":
        right = frozenset().union(*(f.dims for f in factors(term.args[1]) if not f.dims <= left))
    return bool(left - right) and bool(right - left)


def inner_dims(roots: Sequence[Term]) -> frozenset[Dim]:
    """Static dims over which only matrix products inside other reductions sum, if a tile can hold them. They do not
    stream."""
    found = list(dict.fromkeys(r for root in roots for r in reduces(root)))
    inside = {r for outer in found for r in reduces(outer.args[0]) if outer.attrs[1] in r.dims}
    others = {r.attrs[1] for r in found if r not in inside or r.attrs[0] != "sum" or not contracts(r.args[0])}
    dims, whole = {r.attrs[1] for r in inside} - others, whole_dims(found)
    return frozenset(d for d in dims if isinstance(d.size, int) and (d.size <= MAX_INNER_SIZE or d not in whole))


def whole_dims(found: Iterable[Term]) -> set[Dim]:
    """Dims of sums that a tile holds whole: a reduction around the sum has dims of its own, as values have.

    The sum is then one of several products in a round of a loop. Where it is the only one, a tile goes through its dim
    in chunks, however long it is. Example: the logarithm of Σ_j exp(Σ_d x[i, d] · w[j, d]).
    """
    every = list(found)
    pairs = ((outer, r) for outer in every for r in reduces(outer.args[0]) if outer.attrs[1] in r.dims)
    return {r.attrs[1] for outer, r in pairs if not outer.dims <= r.dims}
