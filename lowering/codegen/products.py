"""Sums of products over a tile dim: the first strategy of a list that fits writes the sum.

Example: Σ_d q[i, d] · k[j, d] is a plain dot. Σ_d |q[i, d]| · w[d] has one matrix only: it is multiplied and summed.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

from ...egraph.terms.ops import const, make
from ...egraph.terms.term import Dim, Term
from ..analysis.product_terms import const_value, signed_factors, zero_at_padding
from ..plan.dtypes import HALVES, literal
from ..plan.records import NotPlannable
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
)
from .ops import TileValue, floating_loads_below
from .relative_products import by_skewed_products, by_skewed_weights
from .tiles import Tiles

MAX_DIMS_OF_A_SUM = 3  # of a tile that is multiplied and summed where a dim leads: registers hold no more


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


def multiply_two_matrices(writer: Tiles, sum_: Contraction) -> TileValue | None:
    """The sum as a product of two matrices, or of a matrix and a tile of three dims."""
    product = as_matrix_product(writer, sum_)
    return None if product is None else multiply(writer, product, MATRIX_STRATEGIES)


def multiply_and_sum(writer: Tiles, sum_: Contraction) -> TileValue:
    """The sum of a product that is computed element by element."""
    values = [writer.value(f) for f in sum_.factors]
    dims = writer.union(*values, *([sum_.weight] if sum_.weight else []))
    if writer.lead and len(dims) > MAX_DIMS_OF_A_SUM:
        raise NotPlannable(f"a sum of products over {len(dims)} dims of a tile at once is left to torch")
    factors = [writer.hoisted(v, dims) for v in values] + ([sum_.weight] if sum_.weight else [])
    text = " * ".join(f"{writer.align(v, dims)}{_to_float32(writer, v)}" for v in factors)
    text += _no_product_of_matrices(sum_, dims)
    product = writer.spread(TileValue(text or "1.0", dims), (sum_.dim,))
    present = _present(writer, sum_)
    if present is not None:
        product = writer.where(present, product, "0.0")
    text = writer.call("sum", product.text, axis=product.dims.index(sum_.dim))
    return added(writer, sum_.into, TileValue(text, tuple(d for d in product.dims if d != sum_.dim)))


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


MATRIX_STRATEGIES: tuple[Strategy[MatrixProduct], ...] = (batched_dot, mixed_tile, *PLAIN_STRATEGIES)
STRATEGIES: tuple[Strategy[Contraction], ...] = (
    by_skewed_weights,
    by_skewed_products,
    multiply_two_matrices,
    multiply_and_sum,
)
