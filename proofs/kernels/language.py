"""The functions of Triton's language that kernels' texts call, over exact numbers, for all programs at once.

A tile has one axis more in front: that of programs, of length 1 where all programs have the same. Integers and bools
are numpy's, of the widths that the text gives them, so that an overflow of 32 bits shows. Example: `tl.arange(0, 16)`
is an array of shape (1, 16).
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial, reduce
from typing import Any

import numpy as np

from . import numbers as exact
from .instructions import float8_values, same_values, values_of_bytes
from .memory import KernelFault, Pointer
from .numbers import Numbers
from .term_values import MEANINGS, absolute, log2, square_root

REALS = ("float16", "bfloat16", "float32", "float64", "float8e5", "float8e4nv")
NUMPY_NAMES = {"int1": "bool"}
ALL_NANS, NO_NANS = "all", "none"


@dataclass(frozen=True)
class Type:
    """A type of the language: `tl.float32`."""

    name: str

    @property
    def is_real(self) -> bool:
        """Whether its values are exact numbers."""
        return self.name in REALS

    @property
    def numpy(self) -> np.dtype:
        """Of integers and bools."""
        return np.dtype(NUMPY_NAMES.get(self.name, self.name))


def is_plain(value: object) -> bool:
    """Whether a value is known when the text is compiled."""
    return isinstance(value, bool | int | float | str | None)


def is_real(value: object) -> bool:
    """Whether a value is a number, not an integer."""
    return isinstance(value, float | Numbers)


def ranked(*values: Any) -> list[Any]:
    """Tiles with as many axes, missing ones behind that of programs."""
    width = max((v.ndim for v in values if isinstance(v, np.ndarray | Numbers)), default=0)
    return [_with_rank(v, width) for v in values]


def _with_rank(value, width: int):
    if not isinstance(value, np.ndarray | Numbers) or value.ndim in (0, width):
        return value
    change = lambda part: part.reshape(part.shape[0], *[1] * (width - part.ndim), *part.shape[1:])
    return value.arranged(change) if isinstance(value, Numbers) else change(value)


def rearranged(value: Any, change: Callable[[np.ndarray], np.ndarray]) -> Any:
    """A value with its elements in another arrangement."""
    if isinstance(value, Pointer):
        return Pointer(value.buffer, change(value.places))
    return value.arranged(change) if isinstance(value, Numbers) else change(np.asarray(value))


# Operators


def _quotient(a, b):
    """Of integers, rounded to zero as the language does it."""
    if is_plain(a) and is_plain(b):
        return a // b
    _refuse_zero(b)
    found = np.abs(a) // np.abs(b)
    return np.where((np.asarray(a) < 0) != (np.asarray(b) < 0), -found, found).astype(found.dtype)


def _remainder(a, b):
    if is_plain(a) and is_plain(b):
        return a % b
    _refuse_zero(b)
    found = np.abs(a) % np.abs(b)
    return np.where(np.asarray(a) < 0, -found, found).astype(found.dtype)


def _refuse_zero(divisor) -> None:
    if not np.all(divisor):
        raise KernelFault("an integer is divided by 0")


INTEGER_OPERATORS: dict[str, Callable] = {
    "Add": operator.add,
    "Sub": operator.sub,
    "Mult": operator.mul,
    "FloorDiv": _quotient,
    "Mod": _remainder,
    "BitAnd": operator.and_,
    "BitOr": operator.or_,
    "BitXor": operator.xor,
    "RShift": operator.rshift,
    "LShift": operator.lshift,
    "Lt": operator.lt,
    "LtE": operator.le,
    "Gt": operator.gt,
    "GtE": operator.ge,
    "Eq": operator.eq,
    "NotEq": operator.ne,
    "Div": operator.truediv,
}
NUMBER_OPERATORS: dict[str, Callable] = {
    "Add": exact.add,
    "Sub": exact.subtract,
    "Mult": exact.multiply,
    "Div": exact.divide,
    "Lt": exact.less,
    "LtE": MEANINGS["le"],
    "Gt": lambda a, b: exact.less(b, a),
    "GtE": lambda a, b: MEANINGS["le"](b, a),
    "Eq": exact.equal,
    "NotEq": lambda a, b: ~exact.equal(a, b),
}


def binary(name: str, a: Any, b: Any) -> Any:
    """An operator of two values."""
    if isinstance(a, Pointer) or isinstance(b, Pointer):
        return _moved(name, a, b)
    if is_plain(a) and is_plain(b) and not (is_real(a) or is_real(b)):
        return INTEGER_OPERATORS[name](a, b)
    a, b = ranked(a, b)
    if is_real(a) or is_real(b) or name == "Div":
        if name not in NUMBER_OPERATORS:
            raise KernelFault(f"{name} of a number")
        return NUMBER_OPERATORS[name](exact.numbers(a), exact.numbers(b))
    with np.errstate(all="ignore"):
        return INTEGER_OPERATORS[name](a, b)


def _moved(name: str, a, b) -> Pointer:
    pointer, offset = (a, b) if isinstance(a, Pointer) else (b, a)
    if name not in ("Add", "Sub") or isinstance(offset, Pointer) or is_real(offset) or (name == "Sub" and pointer is b):
        raise KernelFault(f"{name} of a pointer")
    places, offset = ranked(pointer.places, offset)
    return Pointer(pointer.buffer, INTEGER_OPERATORS[name](places, np.asarray(offset).astype(np.int64)))


def unary(name: str, a: Any) -> Any:
    """An operator of one value."""
    if name == "USub":
        return exact.negate(a) if isinstance(a, Numbers) else -a
    if name == "Not" and is_plain(a):
        return not a
    if name == "Invert" and not is_real(a):
        return ~a
    raise KernelFault(f"{name} of a value")


# Functions


def _cast(value, type_: Type, bitcast: bool = False):
    if bitcast and type_.name == "float32" and not is_real(value) and np.asarray(value).dtype == np.int32:
        return exact.of_floats(np.asarray(value).view(np.float32))
    if bitcast:
        if not is_real(value) or type_.name != "int32":
            raise KernelFault(f"the bits of a value as {type_.name}")
        with np.errstate(over="ignore"):
            return exact.numbers(value).shadow.astype(np.float32).view(np.int32)
    if type_.is_real:
        return exact.numbers(value)
    if is_real(value):
        shadow = np.nan_to_num(np.trunc(exact.numbers(value).shadow), posinf=0, neginf=0)
        return shadow.astype(type_.numpy)
    return np.asarray(value).astype(type_.numpy)


def _full(shape: Sequence[int], value, type_: Type):
    if not all(is_plain(extent) and extent.bit_count() == 1 for extent in shape):
        raise KernelFault("a tile's extent is no power of two")
    lone = (1,) * len(shape)
    spread = lambda part: np.broadcast_to(np.reshape(part, (-1, *lone)), (np.size(part), *shape))  # of each program's
    return exact.numbers(value).arranged(spread) if type_.is_real else spread(np.asarray(value, type_.numpy))


def _where(condition, a, b):
    condition, a, b = ranked(np.asarray(condition), a, b)
    if is_real(a) or is_real(b):
        return exact.choose(condition, exact.numbers(a), exact.numbers(b))
    if is_plain(a) and is_plain(b):
        a = np.asarray(a, np.int32)
    return np.where(condition, a, b)


def _extreme(numbers_: Callable, integers: Callable, a, b, propagate_nan: str = NO_NANS):
    a, b = ranked(a, b)
    if is_real(a) or is_real(b):
        return numbers_(exact.numbers(a), exact.numbers(b), propagate_nan == ALL_NANS)
    if is_plain(a) and is_plain(b):
        return (max if integers is np.maximum else min)(a, b)
    return integers(a, b)


def _folded(numbers_: Callable, integers: Callable, value, axis: int | None = None):
    if axis is None:
        value = rearranged(value, lambda part: part.reshape(part.shape[0], -1))
    elif not 0 <= axis < value.ndim - 1:
        raise KernelFault(f"a tile of {value.ndim - 1} axes is folded along axis {axis}")
    place = 1 if axis is None else axis + 1
    return numbers_(value, place) if isinstance(value, Numbers) else integers(value, axis=place)


def _highest(value: Numbers, axis: int) -> Numbers:
    return exact.highest(value, axis, propagates=False)


def _lowest(value: Numbers, axis: int) -> Numbers:
    return exact.negate(_highest(exact.negate(value), axis))


def _sum_of_integers(value: np.ndarray, axis: int) -> np.ndarray:
    return value.sum(axis, dtype=np.int32 if value.dtype.itemsize < 4 else value.dtype)


def _reduce(value, axis: int, function: Callable):
    """Folds by a function of the text, from the first element on."""
    place = lambda n: rearranged(value, lambda part: np.take(part, n, axis + 1))
    return reduce(function, [place(n) for n in range(value.shape[axis + 1])])


def _dot(a, b, acc=None, **options):
    if a.ndim != b.ndim or a.ndim < 3:
        raise KernelFault(f"a product of tiles of {a.ndim - 1} and {b.ndim - 1} axes")
    if any(x not in ("input_precision", "out_dtype", "allow_tf32", "max_num_imprecise_acc") for x in options):
        raise KernelFault(f"a product with {', '.join(options)}")
    found = matrix_product(a, b)
    if acc is None:
        return found
    if not is_plain(acc) and acc.shape[1:] != found.shape[1:]:
        raise KernelFault(f"a product of {found.shape[1:]} is added to {acc.shape[1:]}")
    return with_product(found, acc)


def matrix_product(a: Any, b: Any) -> Any:
    """The product of two tiles. That of integers, which are int8, has as many bits as none of its sums exceeds."""
    if is_real(a) or is_real(b):
        return exact.matrix_product(exact.numbers(a), exact.numbers(b))
    if a.dtype != np.int8 or b.dtype != np.int8:
        raise KernelFault(f"a product of {a.dtype} and {b.dtype}")
    return np.matmul(a.astype(np.int64), b.astype(np.int64))


def with_product(found: Any, acc: Any) -> Any:
    """A product with a tile added: numbers to numbers, and integers to integers of 32 bits."""
    if is_real(found) != is_real(acc):
        raise KernelFault("a product of integers is added to numbers, or one of numbers to integers")
    if is_real(found):
        return exact.add(found, exact.numbers(acc))
    total = found + acc
    if np.abs(total).max(initial=0) >= 2**31:
        raise KernelFault("a sum of 32 bits overflows")
    return total.astype(np.int32)


def _transposed(value, *order):
    order = order[0] if order and isinstance(order[0], tuple | list) else order
    order = order or (*range(value.ndim - 3), value.ndim - 2, value.ndim - 3)
    return rearranged(value, lambda part: np.transpose(part, (0, *(n + 1 for n in order))))


def _gather(value, index, axis: int):
    lanes = max(value.shape[0], index.shape[0])
    spread = lambda part: np.broadcast_to(part, (lanes, *part.shape[1:]))
    index = spread(index)
    if index.size and (index.min() < 0 or index.max() >= value.shape[axis + 1]):
        raise KernelFault("an element beyond a tile is gathered")
    return rearranged(value, lambda part: np.take_along_axis(spread(part), index, axis + 1))


def _cdiv(a, b):
    if is_plain(a) and is_plain(b):
        return -(-a // b)
    return _quotient(a + (b - 1), b)


def _expand(value, axis: int):
    return rearranged(value, lambda part: np.expand_dims(part, axis + 1))


def _range(first: int, last: int) -> np.ndarray:
    if not is_plain(first) or not is_plain(last) or (last - first).bit_count() != 1:
        raise KernelFault("a tile's extent is no power of two")
    return np.arange(first, last, dtype=np.int32)[None]


def _broadcast_to(value, shape):
    return rearranged(value, lambda part: np.broadcast_to(part, (part.shape[0], *shape)))


def _reshape(value, *shape):
    shape = shape[0] if isinstance(shape[0], tuple | list) else shape
    return rearranged(value, lambda part: part.reshape(part.shape[0], *shape))


def _joined(a, b):
    """Two tiles side by side along a new last axis."""
    first = np.asarray([True, False]).reshape(*[1] * a.ndim, 2)
    return _where(first, *(_expand(x, x.ndim - 1) for x in (a, b)))


def _assembly(text: str, constraints: str, arguments: list, type_: Type, *rest):
    """What instructions compute, up to the rounding of a tangent."""
    (value,) = arguments
    if text == "tanh.approx.f32 $0, $1;":
        return MEANINGS["tanh"](exact.numbers(value))
    values = values_of_bytes(text, type_.name)
    if not is_real(value):
        return exact.of_floats(values[np.asarray(value).astype(np.uint8)])
    if not any(same_values(values, float8_values(kind)) for kind in ("e4m3", "e5m2")):
        raise KernelFault("instructions that change a number of eight bits")
    return value


def _absolute(value):
    return absolute(value) if isinstance(value, Numbers) else np.abs(value)


def _of_number(function: Callable):
    return lambda value: function(exact.numbers(value))


FUNCTIONS: dict[str, Callable] = {
    "cast": _cast,
    "full": _full,
    "zeros": lambda shape, type_: _full(shape, 0, type_),
    "where": _where,
    "maximum": partial(_extreme, exact.largest, np.maximum),
    "minimum": partial(_extreme, exact.smallest, np.minimum),
    "sum": partial(_folded, exact.total, _sum_of_integers),
    "max": partial(_folded, _highest, np.max),
    "min": partial(_folded, _lowest, np.min),
    "reduce": _reduce,
    "dot": _dot,
    "trans": _transposed,
    "permute": _transposed,
    "gather": _gather,
    "cdiv": _cdiv,
    "expand_dims": _expand,
    "broadcast_to": _broadcast_to,
    "reshape": _reshape,
    "join": _joined,
    "arange": _range,
    "abs": _absolute,
    "fma": lambda x, y, z: exact.add(exact.multiply(*map(exact.numbers, (x, y))), exact.numbers(z)),
    "exp": _of_number(exact.exp),
    "exp2": _of_number(exact.exp2),
    "log": _of_number(partial(exact.unknown_function, "log")),
    "log2": _of_number(log2),
    "sqrt": _of_number(square_root),
    "rsqrt": _of_number(MEANINGS["rsqrt"]),
    "erf": _of_number(MEANINGS["erf"]),
    "sin": _of_number(MEANINGS["sin"]),
    "cos": _of_number(MEANINGS["cos"]),
    "floor": _of_number(exact.floor),
    "inline_asm_elementwise": _assembly,
}
