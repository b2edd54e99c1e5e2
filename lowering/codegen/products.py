"""Sums of products over a tile dim: the first strategy of a list that fits writes the sum.

Example: Σ_d q[i, d] · k[j, d] is a plain dot. Σ_d |q[i, d]| · w[d] has one matrix only: it is multiplied and summed.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

from ...egraph.terms.affine import affine
from ...egraph.terms.ops import const, iota, make
from ...egraph.terms.term import Dim, Term
from ...egraph.terms.traversal import at_place, subterms
from ..analysis.product_terms import const_value, signed_factors, zero_at_padding
from ..plan.dtypes import HALVES, literal
from ..plan.records import NotPlannable
from ..plan.term_edits import replace_from_above
from .batched_products import batched_dot, mixed_tile
from .matrix_products import (
    PLAIN_STRATEGIES,
    Contraction,
    MatrixProduct,
    Strategy,
    added,
    as_matrix_product,
    first_fitting,
    multiply,
    of_bytes,
)
from .ops import TileValue, atom, floating_loads_below
from .relative_products import by_skewed_products, by_skewed_weights
from .tile_extents import MIN_EXTENT_OF_A_MATRIX
from .tiles import Tiles

MAX_DIMS_OF_A_SUM = 3  # of a tile that is multiplied and summed where a dim leads: registers hold no more
MAX_ELEMENTS_OF_A_SUM = 1 << 16  # of a tile of three dims or more: sums are unrolled; 2^20 took 3 minutes to compile


def contract(
    writer: Tiles,
    node: Term,
    body: Term,
    weight: TileValue | None = None,
    into: TileValue | None = None,
    guard: TileValue | None = None,
) -> TileValue:
    """into + Σ weight · body, over the dim of the reduction `node`; factors without the dim are multiplied after it.

    The weight is zero where an element is absent. For the rest `guard` says which elements there are.
    """
    dim, factors = node.attrs[1], signed_factors(body)
    constant = prod(const_value(f, 1.0) for f in factors)
    factors = [f for f in factors if f.op != "const"]
    constant, factors = _scaled(constant, factors, weight, dim)
    outside = [writer.value(f) for f in factors if dim not in f.dims]
    outside += [TileValue(literal(constant))] if constant != 1.0 else []
    inside = tuple(f for f in factors if dim in f.dims)
    sum_ = Contraction(dim, inside, weight, None if outside else into, guard, node in writer.kernel.exact)
    result = first_fitting((multiply_and_sum,) if writer.skewing.exact else STRATEGIES, writer, sum_)
    assert result is not None, "every product can be multiplied and summed"
    for other in outside:
        dims = writer.union(result, other)
        result = TileValue(f"{writer.align(result, dims)} * {writer.align(other, dims)}", dims)
    return added(writer, into, result) if outside else result


def _scaled(constant: float, factors: list[Term], weight: TileValue | None, dim: Dim) -> tuple[float, list[Term]]:
    """The constant, and the factors: one that is computed for the tile of a state's weights takes it in.

    Else it would multiply the product, which then could not be added to the total as it is made.
    """
    if constant == 1.0 or weight is None:
        return constant, factors
    tile = {*weight.dims, dim}
    fitting = next((k for k, f in enumerate(factors) if f.op != "load" and tile <= f.dims), None)
    if fitting is None:
        return constant, factors
    scaled = make("mul", (factors[fitting], const(constant)))
    return 1.0, [*factors[:fitting], scaled, *factors[fitting + 1 :]]


def by_parity(writer: Tiles, sum_: Contraction) -> TileValue | None:
    """The sum over even places plus that over odd ones, where a factor is a choice between the two; rows stand last.

    Each is a product of half the depth whose matrix is used as it is loaded, while a tile of both kinds would be put
    together first. Example: Σ_d q[d] · where(d % 2 <= 0, x[d // 2] % 16, x[d // 2] // 16), two numbers in a byte.
    """
    if not writer.facts.rows_last or sum_.weight is not None or sum_.guard is not None:
        return None
    found = next(filter(None, (alternating_sides(writer, n) for f in sum_.factors for n in subterms(f))), None)
    if found is None or found[0] != sum_.dim or writer.resident[found[1]] < MIN_EXTENT_OF_A_MATRIX:
        return None
    _, half, _ = found
    writer.summed.add(half)
    result = sum_.into
    for parity in range(2):
        factors = tuple(at_parity(f, sum_.dim, half, parity) for f in sum_.factors)
        product = as_matrix_product(writer, Contraction(half, factors, None, result, exact=sum_.exact))
        result = None if product is None else multiply(writer, product, PLAIN_STRATEGIES)
        if result is None:
            return None
    return result


def multiply_two_matrices(writer: Tiles, sum_: Contraction) -> TileValue | None:
    """The sum as a product of two matrices, or of a matrix and a tile of three dims."""
    product = as_matrix_product(writer, sum_)
    return None if product is None else multiply(writer, product, MATRIX_STRATEGIES)


def multiply_and_sum(writer: Tiles, sum_: Contraction) -> TileValue:
    """The sum of a product that is computed element by element."""
    values = [writer.value(f) for f in sum_.factors]
    dims = writer.union(*values, *([sum_.weight] if sum_.weight else []))
    least = prod(writer.resident.get(d, MIN_EXTENT_OF_A_MATRIX) for d in dims)
    is_too_large = len(dims) >= MAX_DIMS_OF_A_SUM and least > MAX_ELEMENTS_OF_A_SUM
    if is_too_large or (writer.lead and len(dims) > MAX_DIMS_OF_A_SUM):
        raise NotPlannable(f"a sum of products over {len(dims)} dims of a tile at once is left to torch")
    factors = [*values, *([sum_.weight] if sum_.weight else [])]
    text = " * ".join(_in_tile(writer, group, dims) for group in _by_dims(factors, dims))
    text += _no_product_of_matrices(sum_, dims)
    product = writer.spread(TileValue(text, dims) if text else TileValue("1.0", (), "float"), (sum_.dim,))
    present = _present(writer, sum_)
    if present is not None:
        product = writer.where(present, product, "0.0")
    return added(writer, sum_.into, _folded(writer, product, sum_.dim))


def _folded(writer: Tiles, product: TileValue, dim: Dim) -> TileValue:
    """The sum of a tile along a dim. In pieces, its bits depend on no layout of rows and columns."""
    axis, text = product.dims.index(dim), product.text
    in_pairs = writer.facts.piece > 1 and dim in writer.tile_dims and (axis, len(product.dims)) == (1, 2)
    text = f"sum_in_pairs({text})" if in_pairs else writer.call("sum", text, axis=axis)
    return TileValue(text, tuple(d for d in product.dims if d != dim))


def _by_dims(factors: Sequence[TileValue], dims: tuple[Dim, ...]) -> list[list[TileValue]]:
    """The factors of a tile, in groups that are multiplied with each other first.

    In a tile of three dims, factors that have the same two dims are a group: x[i, j, d] · (a[i, j] · b[i, j]) takes one
    multiplication for each element of the tile, not two. Every other factor is a group of its own.
    """
    if len(dims) < MAX_DIMS_OF_A_SUM:
        return [[factor] for factor in factors]
    found: dict[object, list[TileValue]] = {}
    for number, factor in enumerate(factors):
        key = factor.dims if 1 < len(factor.dims) < len(dims) else number
        found.setdefault(key, []).append(factor)
    return list(found.values())


def _in_tile(writer: Tiles, factors: Sequence[TileValue], dims: tuple[Dim, ...]) -> str:
    """The product of factors that have the same dims, as it broadcasts against a tile."""
    if len(factors) == 1:
        [factor] = factors
        return f"{writer.align(writer.hoisted(factor, dims), dims)}{_to_float32(writer, factor)}"
    text = " * ".join(f"{atom(factor.text)}{_to_float32(writer, factor)}" for factor in factors)
    return writer.align(TileValue(text, factors[0].dims), dims)


def _no_product_of_matrices(sum_: Contraction, dims: Sequence[Dim]) -> str:
    """An addition of 0 that keeps Triton from writing a sum of three dims as a product of matrices in TensorFloat-32,
    which it does whatever precision was asked for; made of halves, a sum may be one."""
    is_exact = sum_.exact or "float32" in floating_loads_below(sum_.factors)
    return " + 0.0" if len(dims) == 3 and is_exact else ""


def _to_float32(writer: Tiles, value: TileValue) -> str:
    return f".to({writer.type_name('float32')})" if value.dtype in HALVES else ""


def _present(writer: Tiles, sum_: Contraction) -> TileValue | None:
    """Where the product is not zero by itself: the elements that are there; None if it is zero at all others."""
    weight, factors = sum_.weight, sum_.factors
    settled = all(zero_at_padding(f, sum_.dim) for f in factors) if factors else weight is not None
    present = writer.conjunction(None if settled else writer.padding(sum_.dim), sum_.guard)
    if weight is not None and factors and writer.skewing.exact:  # a factor may be infinite where the weight is zero
        score = writer.skewing.scores[weight.text]
        return TileValue(f'{score.text} > float("-inf")', score.dims)
    return present


# Columns of two kinds that alternate


def alternating_sides(writer: Tiles, node: Term) -> tuple[Dim, Dim, list[Term]] | None:
    """Of a choice by the parity of columns d: d, a dim of half of them, and both sides by that dim, as
    `where(d % 2 <= 0, x[d // 2], y[d // 2])` has x[h] and y[h]; None where a side reads anything else along d."""
    dim = _alternating(node.args[0]) if node.op == "where" else None
    if dim is None or (half := writer.half_of(dim)) is None:
        return None
    sides = [_by_half(side, dim, half) for side in node.args[1:]]
    return (dim, half, sides) if all(_is_dense(side, dim, half) for side in sides) else None


def at_parity(factor: Term, dim: Dim, half: Dim, parity: int) -> Term:
    """The factor at the even places of a dim, or at the odd ones."""
    choices = {n: n.args[1 + parity] for n in subterms(factor) if n.op == "where" and _alternating(n.args[0]) == dim}
    found = _by_half(replace_from_above(factor, choices), dim, half)
    return at_place(found, dim, iota(half) * 2 + parity)


def _alternating(condition: Term) -> Dim | None:
    """The dim d of d % 2 <= 0, which holds for even columns."""
    if condition.op != "le" or condition.args[1] is not const(0) or condition.args[0].op != "mod":
        return None
    index, size = condition.args[0].args
    return index.attrs[0] if index.op == "iota" and size is const(2) else None


def _by_half(side: Term, dim: Dim, half: Dim) -> Term:
    """The term with d // 2 as a coordinate of its own."""
    pairs = {t for t in subterms(side) if t.op == "floordiv" and t.args[0] is iota(dim) and t.args[1] is const(2)}
    return replace_from_above(side, dict.fromkeys(pairs, iota(half)))


def _is_dense(side: Term, dim: Dim, half: Dim) -> bool:
    """Whether the term has d as d // 2 only, and reads neighbouring places by it.

    Of a term that reads every second column, a load would take the elements one by one.
    """
    if dim in side.dims or half not in side.dims:
        return False
    found = [index for load in subterms(side) if load.op == "load" for index in load.args if half in index.dims]
    return all(affine(index)[0].get(iota(half)) == 1 for index in found)


MATRIX_STRATEGIES: tuple[Strategy[MatrixProduct], ...] = (batched_dot, mixed_tile, *PLAIN_STRATEGIES)
STRATEGIES: tuple[Strategy[Contraction], ...] = (
    by_skewed_weights,
    by_skewed_products,
    by_parity,
    of_bytes,
    multiply_two_matrices,
    multiply_and_sum,
)
