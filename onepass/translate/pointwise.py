"""Pointwise operations and activations as terms.

Halves compute in float32 and are rounded once. Example: `aten.silu` is x / (1 + exp(-x)).
"""

from __future__ import annotations

import math
from collections.abc import Callable

import torch

from .. import messages
from ..egraph.terms.affine import bounds
from ..egraph.terms.index_simplify import negate
from ..egraph.terms.ops import const, make
from ..egraph.terms.sizes import term_of
from ..egraph.terms.term import Term
from ..graph.random_operators import scale_of_kept
from .creation import kept_at
from .registry import (
    FLOATING,
    Handlers,
    Index,
    Number,
    OperatorCall,
    TensorValue,
    apply,
    choose,
    compute_dtype,
    convert,
    is_literal,
    literal,
    operand_dtype,
    require_fit,
    spread,
    stored,
    stored_literal,
    term_dtype,
    wrapped,
)

handles = Handlers()


@handles("aten.relu.default")
def relu(call: OperatorCall) -> TensorValue:
    return pointwise(call, lambda x: apply("maximum", x, literal(0, compute_dtype(call.meta.dtype))), call["self"])


@handles("aten.silu.default")
def silu(call: OperatorCall) -> TensorValue:
    return pointwise(call, lambda x: apply("mul", x, apply("sigmoid", x)), call["self"])


@handles("aten.gelu.default")
def gelu(call: OperatorCall) -> TensorValue:
    if call["approximate"] == "tanh":
        inner = lambda x: apply("tanh", (x + x * x * x * const(0.044715)) * const(math.sqrt(2 / math.pi)))
    else:
        inner = lambda x: apply("erf", x * const(math.sqrt(0.5)))
    return pointwise(call, lambda x: x * const(0.5) * (const(1.0) + inner(x)), call["self"])


@handles("aten.elu.default", symbolic="alpha")
def elu(call: OperatorCall) -> TensorValue:
    if (call["scale"], call["input_scale"]) != (1, 1):
        raise call.refuse(messages.SCALED_ELU)
    alpha = float_scalar(call["alpha"], compute_dtype(call.meta.dtype))

    def function(x):
        return choose(apply("lt", const(0.0), x), x, apply("mul", alpha, apply("exp", x) - const(1.0)))

    return pointwise(call, function, call["self"])


@handles("aten.leaky_relu.default", symbolic="negative_slope")
def leaky_relu(call: OperatorCall) -> TensorValue:
    slope = float_scalar(call["negative_slope"], compute_dtype(call.meta.dtype))
    return pointwise(call, lambda x: choose(apply("lt", const(0.0), x), x, x * slope), call["self"])


@handles("aten.sign.default")
def sign(call: OperatorCall) -> TensorValue:
    one, zero = (literal(n, compute_dtype(call.meta.dtype)) for n in (1, 0))

    def function(x):  # torch's sign of NaN is 0
        return choose(apply("lt", zero, x), one, choose(apply("lt", x, zero), apply("neg", one), zero))

    return pointwise(call, function, call["self"])


@handles("aten.softplus.default", symbolic="beta threshold")
def softplus(call: OperatorCall) -> TensorValue:
    beta, threshold = (float_scalar(call[name], compute_dtype(call.meta.dtype)) for name in ("beta", "threshold"))

    def function(x):
        return choose(apply("lt", threshold, x * beta), x, apply("log1p", apply("exp", x * beta)) / beta)

    return pointwise(call, function, call["self"])


@handles("aten.log_sigmoid.default")
def log_sigmoid(call: OperatorCall) -> TensorValue:
    near = lambda x: apply("log1p", apply("exp", -abs(x)))
    return pointwise(call, lambda x: apply("minimum", x, const(0.0)) - near(x), call["self"])


def scalar(x: Number, dtype: str) -> Term:
    """A Python number, or the text of a symbolic one, in arithmetic of the dtype."""
    real = "float64" if dtype == "float64" else "float32"
    return convert(term_of(x, real), dtype) if isinstance(x, str) else literal(x, dtype)


def float_scalar(x: Number, dtype: str) -> Term:
    """The same for a float; a literal one takes the dtype of the other operand."""
    return scalar(x, dtype) if isinstance(x, str) else const(float(x))


