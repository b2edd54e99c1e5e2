"""Contractions: inner products, tensordot, products of bytes, and convolutions whose window is one element wide.

Halves multiply and add in float32 and are rounded once. Example: a 1x1 convolution is a matrix product.
"""

from __future__ import annotations

from collections.abc import Callable

from .. import messages
from ..egraph.terms.ops import const, iota
from ..egraph.terms.sizes import Size
from ..egraph.terms.term import Term
from ..graph.axes import has_default_window
from .reductions import contraction, require_floats
from .registry import (
    FLOATING,
    Handlers,
    Index,
    OperatorCall,
    TensorValue,
    convert,
    element,
    same_size,
    spread,
    term_dtype,
)

handles = Handlers()
MOST_WHOLE = 1024  # products of two bytes, of up to 2^14 each, whose sum is a float32 number, as all up to 2^24 are
CONVOLUTIONS = (
    *(f"aten.conv{rank}d.{overload}" for rank in (1, 2, 3) for overload in ("default", "padding")),
    "aten.convolution.default",
)


def _dotted(call: OperatorCall, left: TensorValue, right: TensorValue, size, indices) -> TensorValue:
    """A sum over one new dim. indices: the operands' indices for one of the result and a coordinate."""
    dtype, binder = require_floats(call, left, right), call.binder(size)

    def pull(index):
        pairs = zip((left, right), indices(index, iota(binder)), strict=True)
        result = contraction([element(x, place, dtype) for x, place in pairs], [binder], dtype)
        return convert(result, term_dtype(call.meta.dtype))

    return call.value(pull)


@handles("aten.inner.default")
def inner(call: OperatorCall) -> TensorValue:
    left, right = call["self"], call["other"]
    if not (left.shape and right.shape):
        raise call.refuse(messages.PRODUCT_WITH_A_NUMBER)
    rows = len(left.shape) - 1
    indices = lambda index, inside: ((*index[:rows], inside), (*index[rows:], inside))
    return _dotted(call, left, right, left.shape[-1], indices)


@handles("aten.linalg_vecdot.default")
def vecdot(call: OperatorCall) -> TensorValue:
    left, right = call["x"], call["y"]
    shape = list(call.meta.shape)
    axis = call["dim"] % (len(shape) + 1)
    sizes = [x.shape[axis - len(shape) - 1] for x in (left, right)]
    whole = (*shape[:axis], max(sizes, key=lambda size: size != 1), *shape[axis:])

    def indices(index, inside):
        full = (*index[:axis], inside, *index[axis:])
        return [spread(x, full, whole) for x in (left, right)]

    return _dotted(call, left, right, whole[axis], indices)


@handles("aten.tensordot.default")
def tensordot(call: OperatorCall) -> TensorValue:
    left, right = call["self"], call["other"]
    dtype = require_floats(call, left, right)
    summed = [[d % len(x.shape) for d in call[name]] for x, name in ((left, "dims_self"), (right, "dims_other"))]
    sizes = [(left.shape[a], right.shape[b]) for a, b in zip(*summed, strict=True)]
    if any(a != b and 1 in (a, b) for a, b in sizes):
        raise call.refuse(messages.REPEATED_AXES)
    binders = [call.binder(size) for size, _ in sizes]

    def pull(index):
        rest, factors = iter(index), []
        for x, axes in zip((left, right), summed, strict=True):
            own = dict(zip(axes, map(iota, binders), strict=True))
            factors.append(element(x, tuple(own[k] if k in own else next(rest) for k in range(len(x.shape))), dtype))
        return convert(contraction(factors, binders, dtype), term_dtype(call.meta.dtype))

    return call.value(pull)


@handles("aten._int_mm.default")
def int_mm(call: OperatorCall) -> TensorValue:
    """As a sum in float32, which holds every sum of so few products of two bytes."""
    size = call["self"].shape[-1]
    if not isinstance(size, int) or size > MOST_WHOLE:
        raise call.refuse(messages.LONG_INTEGER_PRODUCT, most=MOST_WHOLE)
    product = _product_of_bytes(call, call["self"], call["mat2"])
    return call.value(lambda index: convert(product(index), term_dtype(call.meta.dtype)))


@handles("aten._scaled_mm.default")
def scaled_mm(call: OperatorCall) -> TensorValue:
    """The product times both scales, plus the bias, rounded once; a faster accumulation is the kernel's affair."""
    shape, bias = call.meta.shape, call["bias"]
    scales = [(call["scale_a"], (shape[0], 1)), (call["scale_b"], (1, shape[1]))]
    known = all(_is_scale(scale, whole) for scale, whole in scales)
    if not known or call["scale_result"] is not None or call.meta.dtype not in FLOATING:
        raise call.refuse(messages.SCALED_PRODUCT)
    product = _product_of_bytes(call, call["self"], call["mat2"])

    def pull(index):
        result = product(index)
        for scale, _ in scales:
            place = tuple(const(0) if size == 1 else i for i, size in zip(index, scale.shape, strict=False))
            result = result * element(scale, place, "float32")
        result = result if bias is None else result + element(bias, index[-1:], "float32")
        return convert(result, term_dtype(call.meta.dtype))

    return call.value(pull)


def _product_of_bytes(call: OperatorCall, left: TensorValue, right: TensorValue) -> Callable[[Index], Term]:
    """The product of two matrices, in float32, by an index."""
    binder = call.binder(left.shape[-1])

    def pull(index):
        places = ((left, (index[0], iota(binder))), (right, (iota(binder), index[1])))
        return contraction([element(x, place, "float32") for x, place in places], [binder], "float32")

    return pull


def _is_scale(scale: TensorValue, whole: tuple[Size, Size]) -> bool:
    """Whether a scale is one number, or one for each row or column. whole: its shape in the latter case."""
    if scale.meta.dtype != "float32":
        return False
    one = all(size == 1 for size in scale.shape)
    return one or (len(scale.shape) == 2 and all(map(same_size, scale.shape, whole)))


@handles(*CONVOLUTIONS)
def convolution(call: OperatorCall) -> TensorValue:
    x, weight, bias = call["input"], call["weight"], call["bias"]
    dtype = require_floats(call, x, weight)
    positions = len(weight.shape) - 2
    if {*weight.shape[2:]} - {1} or not has_default_window(call.arguments):
        raise call.refuse(messages.WIDE_CONVOLUTION)
    binder = call.binder(weight.shape[1])

    def pull(index):
        *batch, channel = index[: len(index) - positions]
        read = element(x, (*batch, iota(binder), *index[len(index) - positions :]), dtype)
        factor = element(weight, (channel, iota(binder), *[const(0)] * positions), dtype)
        result = contraction([read, factor], [binder], dtype)
        return convert(
            result if bias is None else result + element(bias, (channel,), dtype), term_dtype(call.meta.dtype)
        )

    return call.value(pull)
