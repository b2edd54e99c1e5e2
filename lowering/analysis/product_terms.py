"""Products of terms taken apart: factors, constants, and the two sides of a matrix product over a dim.

No question looks at tiles or text. Example: `scale_split(x · 2)` is `(x, 2.0)`.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from math import isfinite, prod

from ...egraph.terms.ops import make
from ...egraph.terms.term import Dim, Term
from ...egraph.terms.traversal import factors
from ..plan.records import Kernel
from .dim_roles import is_product, two_sides
from .exact_products import native
from .nested_sums import reductions
from .relative_index import relative_values


def const_value(node: Term | object, otherwise: float | None) -> float | None:
    """The number of a literal; `otherwise` for what is no literal."""
    return node.attrs[0] if isinstance(node, Term) and node.op == "const" else otherwise


def signed_factors(node: Term) -> list[Term]:
    """The factors of a product, nested products flattened; a negation gives the factor -1."""
    if node.op == "mul":
        return signed_factors(node.args[0]) + signed_factors(node.args[1])
    if node.op == "neg":
        return [make("const", (), (-1.0,)), *signed_factors(node.args[0])]
    if node.op == "div" and const_value(node.args[1], 0):
        return [*signed_factors(node.args[0]), make("const", (), (1.0 / node.args[1].attrs[0],))]
    return [node]


def scale_split(gauge: Term) -> tuple[Term, float]:
    """gauge = x · c with a finite constant c > 0, also out of a sum; c = 1 where there is none."""
    summed = gauge.op == "reduce" and gauge.attrs[0] == "sum"
    parts = signed_factors(gauge.args[0] if summed else gauge)
    constant = prod(float(const_value(p, 1.0)) for p in parts)
    rest = [p for p in parts if p.op != "const"]
    if constant == 1.0 or not rest or not isfinite(constant) or constant <= 0:
        return gauge, 1.0
    raw = product(rest)
    return (make("reduce", (raw,), gauge.attrs) if summed else raw), constant


def operands(kernel: Kernel, nodes: Iterable[Term]) -> list[Term]:
    """Loads that are factors of sums without any change: what a matrix product reads from memory."""
    nodes = list(nodes)
    bodies = [n.args[0] for n in nodes if n.op == "reduce" and n.attrs[0] == "sum"]
    bodies += [value for loop in kernel.loops for state in loop.accumulators for value in state.values]
    bodies += [n.args[1] for n in nodes if n.op == "scaled"]
    parts = [native(part) for body in bodies for part in signed_factors(body)]
    return [part for part in parts if part is not None and part.op == "load"]


def matrix_products(kernel: Kernel) -> list[Term]:
    """The products of matrices that a kernel computes for each tile, as sums, inside of its loops and behind them."""
    sums = (r for loop in kernel.loops for state in loop.accumulators for r in state.reductions)
    return [r for r in reductions([*sums, *(store.term for store in kernel.stores)]) if is_product(r)]


def zero_at_padding(part: Term | object, dim: Dim) -> bool:
    """Whether a tile of the factor is 0 where dim is padded: loads are, and what keeps zeros. Others must be masked."""
    if not isinstance(part, Term):
        return True
    if part.op == "load":
        return dim in part.dims
    if part.op in ("cast", "neg"):
        return zero_at_padding(part.args[0], dim)
    if part.op == "mul":
        kept = [zero_at_padding(a, dim) or isfinite(float(const_value(a, float("inf")))) for a in part.args]
        return all(kept) and any(zero_at_padding(a, dim) for a in part.args)
    if part.op == "where":
        return all(zero_at_padding(a, dim) for a in part.args[1:])
    return False


def product(parts: Iterable[Term]) -> Term | None:
    """The product of the terms; None for none."""
    result = None
    for part in parts:
        result = part if result is None else make("mul", (result, part))
    return result


def sides(summand: Term, dim: Dim) -> tuple[Term, Term] | None:
    """The two operands of the matrix product that sums the summand over dim; None if it has not two sides."""
    parts = factors(summand)
    left, right = two_sides([p.dims for p in parts], dim)
    if not right:
        return None
    operands = product(parts[k] for k in left), product(parts[k] for k in right)
    # A factor that fits on both sides stays where the term has it: scale_early has chosen.
    one, other = summand.args
    written = (one, other) if one.dims == operands[0].dims else (other, one)
    return written if [x.dims for x in written] == [x.dims for x in operands] else operands


@dataclass(frozen=True)
class Summand:
    """One value of an accumulator as `left` · `right`, the two sides of a matrix product over the loop's dim.

    In a softmax state the weight is on the left as well; then left is None if there is nothing but the weight. right is
    None if there is nothing to multiply by. across: the dim of a relative index, column − row, that the right side has
    instead of the loop's dim (relative_index.py).
    """

    left: Term | None
    right: Term | None
    across: Dim | None = None

    @property
    def terms(self) -> list[Term]:
        return [t for t in (self.left, self.right) if t is not None]


def summand(
    value: Term, dim: Dim, monoid: str, weight: frozenset[Dim] | None, guard: frozenset[Dim], rows: Dim | None = None
) -> Summand:
    """Splits the value's factors over two sides. weight: the dims of a softmax state's weight; guard: the guard's."""
    if monoid not in ("sum", "rescaled"):
        return Summand(value, None)
    weights = [] if weight is None else [weight | guard | {dim}]
    parts = [] if weights and const_value(value, None) == 1 else factors(value)
    if found := relative_values(parts, rows, dim, *weights):
        return Summand(product(found.others), product(found.values), found.dim)
    if weights:
        return _beside_weight(parts, weights[0], dim)
    one, two = two_sides([p.dims for p in parts], dim)
    left, right = product(parts[k] for k in one), product(parts[k] for k in two)
    if right is not None and guard <= right.dims and not guard <= left.dims:
        left, right = right, left  # what the guard drops is set to zero on the left
    return Summand(left, right)


def _beside_weight(parts: list[Term], weight: frozenset[Dim], dim: Dim) -> Summand:
    """The factors as two sides, of which the left one also has a weight with these dims."""
    one, two = two_sides([weight, *(p.dims for p in parts)], dim)
    left, right = (two, one) if 0 in two else (one, two)
    factors_of = lambda side: product(parts[k - 1] for k in side if k > 0)
    return Summand(factors_of(left), factors_of(right))