def operand(call: OperatorCall, x: TensorValue | Number, index: Index, dtype: str) -> Term:
    """An operand of a pointwise operation at an index of the result, in the dtype."""
    if isinstance(x, TensorValue):
        return convert(x.at(spread(x, index, call.meta.shape)), term_dtype(dtype) if x.meta.dtype == dtype else dtype)
    return wrapped(scalar(x, term_dtype(dtype)), dtype)


def pointwise(
    call: OperatorCall, function: Callable[..., Term], *operands: TensorValue | Number, dtype: str | None = None
) -> TensorValue:
    """function of the operands' elements, computed in `dtype` (default: where the result's computes), then stored."""
    inner = dtype or operand_dtype(call.meta.dtype)
    if call.meta.dtype not in FLOATING and call.meta.dtype != "bool" and term_dtype(call.meta.dtype) != "int64":
        raise call.refuse(messages.DTYPE, dtype=call.meta.dtype)

    def pull(index):
        return stored(function(*(operand(call, x, index, inner) for x in operands)), call.meta.dtype)

    return call.value(pull)


_UNARY = {name: name for name in "neg exp exp2 log log2 log1p sqrt rsqrt tanh sigmoid erf sin cos abs floor".split()}
for _name, _op in {**_UNARY, "absolute": "abs"}.items():
    handles(f"aten.{_name}.default")(lambda call, op=_op: pointwise(call, lambda x: apply(op, x), call["self"]))

KINDS = ("Tensor", "Scalar")
_BITWISE = ("bitwise_and", "bitwise_or", "__and__", "__or__")
_OF_BOOLS = {"mul": "and", "add": "or"}
_BINARY = {"mul": "mul", "multiply": "mul", "div": "div", "divide": "div", "true_divide": "div"}
_BINARY |= {"maximum": "maximum", "minimum": "minimum"}
for _name, _op in _BINARY.items():
    _targets = [f"aten.{_name}.{o}" for o in (("default",) if _name.endswith("mum") else ("Tensor", "Scalar"))]
    handles(*_targets, symbolic="self other")(lambda call, op=_op: arithmetic(call, op))
handles("aten.max.other")(lambda call: arithmetic(call, "maximum"))
handles("aten.min.other")(lambda call: arithmetic(call, "minimum"))


def arithmetic(call: OperatorCall, op: str) -> TensorValue:
    op = _OF_BOOLS.get(op, op) if call.meta.dtype == "bool" else op
    return pointwise(call, lambda x, y: apply(op, x, y), call["self"], call["other"])


def _scaled(y: Term, alpha) -> Term:
    return y if alpha in (1, None) else apply("mul", y, scalar(alpha, y.dtype if y.dtype != "float" else "float32"))


@handles("aten.add.Tensor", "aten.add.Scalar", symbolic="self other alpha")
def add(call: OperatorCall) -> TensorValue:
    if call.meta.dtype == "bool":
        return arithmetic(call, "add")
    function = lambda x, y: apply("add", x, _scaled(y, call["alpha"]))
    return pointwise(call, function, call["self"], call["other"])


@handles("aten.sub.Tensor", "aten.sub.Scalar", "aten.subtract.Tensor", symbolic="self other alpha")
def sub(call: OperatorCall) -> TensorValue:
    function = lambda x, y: apply("sub", x, _scaled(y, call["alpha"]))
    return pointwise(call, function, call["self"], call["other"])


@handles("aten.rsub.Tensor", "aten.rsub.Scalar", symbolic="self other alpha")
def rsub(call: OperatorCall) -> TensorValue:
    function = lambda x, y: apply("sub", y, _scaled(x, call["alpha"]))
    return pointwise(call, function, call["self"], call["other"])


@handles("aten.reciprocal.default")
def reciprocal(call: OperatorCall) -> TensorValue:
    return pointwise(call, lambda x: apply("div", const(1.0), x), call["self"])


@handles("aten.square.default")
def square(call: OperatorCall) -> TensorValue:
    return pointwise(call, lambda x: apply("mul", x, x), call["self"])


