"""The operations: one row of OPS each, with its arity, its dtype rule and its meaning in float64.

The meanings are the only specification. They take numpy arrays that broadcast over named dims. A cast to a float dtype
models overflow only. The cost model and code generation have tables of their own with the same keys; a test checks
that these are complete. Example: `exp(x) * 2` builds the term mul(exp(x), const(2.0)).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import inf
from numbers import Real
from typing import Any

import numpy as np
import numpy.typing as npt

from .philox import uniform as uniform_at
from .term import FLOATS, HOOKS, PAIR, AttributeVariable, Dim, Tensor, Term, TermError

Operand = Term | float  # an operand of a constructor: a term, or a Python number that becomes a literal


@dataclass(frozen=True)
class Op:
    """One operation. `arity` None means any number of arguments. `dtype` names a case of `_dtype`, or is a dtype."""

    name: str
    arity: int | None
    dtype: str
    meaning: Callable | None = None
    attributes: tuple[type, ...] = ()


@dataclass(frozen=True)
class Monoid:
    """The operation of a reduce. `fold(array, axis)` keeps the axis with length 1; `identity` is an absent element."""

    name: str
    identity: Any
    fold: Callable
    dtype: str = "same"


def _fold_rescaled(state, axis):
    scale, mantissa = np.broadcast_arrays(*state)
    top = np.max(scale, axis=axis, keepdims=True)
    present = np.where(np.isneginf(scale), 0.0, mantissa * np.exp(scale - top))  # the scale -∞ marks an absent element
    return top, np.sum(present, axis=axis, keepdims=True)


def _mantissa(state):
    scale, mantissa = np.broadcast_arrays(*state)
    return np.where(np.isneginf(scale), np.nan, mantissa)  # all elements were absent: no mantissa, as in 0/0


LAST_PLACE = (1 << 31) - 1  # that of NaN


def order_of(value: npt.ArrayLike) -> np.ndarray:
    """The place of a number of float32 among all of them, as a whole number of 32 bits; 0 and -0 have one place.

    NaN is behind ∞, as in torch's maxima. Examples: 0 has the place 0, the smallest number above it 1, -∞ the least.
    """
    with np.errstate(over="ignore", under="ignore"):
        single = np.asarray(value, np.float32) + np.float32(0.0)
    bits = single.view(np.int32).astype(np.int64)
    return np.where(np.isnan(single), LAST_PLACE, np.where(bits < 0, bits ^ LAST_PLACE, bits))


MONOIDS = {
    m.name: m
    for m in (
        Monoid("sum", 0.0, lambda x, axis: np.sum(x, axis=axis, keepdims=True)),
        Monoid("prod", 1.0, lambda x, axis: np.prod(x, axis=axis, keepdims=True)),
        Monoid("max", -inf, lambda x, axis: np.max(x, axis=axis, keepdims=True)),
        Monoid("min", inf, lambda x, axis: np.min(x, axis=axis, keepdims=True)),
        Monoid("any", False, lambda x, axis: np.any(x, axis=axis, keepdims=True), "bool"),
        Monoid("all", True, lambda x, axis: np.all(x, axis=axis, keepdims=True), "bool"),
        Monoid("rescaled", (-inf, 0.0), _fold_rescaled, PAIR),
    )
}

_ROWS = (
    Op("const", 0, "const", None, (object,)),
    Op("iota", 0, "int64", None, (Dim,)),
    Op("load", None, "load", None, (Tensor,)),
    Op("var", 0, "var", None, (str, str)),
    Op("size", 0, "int64", None, (str,)),
    Op("at", 2, "of laws", None, (Dim,)),
    Op("only", 2, "of laws", None, (str,)),
    Op("combined", 2, "of laws", None, (str,)),
    Op("neg", 1, "same", np.negative),
    Op("exp", 1, "float", np.exp),
    Op("exp2", 1, "float", np.exp2),
    Op("log", 1, "float", np.log),
    Op("log2", 1, "float", np.log2),
    Op("log1p", 1, "float", np.log1p),
    Op("sqrt", 1, "float", np.sqrt),
    Op("rsqrt", 1, "float", lambda x: 1.0 / np.sqrt(x)),
    Op("tanh", 1, "float", np.tanh),
    Op("sigmoid", 1, "float", lambda x: 1.0 / (1.0 + np.exp(-x))),
    Op("erf", 1, "float", np.vectorize(math.erf, otypes=[float])),
    Op("sin", 1, "float", np.sin),
    Op("cos", 1, "float", np.cos),
    Op("abs", 1, "same", np.abs),
    Op("floor", 1, "same", np.floor),
    Op("finite", 1, "compare", np.isfinite),
    Op("order", 1, "float32 to int64", order_of),
    Op("not", 1, "bool", np.logical_not),
    Op("cast", 1, "cast", None, (str,)),
    Op("stored", 1, "same", lambda x: x, (str,)),
    Op("add", 2, "same", np.add),
    Op("sub", 2, "same", np.subtract),
    Op("mul", 2, "same", np.multiply),
    Op("div", 2, "float", np.divide),
    Op("pow", 2, "same", np.power),
    Op("maximum", 2, "same", np.maximum),
    Op("minimum", 2, "same", np.minimum),
    Op("floordiv", 2, "same", np.floor_divide),
    Op("mod", 2, "same", np.mod),
    Op("lt", 2, "compare", np.less),
    Op("le", 2, "compare", np.less_equal),
    Op("eq", 2, "compare", np.equal),
    Op("and", 2, "bool", np.logical_and),
    Op("or", 2, "bool", np.logical_or),
    Op("where", 3, "where", np.where),
    Op("uniform", 5, "int64 to float32", uniform_at),
    Op("reduce", 1, "reduce", None, (str, Dim)),
    Op("scaled", 2, "pair", lambda scale, weight: (scale, weight)),
    Op("scale", 1, "unpair", lambda state: state[0]),
    Op("mantissa", 1, "unpair", _mantissa),
)
OPS: dict[str, Op] = {row.name: row for row in _ROWS}
OF_LAWS = ("at", "only", "combined")  # what laws are written with: in each instance other operations stand for them
OPERATION_OF = {"sum": "add", "prod": "mul", "max": "maximum", "min": "minimum", "any": "or", "all": "and"}
"""Monoid: the operation that it folds with. The monoid "rescaled" folds with none of the operations of terms."""


INTEGER_RANGES = {"uint8": (0, 255)} | {f"int{bits}": (-(1 << bits - 1), (1 << bits - 1) - 1) for bits in (8, 16, 32)}
OVERFLOW = {  # the smallest magnitude that rounds to ∞: the largest number plus half a unit in the last place
    "float16": (2 - 2.0**-11) * 2.0**15,
    "bfloat16": (2 - 2.0**-8) * 2.0**127,
    "float32": (2 - 2.0**-24) * 2.0**127,
}


def within_range(value: npt.ArrayLike, dtype: str) -> np.ndarray:
    """Where a cast to the dtype makes no finite number infinite. NaN and ±∞ count as within the range."""
    return ~(np.abs(value) >= OVERFLOW.get(dtype, inf)) | np.isinf(value)


def infinite_beyond(value: npt.ArrayLike, dtype: str) -> np.ndarray:
    """The float64 numbers after a cast to the floating dtype, rounding left out: ±∞ beyond its range."""
    value = np.asarray(value, np.float64)
    return np.where(within_range(value, dtype), value, np.copysign(inf, value))


def rounded(value: npt.ArrayLike, dtype: str) -> np.ndarray:
    """The float64 numbers rounded to a floating dtype as torch rounds: to nearest even, for half dtypes by float32.

    For example 0.1 is 0.10009765625 in bfloat16, and 1e-9 is 0 in float16.
    """
    value = np.asarray(value, np.float64)
    if dtype not in OVERFLOW:
        return value
    with np.errstate(over="ignore", under="ignore"):
        single = value.astype(np.float32)
        if dtype == "float16":
            single = single.astype(np.float16)
        if dtype == "bfloat16":
            bits = single.view(np.uint32)
            upper = (bits + np.uint32(0x7FFF) + ((bits >> np.uint32(16)) & np.uint32(1))) & np.uint32(0xFFFF0000)
            single = np.where(np.isfinite(single), upper.view(np.float32), single)
    return single.astype(np.float64)


def _expect_literal(value: object) -> None:
    """Raises TermError unless the value is a bool, a 64-bit integer or a float."""
    if not isinstance(value, (bool, int, float)):
        raise TermError(f"{value!r} is no literal: a literal is a bool, an int or a float")
    if isinstance(value, int) and not -(1 << 63) <= value < 1 << 63:
        raise TermError(f"a literal of {value.bit_length()} bits is beyond int64")


def _join(dtypes: Sequence[str]) -> str:
    """The common dtype of operands: weak dtypes adapt to a concrete one. Raises TermError for two concrete dtypes."""
    concrete = {d for d in dtypes if d not in ("float", "any")}
    if len(concrete) > 1:
        raise TermError(f"operands of different dtypes {sorted(concrete)}: insert a cast")
    return concrete.pop() if concrete else ("float" if "float" in dtypes else "any")


ADAPTS_TO = {"int64": ("int64", "any"), "float32": ("float32", "float", "any")}


def _dtype(row: Op, args: tuple[Term, ...], attrs: tuple) -> str:
    kinds = [a.dtype for a in args]
    match row.dtype:
        case "const":
            _expect_literal(attrs[0])
            return {bool: "bool", int: "int64"}.get(type(attrs[0]), "float")
        case "load":
            return attrs[0].dtype
        case "var":
            return attrs[1]
        case "cast":
            return _named_dtype(attrs[0])
        case "of laws":
            return _dtype_in_laws(row, args)
        case "compare":
            _no_pair(row, kinds)
            _join(kinds)
            return "bool"
        case "where":
            _expect(row, kinds[0], ("bool", "any"))
            return _join(kinds[1:])
        case "reduce":
            return _reduce_dtype(row, kinds[0], attrs[0])
        case "float":
            joined = _join(kinds)
            _expect(row, joined, (*FLOATS, "any"))
            return joined
        case "int64 to float32" | "float32 to int64":
            operand, _, result = row.dtype.partition(" to ")
            _expect(row, _join(kinds), ADAPTS_TO[operand])
            return result
        case "pair":
            return PAIR + _join(kinds)
        case "unpair":
            _expect(row, kinds[0][: len(PAIR)], (PAIR, "any"))
            return kinds[0].removeprefix(PAIR)
        case "same":
            _no_pair(row, kinds)
            return _join(kinds)
        case fixed:
            return fixed


def _named_dtype(name: str | AttributeVariable) -> str:
    return name if isinstance(name, str) else "any"


def _dtype_in_laws(row: Op, args: tuple[Term, ...]) -> str:
    one, other = args
    if row.name == "at":
        if one.op != "var":
            raise TermError(f"at is of a variable of a law, not of {one}")
        _expect(row, other.dtype, ("int64",))
        return one.dtype
    if row.name == "only":
        _expect(row, one.dtype, ("bool", "any"))
        return other.dtype
    return _join((one.dtype, other.dtype))


def _reduce_dtype(row: Op, kind: str, monoid) -> str:
    if isinstance(monoid, AttributeVariable):
        return kind
    expected = MONOIDS[monoid].dtype
    if expected == PAIR:
        _expect(row, kind[: len(PAIR)], (PAIR, "any"))
    else:
        _no_pair(row, (kind,))
        if expected != "same":
            _expect(row, kind, (expected, "any"))
    return kind


def _no_pair(row: Op, kinds) -> None:
    if any(kind.startswith(PAIR) for kind in kinds):
        raise TermError(f"{row.name} does not take a rescaled state: take its scale or its mantissa")


def _expect(row: Op, dtype: str, allowed) -> None:
    if dtype not in allowed:
        raise TermError(f"{row.name} does not take an operand of dtype {dtype}")


def make(op: str, args: tuple[Term, ...] = (), attrs: tuple = ()) -> Term:
    """The checked constructor that all others call. Raises TermError for a term that is not well-formed."""
    row = OPS.get(op)
    if row is None:
        raise TermError(f"unknown operation {op!r}")
    if (known := Term.known(op, args, attrs)) is not None:
        return known
    if row.arity is not None and len(args) != row.arity:
        raise TermError(f"{op} takes {row.arity} operands, got {len(args)}")
    if op in OF_LAWS and isinstance(attrs[0], str) and (made := _by_monoid(op, args, attrs[0])) is not None:
        return made
    dims = frozenset().union(*(a.dims for a in args))
    if op == "iota":
        dims = frozenset(attrs)
    elif op == "reduce":
        dims = dims - {attrs[1]}
    return Term(op, args, attrs, dims=dims, dtype=_dtype(row, args, attrs))


def _by_monoid(op: str, args: tuple[Term, ...], monoid: str) -> Term | None:
    """What `only` and `combined` are for a monoid; None for a variable that stands for a state. Raises TermError."""
    one, other = args
    if monoid != "rescaled":
        absent = const(MONOIDS[monoid].identity)
        return make(OPERATION_OF[monoid], (one, other)) if op == "combined" else make("where", (one, other, absent))
    if op == "only" and other.op == "scaled":
        score, weight = other.args
        return make("scaled", (make("where", (one, score, const(-inf))), weight))
    if op == "only" and other.op == "reduce" and other.attrs[1] not in one.dims:
        return make("reduce", (make("only", (one, *other.args), (monoid,)),), other.attrs)
    if op == "only" and other.op == "var":
        return None
    raise TermError(f"no operation of terms is {op} for the states {other}")


def term(value: object) -> Term:
    """A Term unchanged; a Python number as a literal. Raises TermError for anything else."""
    if not isinstance(value, Term | Real):
        raise TermError(f"{value!r} is neither a term nor a real number")
    return value if isinstance(value, Term) else const(value)


def terms(values: Sequence[object]) -> tuple[Term, ...]:
    """Operands of one operation as terms. As in PyTorch, a Python int beside a term of another dtype is a float."""
    kinds = {v.dtype for v in values if isinstance(v, Term)}
    integers = kinds <= {"int64", "bool"}
    return tuple(term(v if integers or type(v) is not int else float(v)) for v in values)


def const(value: Real | float | bool) -> Term:
    """A literal. A float is weak: it takes the dtype of the other operand."""
    return make("const", (), (value,))


def iota(dim: Dim) -> Term:
    """The coordinate along a dim, 0 <= iota < size, as an integer term."""
    return make("iota", (), (dim,))


def load(tensor: Tensor, *index: Operand) -> Term:
    """An element of a materialised tensor: one integer term for each axis. Views and gathers are index terms."""
    if len(index) != len(tensor.shape):
        raise TermError(f"{tensor.name} has {len(tensor.shape)} axes, got {len(index)} indices")
    return make("load", tuple(term(i) for i in index), (tensor,))


def var(name: str, dtype: str = "any") -> Term:
    """A pattern variable. In a law it stands for any term of its dtype."""
    return make("var", (), (name, dtype))


def cast(x: Term, dtype: str | AttributeVariable) -> Term:
    """x converted to the dtype."""
    return make("cast", (x,), (dtype,))


def size_of(dim: Dim | str) -> Term:
    """How many elements a dim of a law has."""
    return make("size", (), (Dim(dim) if isinstance(dim, str) else dim,))


def at(x: Term, dim: Dim | str, place: Term) -> Term:
    """What the variable x of a law is where the dim has another index: the place."""
    return make("at", (x, place), (Dim(dim) if isinstance(dim, str) else dim,))


def only(monoid: str | AttributeVariable, kept: Term, x: Term) -> Term:
    """In a law: x where the condition holds, and an absent element of the monoid elsewhere."""
    return make("only", (kept, x), (monoid,))


def combined(monoid: str | AttributeVariable, x: Term, y: Term) -> Term:
    """In a law: x ⊕ y for the operation ⊕ of the monoid."""
    return make("combined", (x, y), (monoid,))


def stored(x: Term, name: str | AttributeVariable) -> Term:
    """x, where a kernel reads it from the tensor `name` that an earlier kernel stored; only plans are read so."""
    return make("stored", (x,), (name,))


def reduce(monoid: str | AttributeVariable, dim: Dim | str, body: Operand) -> Term:
    """Folds the body over the dim with the monoid: a name of MONOIDS, or an AttributeVariable in a pattern."""
    if isinstance(monoid, str) and monoid not in MONOIDS:
        raise TermError(f"unknown monoid {monoid!r}")
    return make("reduce", (term(body),), (monoid, Dim(dim) if isinstance(dim, str) else dim))


def sum_over(dim: Dim | str, body: Operand) -> Term:
    """The sum of the body over the dim."""
    return reduce("sum", dim, body)


def max_over(dim: Dim | str, body: Operand) -> Term:
    """The maximum of the body over the dim."""
    return reduce("max", dim, body)


def rescaled_sum(dim: Dim | str, scale: Operand, weight: Operand) -> Term:
    """The sum over the dim of weight · e^scale, as a state: the pair (largest scale, mantissa)."""
    return reduce("rescaled", dim, scaled(scale, weight))


def _constructor(name: str):
    def construct(*args) -> Term:
        return make(name, terms(args))

    construct.__name__ = name
    construct.__doc__ = f"The term {name}(...)."
    return construct


exp, exp2, log, log2, tanh, sqrt, rsqrt = map(_constructor, ("exp", "exp2", "log", "log2", "tanh", "sqrt", "rsqrt"))
maximum, minimum, power = map(_constructor, ("maximum", "minimum", "pow"))
lt, le, eq, where = map(_constructor, ("lt", "le", "eq", "where"))
logical_and, logical_or, logical_not = map(_constructor, ("and", "or", "not"))
scaled, scale, mantissa, finite = map(_constructor, ("scaled", "scale", "mantissa", "finite"))
uniform = _constructor("uniform")


HOOKS |= {"make": make, "terms": terms}
