"""Reductions, softmax and matrix products as terms; each makes a fresh bound dim.

A product of halves multiplies and adds in float32 and rounds once. Example: softmax(x) is exp(x - m) / Σ exp(x - m),
where m is the maximum.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from .. import messages
from ..egraph.terms.affine import compare
from ..egraph.terms.index_simplify import floordiv
from ..egraph.terms.ops import const, eq, exp, iota, log, make, max_over, reduce, sum_over
from ..egraph.terms.positions import PLACES, pair
from ..egraph.terms.sizes import Size, term_of
from ..egraph.terms.term import Dim, Term
from ..graph.program import Meta
from ..graph.random_operators import scale_of_kept
from . import registry
from .creation import kept_at
from .pointwise import float_scalar, scalar
from .registry import (
    FLOATING,
    Handlers,
    Index,
    OperatorCall,
    TensorValue,
    apply,
    choose,
    compute_dtype,
    convert,
    element,
    require_fit,
    same_size,
    spread,
    stored_literal,
    term_dtype,
)

handles = Handlers()


def _axes(value: TensorValue, dims) -> list[int]:
    if dims is None or dims == []:
        return list(range(len(value.shape)))
    return sorted(value.axis(d) for d in (dims if isinstance(dims, list) else [dims]))


@dataclass(frozen=True)
class AxisReduction:
    """Which axes are reduced with which monoid, in which dtype, and whether they stay with one element."""

    monoid: str
    axes: Sequence[int]
    keepdim: bool
    dtype: str


def _reduction(call: OperatorCall, monoid: str, source: TensorValue, dtype: str) -> AxisReduction:
    """By the arguments `dim` and `keepdim`, where the operation has them."""
    return AxisReduction(monoid, _axes(source, call.get("dim")), bool(call.get("keepdim")), dtype)


def fold(
    call: OperatorCall,
    source: TensorValue,
    how: AxisReduction,
    after: Callable[[Term], Term] = lambda x: x,
    meta: Meta | None = None,
) -> TensorValue:
    """The reduction of a value, then `after` of each element, stored as `meta` says (default: as the call's result)."""
    meta = meta or call.meta
    binders = {axis: call.binder(source.shape[axis]) for axis in how.axes}

    def pull(index):
        rest = list(index)
        full = []
        for axis in range(len(source.shape)):
            if axis in binders:
                full.append(iota(binders[axis]))
                if how.keepdim:
                    rest.pop(0)
            else:
                full.append(rest.pop(0))
        body = element(source, tuple(full), how.dtype)
        for axis in reversed(how.axes):
            body = reduce(how.monoid, binders[axis], body)
        return registry.stored(after(body), meta.dtype)

    return call.value(pull, meta)


@handles("aten.amax.default", "aten.amin.default", "aten.max.default", "aten.min.default")
def extremum(call: OperatorCall) -> TensorValue:
    monoid = "max" if "max" in call.node.target else "min"
    source = call["self"]
    if source.meta.dtype not in FLOATING:
        raise call.refuse(messages.EXTREMA)
    return fold(call, source, _reduction(call, monoid, source, source.kind))


@handles("aten.max.dim", "aten.min.dim")
def extremum_with_position(call: OperatorCall) -> list[TensorValue]:
    return [extremum(call), _position(call, call.node.metas[1])]


@handles("aten.argmax.default", "aten.argmin.default")
def position(call: OperatorCall) -> TensorValue:
    return _position(call, call.meta)


def _position(call: OperatorCall, meta: Meta) -> TensorValue:
    """torch's position of an extremum: the first of equal elements, that of the first NaN if there is one.

    It is -max_j (order(x_j) · 2^32 - j), modulo 2^32. A pair of an element and its position is one whole number: pairs
    are in the order of their elements, and of equal ones the first is the largest. So their maximum is a monoid that is
    known already. Of the smallest element, x is -x.
    """
    source, sign = call["self"], 1 if "max" in call.node.target else -1
    how = _reduction(call, "max", source, "int64")

    def pair_at(index: Index) -> Term:
        if compute_dtype(source.meta.dtype) != "float32":
            raise call.refuse(messages.POSITIONS_OF_EXTREMA, dtype=source.meta.dtype)
        if len(how.axes) != 1:
            raise call.refuse(messages.SEVERAL_DIMS)
        x = convert(source.at(index), "float32")
        return pair(x if sign > 0 else -x, index[how.axes[0]])

    pairs = TensorValue(replace(source.meta, dtype="int64"), pair_at)
    return fold(call, pairs, how, lambda best: apply("mod", apply("neg", best), const(PLACES)), meta)


def is_position(result: Term) -> bool:
    """Whether the term is a position of an extremum, and nothing made of one."""
    return result.op == "mod" and result.args[1] is const(PLACES)


@handles("aten.one_hot.default")
def one_hot(call: OperatorCall) -> TensorValue:
    """1 at the position of an extremum, and 0 elsewhere."""
    positions = call["self"]
    _require_extremum(call, positions, call.meta.shape[-1])
    there = lambda index: apply("eq", index[-1], positions.at(index[:-1]))
    return call.value(lambda index: choose(there(index), const(1), const(0)))


@handles("aten.scatter.value", "aten.scatter.src")
def scatter(call: OperatorCall) -> TensorValue:
    """A tensor with another element at one position of each row, that of an extremum: a choice for each element."""
    target, positions, source = call["self"], call["index"], call.get("src")
    axis, dtype = target.axis(call["dim"]), call.meta.dtype
    whole = all(k == axis or same_size(*sizes) for k, sizes in enumerate(zip(positions.shape, target.shape)))
    if len(positions.shape) != len(target.shape) or not target.shape or positions.shape[axis] != 1 or not whole:
        raise call.refuse(messages.POSITIONS_WRITTEN)
    _require_extremum(call, positions, target.shape[axis])
    if source is None:
        require_fit(call, call["value"])
        number = registry.stored(stored_literal(call["value"], dtype), dtype)

    def pull(index: Index) -> Term:
        row = (*index[:axis], const(0), *index[axis + 1 :])
        written = number if source is None else source.at(row)
        return choose(apply("eq", index[axis], positions.at(row)), written, target.at(index))

    return call.value(pull)


def _require_extremum(call: OperatorCall, positions: TensorValue, size: Size) -> None:
    """Raises Refusal for positions that may be out of bounds of an axis: eager raises there, and a choice does not."""
    place = positions.at(tuple(iota(call.binder(n)) for n in positions.shape))
    if not is_position(place):
        raise call.refuse(messages.POSITIONS_WRITTEN)
    (found,) = (node for part in place.args[0].args for node in (part, *part.args) if node.op == "reduce")
    call.require_within(iota(found.attrs[1]), size, wraps=False)


def _sum_dtype(call) -> str:
    return compute_dtype(call["dtype"] or call.meta.dtype)


def _stored(call: OperatorCall, source: TensorValue) -> TensorValue:
    """The source, cast to the `dtype` argument where there is one."""
    if call.get("dtype") is None:
        return source
    meta = replace(source.meta, dtype=call["dtype"])
    return TensorValue(meta, lambda index: convert(source.at(index), meta.dtype))


@handles("aten.sum.default", "aten.sum.dim_IntList")
def total(call: OperatorCall) -> TensorValue:
    source = _stored(call, call["self"])
    return fold(call, source, _reduction(call, "sum", source, _sum_dtype(call)))


@handles("aten.prod.dim_int")
def total_product(call: OperatorCall) -> TensorValue:
    source = _stored(call, call["self"])
    return fold(call, source, _reduction(call, "prod", source, _sum_dtype(call)))


@handles("aten.mean.default", "aten.mean.dim")
def mean(call: OperatorCall) -> TensorValue:
    source, dtype = _stored(call, call["self"]), _sum_dtype(call)
    how = _reduction(call, "sum", source, dtype)
    count = const(1)
    for axis in how.axes:
        count = apply("mul", count, term_of(source.shape[axis]))
    return fold(call, source, how, lambda x: apply("div", x, convert(count, dtype)))


@handles("aten.any.default", "aten.any.dim", "aten.any.dims", "aten.all.default", "aten.all.dim", "aten.all.dims")
def quantifier(call: OperatorCall) -> TensorValue:
    monoid = "any" if "any" in call.node.target else "all"
    return fold(call, call["self"], _reduction(call, monoid, call["self"], "bool"))


class SoftmaxRow:
    """One axis of a value along which it is normalised: its elements, their maximum, the sum of their exponentials."""

    def __init__(self, call: OperatorCall, source: TensorValue, axis: int, dtype: str):
        self.source, self.axis, self.dtype = source, source.axis(axis), dtype
        self.binder = call.binder(source.shape[self.axis] if source.shape else 1)

    def element(self, index: Sequence[Term]) -> Term:
        """The element at an index, in the dtype of the arithmetic."""
        return element(self.source, tuple(index), self.dtype)

    def _along(self, index) -> Term:
        index = list(index)
        if index:
            index[self.axis] = iota(self.binder)
        return self.element(index)

    def largest(self, index: Sequence[Term]) -> Term:
        """The maximum along the axis."""
        return max_over(self.binder, self._along(index))

    def total(self, index: Sequence[Term]) -> Term:
        """The sum of exp(x - maximum) along the axis."""
        return sum_over(self.binder, exp(self._along(index) - self.largest(index)))

    def softmax(self, index: Sequence[Term]) -> Term:
        """The element's share of that sum."""
        return exp(self.element(index) - self.largest(index)) / self.total(index)


def _row(call) -> SoftmaxRow:
    source = _stored(call, call["self"])
    return SoftmaxRow(call, source, call["dim"], compute_dtype(source.meta.dtype))


@handles("aten.softmax.int", "aten._softmax.default", "aten.special_softmax.default")
def softmax(call: OperatorCall) -> TensorValue:
    row = _row(call)
    return call.value(lambda index: convert(row.softmax(index), term_dtype(call.meta.dtype)))


@handles("aten._safe_softmax.default")
def safe_softmax(call: OperatorCall) -> TensorValue:
    row = _row(call)

    def pull(index):
        empty = eq(row.largest(index), const(-math.inf))
        return convert(make("where", (empty, const(0.0), row.softmax(index))), term_dtype(call.meta.dtype))

    return call.value(pull)


@handles("aten.log_softmax.int", "aten._log_softmax.default", "aten.special_log_softmax.default")
def log_softmax(call: OperatorCall) -> TensorValue:
    row = _row(call)

    def pull(index):
        return convert(row.element(index) - row.largest(index) - log(row.total(index)), term_dtype(call.meta.dtype))

    return call.value(pull)


@handles("aten.logsumexp.default")
def logsumexp(call: OperatorCall) -> TensorValue:
    """log Σ e^s as max + log Σ e^(s - max); a largest score of -inf or inf is the result, as it is eager's."""
    source = call["self"]
    axes = _axes(source, call["dim"])
    if len(axes) != 1:
        raise call.refuse(messages.SEVERAL_DIMS)
    axis = axes[0]
    row = SoftmaxRow(call, source, axis, compute_dtype(source.meta.dtype))

    def pull(index):
        full = list(index)
        full[axis : axis + bool(call["keepdim"])] = [const(0)]
        largest = row.largest(full)
        result = largest + log(row.total(full))
        for infinite in (const(math.inf), const(-math.inf)):
            result = make("where", (eq(largest, infinite), infinite, result))
        return convert(result, term_dtype(call.meta.dtype))

    return call.value(pull)


def contraction(terms: Sequence[Term], binders: Sequence[Dim], dtype: str) -> Term:
    """Σ over the binders of the product of the terms."""
    body = terms[0]
    for factor in terms[1:]:
        body = body * factor
    for binder in reversed(binders):
        body = sum_over(binder, body)
    return convert(body, dtype)


def require_floats(call: OperatorCall, *values: TensorValue) -> str:
    if any(v.meta.dtype not in FLOATING for v in values):
        raise call.refuse(messages.INTEGER_PRODUCT)
    return compute_dtype(values[0].meta.dtype)


def product_of(call: OperatorCall, left: TensorValue, right: TensorValue) -> TensorValue:
    """The matrix product with PyTorch's broadcasting: (..., m, k) @ (..., k, n), vectors allowed."""
    dtype = require_floats(call, left, right)
    binder = call.binder(left.shape[-1])
    one_left, one_right = len(left.shape) == 1, len(right.shape) == 1

    def pull(index):
        ends = 2 - one_left - one_right
        batch, tail = index[: len(index) - ends], list(index[len(index) - ends :])
        shape = call.meta.shape[: len(batch)]
        row = () if one_left else (tail.pop(0),)
        column = () if one_right else (tail.pop(0),)
        a = (*batch_index(left, batch, shape), *row, iota(binder))
        b = (*batch_index(right, batch, shape), iota(binder), *column)
        return contraction([element(left, a, dtype), element(right, b, dtype)], [binder], dtype)

    return TensorValue(call.meta, pull)


def batch_index(value: TensorValue, batch: Sequence[Term], shape: Sequence[Size]) -> Index:
    """The batch part of an index into an operand that is broadcast over batch axes."""
    own = value.shape[:-2]
    kept, sizes = batch[len(batch) - len(own) :], shape[len(batch) - len(own) :]
    return tuple(const(0) if o == 1 != s else i for o, s, i in zip(own, sizes, kept, strict=True))


def _rounded(call: OperatorCall, x: TensorValue) -> TensorValue:
    return call.value(lambda index: convert(x.at(index), term_dtype(call.meta.dtype)))


@handles("aten.matmul.default", "aten.linalg_matmul.default", "aten.mv.default", "aten.dot.default")
def matmul(call: OperatorCall) -> TensorValue:
    return _rounded(call, product_of(call, call["self"], call.get("other") or call.get("tensor") or call.get("vec")))


@handles("aten.mm.default", "aten.bmm.default")
def bmm(call: OperatorCall) -> TensorValue:
    return _rounded(call, product_of(call, call["self"], call["mat2"]))


@handles("aten.baddbmm.default", "aten.addmm.default", symbolic="alpha beta")
def baddbmm(call: OperatorCall) -> TensorValue:
    left, right = call.get("batch1") or call.get("mat1"), call.get("batch2") or call["mat2"]
    product, added = product_of(call, left, right), call["self"]
    dtype = compute_dtype(call.meta.dtype)

    def pull(index):
        result = product.at(index) if call["alpha"] == 1 else product.at(index) * scalar(call["alpha"], dtype)
        if call["beta"] == 0:
            return convert(result, term_dtype(call.meta.dtype))
        extra = element(added, spread(added, index, call.meta.shape), dtype)
        extra = extra if call["beta"] == 1 else extra * scalar(call["beta"], dtype)
        return convert(extra + result, term_dtype(call.meta.dtype))

    return call.value(pull)


@handles("aten.linear.default")
def linear(call: OperatorCall) -> TensorValue:
    x, weight, bias = call["input"], call["weight"], call["bias"]
    dtype = require_floats(call, x, weight)
    binder = call.binder(x.shape[-1])

    def pull(index):
        a, b = element(x, (*index[:-1], iota(binder)), dtype), element(weight, (index[-1], iota(binder)), dtype)
        result = contraction([a, b], [binder], dtype)
        return convert(
            result if bias is None else result + element(bias, index[-1:], dtype), term_dtype(call.meta.dtype)
        )

    return call.value(pull)


@handles("aten.einsum.default")
def einsum(call: OperatorCall) -> TensorValue:
    operands = call["tensors"]
    dtype = require_floats(call, *operands)
    inputs, result, sizes = _subscripts(call["equation"], operands)
    bound = [c for c in sizes if c not in result]
    binders = {c: call.binder(sizes[c]) for c in bound}

    def pull(index):
        where = dict(zip(result, index, strict=True)) | {c: iota(d) for c, d in binders.items()}
        terms = []
        for letters, x in zip(inputs, operands, strict=True):
            own = zip(letters, x.shape, strict=True)
            terms.append(element(x, tuple(const(0) if s == 1 != sizes[c] else where[c] for c, s in own), dtype))
        return convert(contraction(terms, list(binders.values()), dtype), term_dtype(call.meta.dtype))

    return call.value(pull)


def _subscripts(equation: str, operands: Sequence[TensorValue]) -> tuple[list[list[str]], list[str], dict[str, Size]]:
    """Letters per operand and of the result, and their sizes; an ellipsis is "0", "1", ... from the right."""
    left, arrow, right = equation.replace(" ", "").partition("->")
    texts = [
        (text, len(x.shape) - len(text.replace("...", ""))) for text, x in zip(left.split(","), operands, strict=True)
    ]
    inputs = [_letters(text, covered) for text, covered in texts]
    longest = max((covered for text, covered in texts if "..." in text), default=0)
    result = _letters(right, longest) if arrow else _digits(longest) + _single_letters(inputs)
    sizes: dict[str, Size] = {}
    for letters, x in zip(inputs, operands, strict=True):
        for c, s in zip(letters, x.shape, strict=True):
            sizes[c] = s if sizes.get(c, 1) == 1 else sizes[c]
    return inputs, result, sizes


def _letters(text: str, covered: int) -> list[str]:
    """The letters of a tensor; an ellipsis covers so many axes."""
    head, ellipsis, tail = text.partition("...")
    return [*head, *(_digits(covered) if ellipsis else []), *tail]


def _digits(count: int) -> list[str]:
    return [str(k) for k in range(count - 1, -1, -1)]


def _single_letters(inputs: Sequence[list[str]]) -> list[str]:
    """What the result has where an equation does not say it: the letters that occur once, in order."""
    letters = [c for found in inputs for c in found if not c.isdigit()]
    return sorted(c for c in letters if letters.count(c) == 1)


@handles("aten.scaled_dot_product_attention.default", "onepass.scaled_dot_product_attention.default", symbolic="scale")
def scaled_dot_product_attention(call: OperatorCall) -> TensorValue:
    """softmax(q kᵀ · scale + mask) v; a row that the mask empties gives zero, as eager's kernels do."""
    p, seed = call["dropout_p"], call.get("seed")
    if p and seed is None:
        raise call.refuse(messages.RANDOM_DROPOUT)
    query, key, value, mask = call["query"], call["key"], call["value"], call["attn_mask"]
    dtype = require_floats(call, query, key, value)
    channel, column = call.binder(query.shape[-1]), call.binder(key.shape[-2])
    head = len(call.meta.shape) - 3
    group = 1 if not call["enable_gqa"] or head < 0 else _group(call, query, key, value)
    factor = _scale(call["scale"], query.shape[-1], dtype)

    def shared(source: TensorValue, batch):
        """The batch index into keys and values: a group of heads shares one of theirs."""
        if group != 1:
            batch = (*batch[:head], floordiv(batch[head], const(group)))
        shape = tuple(call.meta.shape[: len(batch)])
        return batch_index(source, batch, shape) if group == 1 else batch

    def score(batch, i, j):
        a = element(query, (*batch_index(query, batch, call.meta.shape[: len(batch)]), i, iota(channel)), dtype)
        b = element(key, (*shared(key, batch), j, iota(channel)), dtype)
        scores = contraction([a, b], [channel], dtype) * factor
        if call["is_causal"]:
            return choose(compare("le", j, i), scores, const(-math.inf))
        return scores if mask is None else _masked(call, mask, scores, batch, i, j)

    def pull(index):
        batch, i, e = index[:-2], index[-2], index[-1]
        j = iota(column)
        scores = score(batch, i, j)
        largest = max_over(column, scores)
        weights = exp(scores - largest) / sum_over(column, exp(scores - largest))
        if p:
            shape = (*call.meta.shape[: len(batch)], query.shape[-2], key.shape[-2])
            weights = weights * kept_at(seed, p, (*batch, i, j), shape, dtype) * const(scale_of_kept(p))
        result = sum_over(column, weights * element(value, (*shared(value, batch), j, e), dtype))
        if mask is not None and not any(_surely_kept(call, mask, batch, i, c) for c in (const(0), i)):
            result = make("where", (eq(largest, const(-math.inf)), const(0.0), result))
        return convert(result, term_dtype(call.meta.dtype))

    return call.value(pull)


def _group(call: OperatorCall, query: TensorValue, key: TensorValue, value: TensorValue) -> int:
    """How many heads of the queries share one of the keys and values."""
    heads, shared = query.shape[-3], key.shape[-3]
    if heads == shared == value.shape[-3]:
        return 1
    if not isinstance(heads, int) or not isinstance(shared, int) or shared != value.shape[-3]:
        raise call.refuse(messages.GROUP_SIZE)
    return heads // shared


def _scale(given, width, dtype: str) -> Term:
    if given is not None:
        return float_scalar(given, dtype)
    if isinstance(width, int):
        return const(1.0 / math.sqrt(width))
    return apply("rsqrt", convert(term_of(width), dtype))


def _mask_at(call: OperatorCall, mask: TensorValue, batch, i, j) -> Term:
    shape = (*call.meta.shape[: len(batch)], call["query"].shape[-2], call["key"].shape[-2])
    return mask.at(spread(mask, (*batch, i, j), shape))


def _masked(call: OperatorCall, mask: TensorValue, scores: Term, batch, i, j) -> Term:
    found = _mask_at(call, mask, batch, i, j)
    if mask.meta.dtype == "bool":
        return choose(found, scores, const(-math.inf))
    return scores + convert(found, scores.dtype)


def _surely_kept(call: OperatorCall, mask: TensorValue, batch, i, candidate) -> bool:
    """The mask is known to keep the candidate column of every row."""
    if candidate is i and call["query"].shape[-2] != call["key"].shape[-2]:
        return False
    found = _mask_at(call, mask, batch, i, candidate)
    return found.op == "const" and found.attrs[0] is not False and found.attrs[0] != -math.inf