@handles("aten.pow.Tensor_Scalar", "aten.pow.Tensor_Tensor", "aten.pow.Scalar", symbolic="self exponent")
def power(call: OperatorCall) -> TensorValue:
    exponent = call["exponent"]
    if exponent == 2:
        return square(call)
    if call["self"] == 2 and call.meta.dtype in FLOATING:
        return pointwise(call, lambda x: apply("exp2", x), exponent)
    return pointwise(call, lambda x, y: apply("pow", x, y), call["self"], exponent)


@handles(
    "aten.remainder.Tensor",
    "aten.remainder.Scalar",
    "aten.remainder.Scalar_Tensor",
    "aten.floor_divide.default",
    "aten.floor_divide.Scalar",
    symbolic="self other",
)
def integer_division(call: OperatorCall) -> TensorValue:
    if term_dtype(call.meta.dtype) != "int64":
        raise call.refuse(messages.INTEGERS_ONLY, what="is")
    op = "mod" if "remainder" in call.node.target else "floordiv"
    return pointwise(call, lambda x, y: apply(op, x, y), call["self"], call["other"])


@handles(*(f"aten.{name}.{kind}_mode" for name in ("div", "divide") for kind in KINDS), symbolic="self other")
def division_with_mode(call: OperatorCall) -> TensorValue:
    if call["rounding_mode"] is None:
        return pointwise(call, lambda x, y: apply("div", x, y), call["self"], call["other"])
    if term_dtype(call.meta.dtype) != "int64":
        raise call.refuse(messages.INTEGERS_ONLY, what=f"rounding mode {call['rounding_mode']!r} is")
    function = _truncated if call["rounding_mode"] == "trunc" else lambda x, y: apply("floordiv", x, y)
    return pointwise(call, function, call["self"], call["other"])


def _truncated(x: Term, y: Term) -> Term:
    """x / y without what is behind the point."""
    whole, below = apply("floordiv", apply("abs", x), apply("abs", y)), (apply("lt", a, const(0)) for a in (x, y))
    return choose(apply("eq", *below), whole, apply("neg", whole))


# Comparisons need only `le`, `lt` and `eq`: by names, the operation, whether the sides are exchanged, and whether the
# result is negated.
_COMPARISONS = {
    "le less_equal": ("le", False, False),
    "lt less": ("lt", False, False),
    "ge greater_equal": ("le", True, False),
    "gt greater": ("lt", True, False),
    "eq": ("eq", False, False),
    "ne not_equal": ("eq", False, True),
}


def promoted(*operands: TensorValue | Number) -> str:
    """The dtype in which PyTorch compares the operands; of halves float32."""

    def sample(x):
        if isinstance(x, TensorValue):
            return torch.empty((1,) * len(x.shape), dtype=getattr(torch, x.meta.dtype), device="meta")
        return 1 if isinstance(x, str) else x

    return operand_dtype(str(torch.result_type(*map(sample, operands))).removeprefix("torch."))


def _comparison(op: str, exchanged: bool, negated: bool):
    def compare(x, y):
        found = apply(op, y, x) if exchanged else apply(op, x, y)
        return negate(found) if negated else found

    def handler(call):
        x, y = call["self"], call["other"]
        return pointwise(call, compare, x, y, dtype=promoted(x, y))

    return handler


for _names, _row in _COMPARISONS.items():
    handles(*(f"aten.{n}.{k}" for n in _names.split() for k in KINDS), symbolic="self other")(_comparison(*_row))


@handles("aten.logical_not.default")
def logical_not(call: OperatorCall) -> TensorValue:
    return pointwise(call, negate, call["self"], dtype="bool")


@handles("aten.bitwise_not.default")
def bitwise_not(call: OperatorCall) -> TensorValue:
    return logical_not(call) if call.meta.dtype == "bool" else pointwise(call, lambda x: const(-1) - x, call["self"])


@handles(*(f"aten.{op}.{kind}" for op in _BITWISE for kind in KINDS), symbolic="self other")
def bitwise(call: OperatorCall) -> TensorValue:
    if call.meta.dtype == "bool":
        return logical(call)
    function = _both_bits if "and" in call.node.target else _either_bit

    def pull(x, y):
        found = function(x, y) or function(y, x)
        if found is None:
            raise call.refuse(messages.BITS)
        return found

    return pointwise(call, pull, call["self"], call["other"])


