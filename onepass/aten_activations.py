"""How activations are pulled: by their definitions, point by point.

Halves compute in float32 and are rounded once, as in aten_pointwise.py. Registered for translate.py.
"""

from __future__ import annotations

import math

from .aten_pointwise import float_scalar, pointwise
from .egraph.ops import const
from .values import apply, choose, compute_dtype, handles, literal


@handles("aten.relu.default")
def relu(call):
    return pointwise(call, lambda x: apply("maximum", x, literal(0, compute_dtype(call.meta.dtype))), call["self"])


@handles("aten.silu.default")
def silu(call):
    return pointwise(call, lambda x: apply("mul", x, apply("sigmoid", x)), call["self"])


@handles("aten.gelu.default")
def gelu(call):
    if call["approximate"] == "tanh":
        inner = lambda x: apply("tanh", (x + x * x * x * const(0.044715)) * const(math.sqrt(2 / math.pi)))
    else:
        inner = lambda x: apply("erf", x * const(math.sqrt(0.5)))
    return pointwise(call, lambda x: x * const(0.5) * (const(1.0) + inner(x)), call["self"])


@handles("aten.elu.default", symbolic="alpha")
def elu(call):
    if (call["scale"], call["input_scale"]) != (1, 1):
        raise call.refuse("scaled elu is not supported")
    alpha = float_scalar(call["alpha"], compute_dtype(call.meta.dtype))

    def function(x):
        return choose(apply("lt", const(0.0), x), x, apply("mul", alpha, apply("exp", x) - const(1.0)))

    return pointwise(call, function, call["self"])


@handles("aten.leaky_relu.default", symbolic="negative_slope")
def leaky_relu(call):
    slope = float_scalar(call["negative_slope"], compute_dtype(call.meta.dtype))
    return pointwise(call, lambda x: choose(apply("lt", const(0.0), x), x, x * slope), call["self"])


@handles("aten.softplus.default", symbolic="beta threshold")
def softplus(call):
    beta, threshold = (float_scalar(call[name], compute_dtype(call.meta.dtype)) for name in ("beta", "threshold"))

    def function(x):
        return choose(apply("lt", threshold, x * beta), x, apply("log1p", apply("exp", x * beta)) / beta)

    return pointwise(call, function, call["self"])


@handles("aten.log_sigmoid.default")
def log_sigmoid(call):
    near = lambda x: apply("log1p", apply("exp", -abs(x)))
    return pointwise(call, lambda x: apply("minimum", x, const(0.0)) - near(x), call["self"])
