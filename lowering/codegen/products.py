"""Sums of products over a tile dim: tl.dot where the factors are two matrices, else multiply and sum.

Which products may be rounded, the plan says. Example: Σ_d q[i, d] · k[j, d] becomes one tl.dot of two tiles.
"""

from __future__ import annotations

from math import prod

from ...egraph.terms.term import Dim, Term
from ..analysis.exact_products import native
from ..analysis.product_terms import const_value, signed_factors, zero_at_padding
from ..analysis.relative_index import Skewed, folded, skewed
from ..plan.dtypes import HALVES, is_integer, literal
from ..plan.records import Kernel, NotPlannable
from .batched_products import batched, merged, mixed, require_halves
from .ops import Value, halves_below, type_name
from .relative_products import across, declare, skew, unskew

PATTERN = 64  # halves in the 128 bytes after which shared memory's widest pattern repeats
NARROW = 128  # columns of a matrix that is multiplied in parts


def alike(loads: list[Term], held: dict[Dim, int], multiplied: set[Dim]) -> dict[Dim, int]:
    """Extents of the last dims of matrices that are multiplied, none narrower than the shared memory's widest pattern
    that one has.

    ptxas of CUDA 12.8 loses half of the address of a matrix that lies where one of another pattern was.
    """
    last = {d for n in loads for d in n.args[-1].dims if n.dtype in HALVES and d in held} & multiplied
    widest = min(PATTERN, max((held[d] for d in last), default=0))
    return {d: max(held[d], widest) for d in last}


def contract(writer, node: Term, body: Term, weight: Value | None = None, into=None, guard=None) -> Value:
    """into + Σ weight · body, over the dim of the reduction `node`; an exact one rounds no factor.

    The weight is zero where an element is absent; `guard` says so for the rest.
    """
    dim, exact = node.attrs[1], node in writer.kernel.exact
    parts = signed_factors(body)
    constant = prod(const_value(p, 1.0) for p in parts)
    parts = [p for p in parts if p.op != "const"]
    outside = [writer.value(p) for p in parts if dim not in p.dims]
    outside += [Value(literal(constant))] if constant != 1.0 else []
    inside = [p for p in parts if dim in p.dims]
    result = _matrix_product(writer, dim, inside, weight, None if outside else into, guard, exact)
    fused = result is not None and not outside and into is not None and result.dims == into.dims
    result = result or _summed_product(writer, dim, inside, weight, guard)
    for other in outside:
        dims = writer.union(result, other)
        result = Value(f"{writer.align(result, dims)} * {writer.align(other, dims)}", dims)
    if into is None or fused:
        return result
    dims = writer.union(into, result)
    return Value(f"{writer.align(into, dims)} + {writer.align(result, dims)}", dims)


def _summed_product(writer, dim: Dim, inside, weight: Value | None, guard: Value | None) -> Value:
    values = [writer.value(p) for p in inside] + ([weight] if weight else [])
    dims = writer.union(*values)
    if writer.lead and len(dims) > 3:
        raise NotPlannable(f"a sum of products over {len(dims)} dims of a tile at once is left to torch")
    values = [writer.hoisted(v, dims) for v in values[: len(inside)]] + values[len(inside) :]
    text = " * ".join(f"{writer.align(v, dims)}{'.to(tl.float32)' if v.dtype in HALVES else ''}" for v in values)
    product = writer.spread(Value(text or "1.0", dims), (dim,))
    settled = (weight is not None and not inside) or (inside and all(zero_at_padding(p, dim) for p in inside))
    present = writer.conjunction(None if settled else writer.padding(dim), guard)
    if weight and inside and writer.doubt.exact:  # what is absent weighs 0, and may be infinite
        score = writer.doubt.scores[weight.text]
        present = Value(f'{score.text} > float("-inf")', score.dims)
    if present is not None:
        product = writer.where(present, product, "0.0")
    return Value(f"tl.sum({product.text}, axis={product.dims.index(dim)})", tuple(d for d in product.dims if d != dim))