def _both_bits(x: Term, y: Term) -> Term | None:
    """x & y, if the ones of y are neighbours: a rest by a power of two, x & 15, or of a quotient, x & 240; or if both
    are 0 or 1."""
    if is_literal(y) and y.attrs[0] >= 0:
        lowest = y.attrs[0] & -y.attrs[0] or 1
        size = y.attrs[0] // lowest + 1
        if size.bit_count() == 1:
            rest = apply("mod", apply("floordiv", x, const(lowest)) if lowest > 1 else x, const(size))
            return apply("mul", rest, const(lowest)) if lowest > 1 else rest
    return apply("minimum", x, y) if _is_bit(x) and _is_bit(y) else None


def _either_bit(x: Term, y: Term) -> Term | None:
    return apply("maximum", x, y) if _is_bit(x) and _is_bit(y) else None


def _is_bit(x: Term) -> bool:
    low, high = bounds(x)
    return low is not None and low >= 0 and high is not None and high <= 1


_SHIFTS = {"right": ("__rshift__", "bitwise_right_shift"), "left": ("__lshift__", "bitwise_left_shift")}


@handles(
    *(f"aten.{name}.{kind}" for name, _ in _SHIFTS.values() for kind in KINDS),
    *(f"aten.{name}.{kind}" for _, name in _SHIFTS.values() for kind in ("Tensor", "Tensor_Scalar")),
    symbolic="self other",
)
def shift(call: OperatorCall) -> TensorValue:
    """x >> n is x / 2^n rounded down, also where x is negative; of x << n = x · 2^n the dtype keeps the last bits."""
    right = any(f".{name}." in call.node.target for name in _SHIFTS["right"])

    def pull(x, y):
        bits = torch.iinfo(getattr(torch, call.meta.dtype)).bits
        if not is_literal(y) or not 0 <= y.attrs[0] < bits or (bits == 64 and not right):
            raise call.refuse(messages.SHIFT)
        return apply("floordiv" if right else "mul", x, const(2 ** y.attrs[0]))

    return pointwise(call, pull, call["self"], call["other"])


@handles("aten.logical_and.default", "aten.logical_or.default")
def logical(call: OperatorCall) -> TensorValue:
    op = "and" if "and" in call.node.target else "or"
    return pointwise(call, lambda x, y: apply(op, x, y), call["self"], call["other"], dtype="bool")


@handles("aten.logical_xor.default")
def logical_xor(call: OperatorCall) -> TensorValue:
    return pointwise(call, lambda x, y: negate(apply("eq", x, y)), call["self"], call["other"], dtype="bool")


def choice(
    call: OperatorCall, condition: TensorValue, yes: TensorValue | Number, no: TensorValue | Number
) -> TensorValue:
    """A choice by a condition. No arithmetic happens, so the branches keep the result's dtype."""
    dtype = call.meta.dtype

    def pull(index):
        return choose(operand(call, condition, index, "bool"), branch(yes, index), branch(no, index))

    def branch(x, index):
        return operand(call, x, index, dtype) if isinstance(x, TensorValue | str) else stored_literal(x, dtype)

    return call.value(pull)


@handles(*(f"aten.where.{k}" for k in ("self", "ScalarOther", "ScalarSelf", "Scalar")), symbolic="self other")
def where(call: OperatorCall) -> TensorValue:
    return choice(call, call["condition"], call["self"], call["other"])


@handles("aten.masked_fill.Scalar", "aten.masked_fill.Tensor", symbolic="value")
def masked_fill(call: OperatorCall) -> TensorValue:
    require_fit(call, call["value"])
    return choice(call, call["mask"], call["value"], call["self"])


def _tested(call: OperatorCall, test) -> TensorValue:
    """A predicate of each element."""
    if call["self"].meta.dtype not in FLOATING:
        raise call.refuse(messages.FLOATS_ONLY)
    return pointwise(call, test, call["self"], dtype=compute_dtype(call["self"].meta.dtype))


