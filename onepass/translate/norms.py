"""Norms over an axis and distances: a sum of powers and its root.

Halves are computed in float32 and rounded once, as PyTorch does. Example: rms_norm is x / √(mean x² + eps).
"""

from __future__ import annotations

import math
from dataclasses import replace

import torch

from .. import messages
from ..egraph.terms.ops import const, iota, reduce, sum_over
from ..egraph.terms.term import Term
from .reductions import AxisReduction, batch_index, fold
from .registry import (
    Handlers,
    OperatorCall,
    TensorValue,
    apply,
    choose,
    compute_dtype,
    convert,
    element,
    literal,
    spread,
    term_dtype,
)

handles = Handlers()
# With more rows on either side PyTorch computes distances as √(|a|² + |b|² - 2 a · b).
MAX_ROWS_OF_DIRECT_DISTANCES = 25


def _powers(source: TensorValue, dtype: str, order: float) -> TensorValue:
    """|x| or x², in the dtype that norms are computed in."""

    def pull(index) -> Term:
        x = element(source, index, dtype)
        return apply("mul", x, x) if order == 2 else apply("abs", x)

    return TensorValue(replace(source.meta, dtype=dtype), pull)


def _root(squared: Term) -> Term:
    """√x, and 0 where rounding leaves less; there the derivative is 0, as that of torch's norms and distances."""
    none = apply("le", squared, const(0.0))
    return choose(none, const(0.0), apply("sqrt", choose(none, const(1.0), squared)))


@handles("aten.linalg_vector_norm.default", "aten.norm.ScalarOpt_dim")
def vector_norm(call: OperatorCall) -> TensorValue:
    """A norm of order 1, 2 or infinity, over given axes."""
    source, dims, order = call["self"], call.get("dim"), call.get("ord", call.get("p"))
    if not dims or order not in (None, 1, 2, math.inf):
        raise call.refuse(messages.NORM)
    order, dtype = 2 if order is None else order, compute_dtype(call.meta.dtype)
    axes = sorted(source.axis(d) for d in (dims if isinstance(dims, list) else [dims]))
    root = _root if order == 2 else (lambda x: x)
    monoid = "max" if order == math.inf else "sum"
    how = AxisReduction(monoid, axes, bool(call["keepdim"]), dtype)
    return fold(call, _powers(source, dtype, order), how, root)


@handles("aten.rms_norm.default")
def rms_norm(call: OperatorCall) -> TensorValue:
    """x / √(mean x² + eps) · weight over the last axis."""
    source, weight, shape = call["input"], call["weight"], call["normalized_shape"]
    if len(shape) != 1 or not isinstance(shape[0], int):
        raise call.refuse(messages.NORM_AXES)
    dtype = compute_dtype(source.meta.dtype)
    eps = torch.finfo(getattr(torch, dtype)).eps if call["eps"] is None else call["eps"]
    squares = replace(source.meta, dtype=dtype, shape=source.shape[:-1])
    last, mean = [len(source.shape) - 1], lambda x: apply("div", x, convert(const(shape[0]), dtype))
    means = fold(call, _powers(source, dtype, 2), AxisReduction("sum", last, False, dtype), mean, squares)

    def pull(index) -> Term:
        root = apply("rsqrt", apply("add", means.at(index[:-1]), literal(eps, dtype)))
        x = apply("mul", element(source, index, dtype), root)
        x = x if weight is None else apply("mul", x, element(weight, spread(weight, index, source.shape), dtype))
        return convert(x, term_dtype(call.meta.dtype))

    return call.value(pull)


@handles("aten.cdist.default", "aten._cdist_forward.default", "aten._euclidean_dist.default")
def distances(call: OperatorCall) -> TensorValue:
    """Distances of order 1, 2 or infinity; of order 2 by a product where PyTorch uses one, for the same rounding."""
    left, right, order = call["x1"], call["x2"], call.get("p", 2)
    if order not in (1, 2, math.inf):
        raise call.refuse(messages.DISTANCE_ORDER)
    dtype, binder = compute_dtype(call.meta.dtype), call.binder(left.shape[-1])
    long = any(isinstance(n, int) and n > MAX_ROWS_OF_DIRECT_DISTANCES for n in (left.shape[-2], right.shape[-2]))
    mode = call.get("compute_mode", 1)  # _euclidean_dist always uses the product
    by_product = order == 2 and (long if mode in (None, 0) else mode == 1)

    def pull(index) -> Term:
        batch, shape = index[:-2], call.meta.shape[:-2]
        a, b = (
            element(x, (*batch_index(x, batch, shape), row, iota(binder)), dtype)
            for x, row in zip((left, right), index[-2:])
        )
        if by_product:
            squares = sum_over(binder, a * a) + sum_over(binder, b * b)
            result = _root(squares - sum_over(binder, a * b) * const(2.0))
        elif order == 2:
            result = _root(sum_over(binder, (a - b) * (a - b)))
        else:
            result = reduce("sum" if order == 1 else "max", binder, apply("abs", a - b))
        return convert(result, term_dtype(call.meta.dtype))

    return call.value(pull)