def _matrix_product(writer, dim, inside, weight, into: Value | None, guard, exact: bool) -> Value | None:
    """Σ_dim a · b as tl.dot, where the factors split into two matrices [x, dim] and [dim, y]."""
    if writer.doubt.exact:
        return None
    if writer.loop is not None and not writer.lead:
        rows, loop = writer.kernel.rows, writer.loop
        if dim == loop and (found := skewed(inside, rows, dim, weight.dims if weight else ())):
            others = [*found.others, *([weight] if weight else [])]
            left = skew(writer, found.dim, dim, _operand(writer, dim, others, guard))
            with across(writer, found.dim):
                return _matrix_product(writer, found.dim, list(found.values), left, into, None, exact)
        if weight is None and into is None and guard is None and (found := folded(inside, rows, loop, dim)):
            return _skewed_back(writer, dim, found, exact)
    groups: dict[tuple[Dim, ...], list] = {}
    for part in [*inside, *([weight] if weight else [])]:
        key = tuple(d for d in writer.sort(part.dims) if d != dim)
        groups.setdefault(key, []).append(part)
    vectors, groups = groups.pop((), []), merged(groups)
    keys = sorted(groups, key=lambda k: [writer.tile_dims.index(d) for d in k])
    if len(keys) != 2 or any(is_integer(p.dtype) for g in groups.values() for p in g) or not _fits(writer, *keys):
        return None
    computed = next((k for k in keys if len(groups[k]) > 1 or native(groups[k][0]) is None), keys[1])
    groups[computed] = groups[computed] + vectors
    if guard is not None:
        fits = [k for k in keys if set(guard.dims) <= {*k, dim}]
        if not fits:
            return None
        guarded = fits[0] if computed not in fits else computed
    left, right = (_operand(writer, dim, groups[k], guard if guard and k == guarded else None) for k in keys)
    alone = [groups[k][0] for k in keys if len(groups[k]) == 1]
    return _multiplied(writer, dim, left, right, inside, alone, into, exact)


def _skewed_back(writer, dim: Dim, found: Skewed, exact: bool) -> Value | None:
    """A product over rows, or columns, and differences, as it is over rows and columns."""
    loop, sides = writer.loop, (found.others, found.values)
    declare(writer, found.dim, loop)
    left = _operand(writer, dim, list(found.others), None)
    with across(writer, found.dim):
        right = _operand(writer, dim, list(found.values), None)
    if len(left.dims) != 2 or len(right.dims) != 2:
        return None
    left, right = sorted((left, right), key=lambda v: found.dim in v.dims)
    alone = [side[0] for side in sides if len(side) == 1]
    inside = [part for side in sides for part in side]
    result = _multiplied(writer, dim, left, right, inside, alone, None, exact)
    return result and unskew(writer, found.dim, loop, result)


def _multiplied(writer, dim, left: Value, right: Value, inside, alone, into: Value | None, exact: bool) -> Value | None:
    """into + the product of two matrices; `alone`: factors that are a side by themselves."""
    single = any(_is_single(p) for p in alone)
    halves = not halves_below(inside).isdisjoint(HALVES)
    pairs = _halved(writer, left, right, halves) if single and not exact else None
    kind = "bfloat16" if pairs else ""
    if pairs is None:
        kind, left, right = _agree(writer, left, right, inside, exact, single)
        pairs = [(left, right)]
    if len({*left.dims, *right.dims}) > 3:
        require_halves("float32" if len(pairs) > 1 else kind)
    how = {"float32": ', input_precision="ieee"', "float64": ", out_dtype=tl.float64"}.get(kind, "")
    for left, right in pairs:
        into = _dot(writer, dim, left, right, into, how)
        if into is None:
            return None
    return into


def _fits(writer, left: tuple[Dim, ...], right: tuple[Dim, ...]) -> bool:
    """Two matrices; where a dim leads in tiles of three, also two with a batch, or a matrix and such a tile."""
    if not writer.lead:
        return len(left) == len(right) == 1
    shared = {*left} & {*right}
    sizes = sorted(len({*k} - shared) for k in (left, right))
    return (sizes == [1, 1] and len(shared) < 2) or (sizes == [1, 2] and not shared)


def _dot(writer, dim: Dim, left: Value, right: Value, into: Value | None, how: str) -> Value | None:
    """The product, with `into` added where it has the same dims."""
    dims = writer.sort({*left.dims, *right.dims} - {dim})
    shared = [d for d in dims if d in left.dims and d in right.dims]
    added = f", {into.text}" if into is not None and into.dims == dims else ""
    if shared:
        return batched(left, right, dim, shared[0], dims, added + how)
    if len(dims) == 3:
        matrix, tile = sorted((left, right), key=lambda v: len(v.dims))
        result = mixed(writer, matrix, tile, dim, dims, how)
        return result and (Value(f"{into.text} + {result.text}", dims) if added else result)
    left = left.text if left.dims.index(dim) == 1 else f"tl.trans({left.text})"
    right = right.text if right.dims.index(dim) == 0 else f"tl.trans({right.text})"
    return Value(f"tl.dot({left}, {right}{added}{how})", dims)