def _never_infinite(x: Term) -> bool:
    """A share of a total of exponentials: at most one, or NaN."""
    while x.op == "cast":
        x = x.args[0]
    if x.op != "div":
        return x.op in ("sigmoid", "tanh", "sin", "cos", "erf")
    part, total = x.args
    return part.op == "exp" and total.op == "reduce" and total.attrs[0] == "sum" and total.args[0].op == "exp"


def _is_nan(x: Term) -> Term:
    return negate(apply("finite", x) if _never_infinite(x) else make("eq", (x, x)))


handles("aten.isfinite.default")(lambda call: _tested(call, lambda x: apply("finite", x)))
handles("aten.isnan.default")(lambda call: _tested(call, _is_nan))
handles("aten.isinf.default")(lambda call: _tested(call, lambda x: apply("eq", apply("abs", x), const(math.inf))))


@handles("aten.nan_to_num.default")
def nan_to_num(call: OperatorCall) -> TensorValue:
    if call.meta.dtype not in FLOATING:
        raise call.refuse(messages.FLOATS_ONLY)
    largest = torch.finfo(getattr(torch, call.meta.dtype)).max
    nan, above, below = (
        const(float(default if call[name] is None else call[name]))
        for name, default in (("nan", 0.0), ("posinf", largest), ("neginf", -largest))
    )

    def function(x):
        if _never_infinite(x):
            return choose(apply("finite", x), x, nan)
        signed = choose(apply("lt", const(0.0), x), above, choose(apply("lt", x, const(0.0)), below, nan))
        return choose(apply("finite", x), x, signed)

    return pointwise(call, function, call["self"])


@handles("aten.logaddexp.default")
def logaddexp(call: OperatorCall) -> TensorValue:
    def function(x, y):
        largest = apply("maximum", x, y)
        rest = apply("log1p", apply("exp", apply("neg", apply("abs", x - y))))
        return choose(apply("finite", largest), largest + rest, largest)

    return pointwise(call, function, call["self"], call["other"])


CASTS = (
    "aten.to.dtype aten.to.dtype_layout aten.to.device aten.to.other aten._to_copy.default aten.type_as.default "
    "prims.convert_element_type.default aten.clone.default aten.contiguous.default aten.detach.default "
    "aten.alias.default aten.lift_fresh.default aten.lift_fresh_copy.default aten.positive.default prims.clone.default "
    "aten.resolve_conj.default aten.resolve_neg.default"
).split()


@handles(*CASTS)
def to(call: OperatorCall) -> TensorValue:
    source = call.get("self") or call["a"]
    dtype = call.meta.dtype if source.meta.dtype != call.meta.dtype else source.kind
    return call.value(lambda index: convert(source.at(index), dtype))


@handles("aten.dropout.default")
def dropout(call: OperatorCall) -> TensorValue:
    if call["train"] and call["p"] != 0:
        raise call.refuse(messages.RANDOM_DROPOUT)
    source = call["input"]
    return call.value(source.at)


@handles("onepass.dropout.default")
def seeded_dropout(call: OperatorCall) -> TensorValue:
    """A product with 0 or 1, as torch's: what is dropped of a NaN is NaN."""
    source, p = call["input"], call["p"]
    dtype = compute_dtype(call.meta.dtype)

    def pull(index):
        kept = kept_at(call["seed"], p, index, call.meta.shape, dtype)
        product = apply("mul", convert(source.at(index), dtype), kept)
        return convert(apply("mul", product, const(scale_of_kept(p))), term_dtype(call.meta.dtype))

    return call.value(pull)


def _clamped(x: Term, low, high) -> Term:
    x = x if low is None else apply("maximum", x, low)
    return x if high is None else apply("minimum", x, high)


CLAMPS = "aten.clamp.default aten.clamp.Tensor aten.clamp_min.default aten.clamp_max.default aten.clip.default"


@handles(*CLAMPS.split(), "aten.clip.Tensor", symbolic="min max")
def clamp(call: OperatorCall) -> TensorValue:
    low, high = call.get("min"), call.get("max")
    bounds = [b for b in (low, high) if b is not None]
    require_fit(call, *bounds)

    def function(x, *ends):
        rest = list(ends)
        return _clamped(x, rest.pop(0) if low is not None else None, rest.pop(0) if high is not None else None)

    return pointwise(call, function, call["self"], *bounds)
