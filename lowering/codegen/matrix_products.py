"""Sums of products as products of two matrices [x, dim] and [dim, y], and the types in which these are multiplied.

The plan says which products may be rounded (`Kernel.exact`). Example: Σ_d q[i, d] · k[j, d] becomes one tl.dot.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import TypeVar

from ...egraph.terms.term import Dim, Term
from ..analysis.exact_products import as_stored, multiplied_bytes, native
from ..analysis.product_terms import zero_at_padding
from ..plan.dtypes import HALVES, INT8, is_integer
from ..plan.records import Kernel
from .byte_conversions import centred_in_halves, helper_of
from .dialect import Dialect
from .ops import TileValue, floating_loads_below
from .tile_extents import merge_contained
from .tiles import Tiles

MAX_COLUMNS_IN_PARTS = 128  # of a matrix that is multiplied in parts: registers hold three of it
LEAST_BYTES = 32  # of a row or column of bytes, whose products one instruction adds up
COUNTED_FROM = 0x4B400000  # the bits of 3 · 2^22: from there on, up and down, the next float is the next whole number
MOST_COUNTED = 256  # products of two bytes, of up to 2^14 each, whose sum added to 3 · 2^22 keeps its last bit
Factor = Term | TileValue


@dataclass(frozen=True)
class Contraction:
    """into + Σ_dim weight · factors; each factor has the dim.

    The weight is zero where an element is absent. For the other factors `guard` says which elements there are.
    exact: no factor may be rounded.
    """

    dim: Dim
    factors: tuple[Term, ...]
    weight: TileValue | None = None
    into: TileValue | None = None
    guard: TileValue | None = None
    exact: bool = False

    @property
    def all_factors(self) -> list[Factor]:
        return [*self.factors, *([self.weight] if self.weight is not None else [])]


@dataclass(frozen=True)
class MatrixProduct:
    """into + Σ_dim left · right for two tiles.

    factors: the terms that both are made of. reads_float32: one side is a float32 matrix as it is in memory.
    """

    dim: Dim
    left: TileValue
    right: TileValue
    factors: tuple[Term, ...]
    reads_float32: bool
    into: TileValue | None = None
    exact: bool = False

    @property
    def dims(self) -> set[Dim]:
        """The dims of the result."""
        return {*self.left.dims, *self.right.dims} - {self.dim}


Sum = TypeVar("Sum", Contraction, MatrixProduct)
Strategy = Callable[[Tiles, Sum], TileValue | None]


def first_fitting(strategies: Iterable[Strategy[Sum]], writer: Tiles, product: Sum) -> TileValue | None:
    """The value that the first fitting strategy writes; None if none fits."""
    for strategy in strategies:
        found = strategy(writer, product)
        if found is not None:
            return found
    return None


def added(writer: Tiles, into: TileValue | None, value: TileValue) -> TileValue:
    """into + value."""
    if into is None:
        return value
    dims = writer.union(into, value)
    return TileValue(f"{writer.align(into, dims)} + {writer.align(value, dims)}", dims)


def multiply(writer: Tiles, product: MatrixProduct, strategies: Iterable[Strategy[MatrixProduct]]) -> TileValue | None:
    """The product as the first fitting strategy writes it, with `into` added where the strategy has not done so."""
    result = first_fitting(strategies, writer, product)
    if result is None or product.into is None or result.dims == product.into.dims:
        return result
    return added(writer, product.into, result)


# Two matrices


def as_matrix_product(writer: Tiles, sum_: Contraction) -> MatrixProduct | None:
    """The factors split over two matrices, whose tiles are written; None if there are no two such."""
    sides = _sides(writer, sum_)
    if sides is None:
        return None
    guarded = _guarded_side(sum_, sides)
    if guarded is None:
        return None
    left, right = (
        operand(writer, sum_.dim, side, sum_.guard if n == guarded else None) for n, side in enumerate(sides.values())
    )
    alone = [side[0] for side in sides.values() if len(side) == 1]
    return MatrixProduct(sum_.dim, left, right, sum_.factors, any(map(reads_float32, alone)), sum_.into, sum_.exact)


def _sides(writer: Tiles, sum_: Contraction) -> dict[tuple[Dim, ...], list[Factor]] | None:
    """The factors of both sides, by the dims that they have beside the summed one."""
    groups: dict[tuple[Dim, ...], list[Factor]] = {}
    for factor in sum_.all_factors:
        key = tuple(d for d in writer.sort(factor.dims) if d != sum_.dim)
        groups.setdefault(key, []).append(factor)
    vectors, groups = groups.pop((), []), merge_contained(groups)
    keys = sorted(groups, key=lambda k: [writer.tile_dims.index(d) for d in k])
    if len(keys) != 2 or any(is_integer(f.dtype) for group in groups.values() for f in group):
        return None
    if not _suit_a_product(writer, *keys):
        return None
    groups[_computed_side(groups, keys)] += vectors
    return {key: groups[key] for key in keys}


def _computed_side(groups: dict[tuple[Dim, ...], list[Factor]], keys: Sequence[tuple[Dim, ...]]) -> tuple[Dim, ...]:
    """The side that is computed anyway, or the right one: factors that have the summed dim alone join it."""
    return next((k for k in keys if len(groups[k]) > 1 or native(groups[k][0]) is None), keys[1])


def _guarded_side(sum_: Contraction, sides: dict[tuple[Dim, ...], list[Factor]]) -> int | None:
    """The number of the side that the guard sets to zero, a computed one if possible; None if it fits neither."""
    if sum_.guard is None:
        return 0
    keys = list(sides)
    fits = [k for k in keys if {*sum_.guard.dims} <= {*k, sum_.dim}]
    if not fits:
        return None
    computed = _computed_side(sides, keys)
    return keys.index(computed if computed in fits else fits[0])


def _suit_a_product(writer: Tiles, left: tuple[Dim, ...], right: tuple[Dim, ...]) -> bool:
    """Two matrices; where a dim leads in tiles of three, also two with a batch, or a matrix and such a tile."""
    if not writer.lead:
        return len(left) == len(right) == 1
    shared = {*left} & {*right}
    sizes = sorted(len({*k} - shared) for k in (left, right))
    return (sizes == [1, 1] and len(shared) < 2) or (sizes == [1, 2] and not shared)


def of_bytes(writer: Tiles, sum_: Contraction) -> TileValue | None:
    """A product of two matrices of int8, whose sums of 32 bits are whole numbers; None for other factors.

    A sum of few numbers starts at the bits of 3 · 2^22, a float whose last bit counts 1: it then is the bits of its
    sum with that float, and no integer has to be converted. Example: 5 becomes 0x4b400005, which is 12582917.0.
    """
    sides = _sides(writer, sum_)
    places = writer.resident.get(sum_.dim, 0)
    if sides is None or sum_.weight is not None or writer.lead or places < LEAST_BYTES:
        return None
    guarded = _guarded_side(sum_, sides)
    found = [f for side in sides.values() for f in side if isinstance(f, Term)]
    loads = [load for load in map(as_stored, found) if load is not None]
    if guarded is None or multiplied_bytes(*found) != INT8:
        return None
    guards = [sum_.guard if n == guarded else None for n in range(2)]
    left, right = (_present(writer, sum_.dim, [n], writer.value(n), g) for n, g in zip(loads, guards, strict=True))
    whole, dims = writer.type_name("int32"), writer.sort({*left.dims, *right.dims} - {sum_.dim})
    start = writer.call("full", writer.shape(dims), start_of_bytes(places), whole)
    made = _dot(writer, sum_.dim, left, right, TileValue(start, dims, "int32"), out_dtype=whole)
    return added(writer, sum_.into, TileValue(float_of_bytes(made.text, places, writer.dialect), dims))


def start_of_bytes(places: int) -> str:
    """What a sum of so many products of two bytes starts at."""
    return hex(COUNTED_FROM) if places <= MOST_COUNTED else "0"


def float_of_bytes(text: str, places: int, dialect: Dialect) -> str:
    """The sum as float32."""
    return f"sum_of_bytes({text})" if places <= MOST_COUNTED else f"{text}.to({dialect.type_name('float32')})"


def operand(writer: Tiles, dim: Dim, factors: Sequence[Factor], guard: TileValue | None = None) -> TileValue:
    """One matrix of a product: a half-precision tile as it is, else the float32 product of the factors.

    It is zero where the dim is padded, and where the guard is false.
    """
    raw = _native_factor(writer, factors[0]) if len(factors) == 1 else None
    if raw is not None:
        value = writer.value(raw)
    else:
        values = [f if isinstance(f, TileValue) else writer.value(f) for f in factors]
        dims = writer.union(*values)
        value = TileValue(" * ".join(writer.align(v, dims) for v in values), dims, "float32")
    return _present(writer, dim, factors, value, guard)


def _present(
    writer: Tiles, dim: Dim, factors: Sequence[Factor], value: TileValue, guard: TileValue | None
) -> TileValue:
    """The value of factors, zero where the dim is padded, and where the guard is false."""
    settled = all(isinstance(f, TileValue) or zero_at_padding(f, dim) for f in factors)
    present = writer.conjunction(None if settled else writer.padding(dim), guard)
    zero = "0" if is_integer(value.dtype) else "0.0"
    value = writer.where(present, value, zero) if present is not None else value
    return value if value.text.isidentifier() else writer.assign("factor", value)


def _native_factor(writer: Tiles, factor: Factor) -> Term | None:
    """The half-precision term that is the factor, where a load or a conversion of bytes gives it; else None."""
    if (found := native(factor)) is not None or not isinstance(factor, Term):
        return found
    found = centred_in_halves(factor)
    return found if found is not None and helper_of(found, writer.facts.machine) else None


def reads_float32(factor: Factor) -> bool:
    """Whether a factor is a float32 matrix as it is in memory."""
    return isinstance(factor, Term) and factor.op == "load" and factor.dtype == "float32"


# Types


def in_one_type(writer: Tiles, product: MatrixProduct) -> tuple[str, TileValue, TileValue]:
    """(the type, both operands in it). A computed operand follows a half one; two computed from halves become halves.

    An exact product multiplies in half precision only what is half already.
    """
    operands = (product.left, product.right)
    if any(f.dtype == "float64" for f in product.factors):
        double = writer.type_name("float64")
        left, right = (TileValue(f"{v.text}.to({double})", v.dims, "float64") for v in operands)
        return "float64", left, right
    kind = "float32" if product.reads_float32 else _common_half(product)
    if product.exact and kind in HALVES and {v.dtype for v in operands} != {kind}:
        kind = "float32"
    left, right = (widened(writer, converted(writer, v, kind)) for v in operands)
    return kind, left, right


def _common_half(product: MatrixProduct) -> str:
    """The half type of the operands, or else of all that they are computed from; float32 if there is no single one.

    Numbers of one byte are numbers of either half type: beside none, they are bfloat16, whose range no weight leaves.
    """
    halves = {v.dtype for v in (product.left, product.right) if v.dtype in HALVES}
    kinds = halves or floating_loads_below(product.factors)
    kinds = {kind for kind in kinds if not kind.startswith("float8")} or {"bfloat16"} if kinds else kinds
    return kinds.pop() if len(kinds) == 1 else "float32"


def converted(writer: Tiles, value: TileValue, kind: str) -> TileValue:
    """The value in another type."""
    text = value.text if value.dtype == kind else f"{value.text}.to({writer.type_name(kind)})"
    return TileValue(text, value.dims, kind)


def widened(writer: Tiles, value: TileValue) -> TileValue:
    """The value for a product: the interpreter multiplies the raw bits of bfloat16, so it gets float32."""
    if value.dtype != "bfloat16" or not writer.facts.interpreted:
        return value
    return TileValue(f"{value.text}.to({writer.type_name('float32')})", value.dims, value.dtype)


# Strategies


def in_halves(writer: Tiles, product: MatrixProduct) -> TileValue | None:
    """Products of bfloat16 instead of one of float32: of the rests that rounding leaves, and of the rounded operands.

    With bfloat16 on one side they keep 16 bits of the other, which is more than that side has. They keep as many with
    float32 on both sides. That is done where one side is made of halves and the result is only stored in halves.
    """
    if len(product.dims) != 2 or product.exact or not product.reads_float32:
        return None
    kinds = {product.left.dtype, product.right.dtype}
    has_halves = not floating_loads_below(product.factors).isdisjoint(HALVES)
    stored_in_halves = kinds == {"float32"} and has_halves and multiplies_in_parts(writer.kernel)
    if kinds != {"float32", "bfloat16"} and not stored_in_halves:
        return None
    left, right = (_in_parts(writer, v) for v in (product.left, product.right))
    pairs = [(left.rest, right.finite)] if left.rest else []
    pairs += [(left.finite, right.rest)] if right.rest else []
    into = product.into
    for one, other in (*pairs, (left.rounded, right.rounded)):
        into = _dot(writer, product.dim, widened(writer, one), widened(writer, other), into)
    return into


def plain_dot(writer: Tiles, product: MatrixProduct) -> TileValue | None:
    """One product, in the type that both operands can have."""
    if len(product.dims) != 2:
        return None
    kind, left, right = in_one_type(writer, product)
    options = {"float32": {"input_precision": '"ieee"'}, "float64": {"out_dtype": writer.type_name("float64")}}
    return _dot(writer, product.dim, left, right, product.into, **options.get(kind, {}))


PLAIN_STRATEGIES: tuple[Strategy[MatrixProduct], ...] = (in_halves, plain_dot)


def _dot(
    writer: Tiles, dim: Dim, left: TileValue, right: TileValue, into: TileValue | None, **options: str
) -> TileValue:
    """The product of two matrices, with `into` added where it has the same dims."""
    dims = writer.sort({*left.dims, *right.dims} - {dim})
    one = left.text if left.dims.index(dim) == 1 else writer.call("trans", left.text)
    other = right.text if right.dims.index(dim) == 0 else writer.call("trans", right.text)
    start = [into.text] if into is not None and into.dims == dims else []
    return TileValue(writer.call("dot", one, other, *start, **options), dims)


# Parts of float32


def multiplies_in_parts(kernel: Kernel) -> bool:
    """Whether float32 matrices are multiplied in parts: the result is only stored, in half precision, and no loop uses
    it. Registers hold three parts of a matrix."""
    narrow = all(isinstance(d.size, int) and d.size <= MAX_COLUMNS_IN_PARTS for d in kernel.held)
    return narrow and not kernel.loops and all(s.output.dtype in HALVES for s in kernel.stores)


@dataclass(frozen=True)
class _Parts:
    """A matrix rounded to bfloat16, the rest of this rounding, and what may be multiplied by the other side's rest.

    An infinity has no rest, and none is multiplied by a rest: 0 times infinity is NaN.
    """

    rounded: TileValue
    rest: TileValue | None
    finite: TileValue


def _in_parts(writer: Tiles, value: TileValue) -> _Parts:
    if value.dtype == "bfloat16":
        return _Parts(value, None, value)
    high = writer.assign("high", converted(writer, value, "bfloat16"))
    is_finite = f'{writer.call("abs", high.text)} < float("inf")'
    difference = f"{value.text} - {high.text}.to({writer.type_name('float32')})"
    rest = TileValue(writer.call("where", is_finite, difference, "0.0"), value.dims, "float32")
    without = TileValue(writer.call("where", is_finite, high.text, "0.0"), value.dims, "bfloat16")
    finite = writer.assign("finite", without)
    return _Parts(high, writer.assign("low", converted(writer, rest, "bfloat16")), finite)