def _halved(writer, left: Value, right: Value, halves: bool) -> list[tuple[Value, Value]] | None:
    """Products of bfloat16 instead of one of float32: of the rests of a rounding, and of the rounded.

    With bfloat16 on one side they have 16 bits, which is more than that matrix; as many with float32 on both, where
    one is made of halves and the result is only stored in one. None for other types.
    """
    kinds = {left.dtype, right.dtype}
    if kinds != {"float32", "bfloat16"} and not (kinds == {"float32"} and halves and multiplies_parts(writer.kernel)):
        return None
    (one, rest_one, finite_one), (two, rest_two, finite_two) = (_parts(writer, v) for v in (left, right))
    found = [(rest_one, finite_two)] if rest_one else []
    found += [(finite_one, rest_two)] if rest_two else []
    return [tuple(_widened(writer, v) for v in pair) for pair in [*found, (one, two)]]


def multiplies_parts(kernel: Kernel) -> bool:
    """Whether float32 matrices are multiplied in parts: what a product gives is only stored in half precision, no loop
    goes on with it, and registers hold three of a matrix.
    """
    narrow = all(isinstance(d.size, int) and d.size <= NARROW for d in kernel.held)
    return narrow and not kernel.loops and all(s.output.dtype in HALVES for s in kernel.stores)


def _parts(writer, value: Value) -> tuple[Value, Value | None, Value]:
    """(the value in bfloat16, the rest of this rounding, what may meet the other side's rest). An infinity has no rest,
    and computed ones meet none: 0 times infinity is NaN.
    """
    if value.dtype == "bfloat16":
        return value, None, value
    high = writer.assign("high", _typed(writer, value, "bfloat16", False))
    known = f'tl.abs({high.text}) < float("inf")'
    rest = Value(f"tl.where({known}, {value.text} - {high.text}.to(tl.float32), 0.0)", value.dims, "float32")
    finite = writer.assign("finite", Value(f"tl.where({known}, {high.text}, 0.0)", value.dims, "bfloat16"))
    return high, writer.assign("low", _typed(writer, rest, "bfloat16", False)), finite


def _widened(writer, value: Value) -> Value:
    """The interpreter multiplies bfloat16 as raw bits."""
    return Value(f"{value.text}.to(tl.float32)", value.dims, value.dtype) if writer.facts.interpreted else value


def _operand(writer, dim: Dim, parts: list, guard: Value | None) -> Value:
    """One matrix of a product: the raw half tile if it is one, else the float32 product of its factors."""
    raw = native(parts[0]) if len(parts) == 1 else None
    if raw is not None:
        value = writer.value(raw)
    else:
        values = [p if isinstance(p, Value) else writer.value(p) for p in parts]
        dims = writer.union(*values)
        value = Value(" * ".join(writer.align(v, dims) for v in values), dims, "float32")
    settled = all(isinstance(p, Value) or zero_at_padding(p, dim) for p in parts)
    present = writer.conjunction(None if settled else writer.padding(dim), guard)
    value = writer.where(present, value, "0.0") if present is not None else value
    return value if value.text.isidentifier() else writer.assign("factor", value)


def _is_single(part) -> bool:
    return isinstance(part, Term) and part.op == "load" and part.dtype == "float32"


def _agree(writer, left: Value, right: Value, inside, exact: bool, single: bool) -> tuple[str, Value, Value]:
    """Both operands in one type: a computed one follows a half one; two computed from halves only become halves.

    exact: only what is half already is multiplied so. single: one operand is float32 in memory, as it stands.
    """
    if any(p.dtype == "float64" for p in inside):
        return "float64", *(Value(f"{v.text}.to(tl.float64)", v.dims, "float64") for v in (left, right))
    half = {v.dtype for v in (left, right) if v.dtype in HALVES}
    if not half:
        half = halves_below(inside)
    kind = half.pop() if len(half) == 1 and not single else "float32"
    rounds = kind in HALVES and {left.dtype, right.dtype} != {kind}
    kind = "float32" if exact and rounds else kind
    widen = kind == "bfloat16" and writer.facts.interpreted
    return kind, *(_typed(writer, v, kind, widen) for v in (left, right))


def _typed(writer, value: Value, kind: str, widen: bool) -> Value:
    text = value.text if value.dtype == kind else f"{value.text}.to({type_name(kind)})"
    return Value(f"{text}.to(tl.float32)" if widen else text, value.dims, kind)
