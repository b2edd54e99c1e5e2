"""Edges of functions: the arguments at which a function overflows, vanishes, saturates or becomes undefined.

Hostile values are drawn around them. A row of EDGES depends only on the range of a dtype; its key is a name of terms or
of PyTorch. Example: exp overflows float64 beyond 709.78, the logarithm of its largest number.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from math import e, isfinite, log, pi

from ..terms.ops import INTEGER_RANGES


@dataclass(frozen=True)
class FloatRange:
    """A floating dtype: bits of its mantissa, exponents of its largest and of its smallest normal number."""

    bits: int
    highest: int
    lowest: int

    @property
    def largest(self) -> float:
        """The largest finite number."""
        return (2.0 - self.epsilon) * 2.0**self.highest

    @property
    def tiny(self) -> float:
        """The smallest positive normal number."""
        return 2.0**self.lowest

    @property
    def least(self) -> float:
        """The smallest positive number."""
        return 2.0 ** (self.lowest - self.bits + 1)

    @property
    def epsilon(self) -> float:
        """The distance from 1 to the next number."""
        return 2.0 ** (1 - self.bits)


RANGES = {
    "float64": FloatRange(53, 1023, -1022),
    "float32": FloatRange(24, 127, -126),
    "bfloat16": FloatRange(8, 127, -126),
    "float16": FloatRange(11, 15, -14),
}


def _exponential(base: float) -> Callable[[FloatRange], tuple[float, ...]]:
    return lambda r: tuple(log(x) / log(base) for x in (r.largest, r.tiny, r.least, r.epsilon))


def _squares(r: FloatRange) -> tuple[float, ...]:
    return (r.largest**0.5, r.tiny**0.5, r.largest ** (1 / 3), r.tiny ** (1 / 3))


def _saturates(r: FloatRange) -> tuple[float, ...]:
    return (log(2.0 / r.epsilon) / 2, 1.0)


_EXP, _EXP2 = _exponential(e), _exponential(2.0)
_POLE = lambda r: (0.0, -0.0, r.least, r.tiny, 1.0 / r.largest)
_LOG = lambda r: (0.0, -0.0, r.least, r.tiny, 1.0, -1.0)
_DOMAIN = lambda r: (1.0, 1.0 + r.epsilon, 0.0)
_ROUNDS = lambda r: (0.5, 1.5, 2.5, 1.0, 2.0, 0.5 / r.epsilon, 1.0 / r.epsilon)
_TURNS = lambda r: (pi / 2, pi, 2 * pi, 1.0 / r.epsilon)
EDGES: dict[str, Callable[[FloatRange], tuple[float, ...]]] = {
    **dict.fromkeys(("exp", "expm1", "sinh", "cosh", "softmax", "log_softmax", "logsumexp", "rescaled"), _EXP),
    **dict.fromkeys(("sigmoid", "silu", "softplus", "log_sigmoid", "elu", "mish", "logcumsumexp"), _EXP),
    "exp2": _EXP2,
    **dict.fromkeys(("log", "log2", "log10", "xlogy"), _LOG),
    "log1p": lambda r: (-1.0, -1.0 + r.epsilon / 2, r.epsilon, 0.0),
    **dict.fromkeys(("sqrt", "rsqrt", "reciprocal", "div", "true_divide", "remainder", "fmod"), _POLE),
    **dict.fromkeys(("floordiv", "floor_divide", "mod"), lambda r: (*_POLE(r), *_ROUNDS(r))),
    **dict.fromkeys(("pow", "square", "hypot", "linalg_vector_norm", "var", "std", "norm"), _squares),
    **dict.fromkeys(("tanh", "erf", "erfc", "gelu", "atan", "atan2"), _saturates),
    **dict.fromkeys(("asin", "acos", "atanh", "acosh", "logit", "erfinv"), _DOMAIN),
    **dict.fromkeys(("floor", "ceil", "round", "trunc", "frac"), _ROUNDS),
    **dict.fromkeys(("sin", "cos", "tan"), _TURNS),
}


def edges_of(names: Iterable[str], dtype: str = "float64") -> tuple[float, ...]:
    """The edges of the named functions for numbers of the dtype. A name without a row has none."""
    found = [EDGES[name](RANGES[dtype]) for name in sorted(set(names)) if name in EDGES]
    return tuple(dict.fromkeys(x for row in found for x in row))


def edges_of_cast(target: str) -> tuple[float, ...]:
    """The numbers around which a cast to the dtype overflows, wraps or vanishes."""
    if target in RANGES:
        r = RANGES[target]
        return (r.largest, r.largest * (1 + r.epsilon / 4), r.tiny, r.least, r.least / 2, 1 + r.epsilon / 2)
    low, high = (float(x) for x in INTEGER_RANGES.get(target, (0, 1)))
    return tuple(dict.fromkeys((low - 1, low, high, high + 1, high + 0.5, 0.5, 1.5)))


def around(values: Iterable[float], dtype: str = "float64") -> tuple[float, ...]:
    """The values and their neighbours in the dtype, on both sides and with both signs, the values first."""
    r, found = RANGES[dtype], []
    for x in dict.fromkeys(abs(v) for v in values if isfinite(v)):
        steps = (x, x * (1 + r.epsilon), x * (1 - r.epsilon / 2), x * 1.0625, x * 0.9375, 2 * x, x / 2)
        found += [s for s in (steps if x else (0.0, r.least)) if s <= r.largest]
    return tuple(s for x in dict.fromkeys(found) for s in (x, -x))
