"""The values of terms at sampled indices, in numbers in which equal programs are exactly equal.

A dim is a set of indices, a few of many; a reduction is over these, in all terms alike. A tensor is an arbitrary
function of its indices, so no memory holds it and lengths cost nothing. Invariant: terms that are equal for every
length and every tensor have equal values. Example: a sum over j of 8192 keys is that over j = 0, 1, 4711 and 8191.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Mapping, Sequence
from fractions import Fraction
from functools import cache
from math import e, log2
from typing import Any

import numpy as np

from ...egraph.terms.ops import OPS, infinite_beyond
from ...egraph.terms.sizes import resolve
from ...egraph.terms.term import Dim, Tensor, Term
from ...egraph.terms.traversal import subterms
from . import ring_numbers as ring
from .ring_numbers import RingNumbers
from .sample_points import Points

Dims = tuple[Dim, ...]
Value = Any  # RingNumbers, an array of whole numbers or truth values, or a state: a tuple of two RingNumbers
LOG2_E = log2(e)
CHANCES_OF_TRUE = (6, 4, 2, 7)  # of 8, for an element of a tensor of truth values, by trial


class SampledValues:
    """The values of terms, each computed once.

    indices: the set of indices of each dim, in order. ranges: of tensors of whole numbers, how many values there are.
    trial: the number of the drawing; in each one tensors are other functions. literals: floats that stand for other
    numbers, of which they are roundings.
    """

    def __init__(
        self,
        indices: Points,
        ranges: Mapping[str, int],
        sizes: Mapping[str, int],
        trial: int = 0,
        literals: Mapping[float, Fraction] | None = None,
    ):
        self.literals = literals or {}
        self.indices, self.ranges, self.sizes, self.trial = indices, ranges, sizes, trial
        self.done: dict[Term, Value] = {}

    def value(self, root: Term) -> Value:
        """RingNumbers, an array, or a state as two of these; the axes are the dims in order."""
        done = self.done
        if root not in done:
            with np.errstate(all="ignore"):
                for node in subterms(root, done.__contains__):
                    if node not in done:
                        done[node] = self._value(node)
        return done[root]

    def aligned(self, root: Term, dims: Dims) -> Value:
        """The value with an axis for each of these dims, of length 1 where it does not depend on the dim."""
        return moved(self.value(root), axes_of(root), dims)

    def _value(self, node: Term):
        match node.op:
            case "const":
                value = node.attrs[0]
                if is_exact(node.dtype):
                    return np.asarray(value)
                return ring.rational(self.literals[value]) if value in self.literals else ring.literal(value)
            case "iota":
                return self.indices(node.attrs[0])
            case "size":
                return np.asarray(resolve(node.attrs[0], self.sizes))
            case "reduce":
                return self._fold(node)
            case "mantissa":
                scale, mantissa = self.done[node.args[0]]
                return mantissa if scale.far is None else _without(mantissa, np.asarray(np.isneginf(scale.far)))
            case "scale":
                return self.done[node.args[0]][0]
        dims = axes_of(node)
        args = [moved(self.done[a], axes_of(a), dims) for a in node.args]
        if node.op == "load":
            return self._load(node.attrs[0], args)
        return pointwise(node, args)

    def _load(self, tensor: Tensor, indices: Sequence[np.ndarray]):
        bits = _hashed(zlib.crc32(tensor.name.encode(), self.trial), indices)
        if tensor.dtype == "bool":
            return bits % np.uint64(8) < CHANCES_OF_TRUE[self.trial % len(CHANCES_OF_TRUE)]
        if is_exact(tensor.dtype):
            return (bits % np.uint64(self.ranges.get(tensor.name, 3))).astype(np.int64)
        return ring.of_bits(bits)

    def _fold(self, node: Term):
        (monoid, dim), body = node.attrs, node.args[0]
        count = len(self.indices(dim))
        dims = axes_of(body)
        with_dim = dims if dim in dims else axes_of_dims(frozenset((*dims, dim)))
        axis = with_dim.index(dim)
        value = _spread(moved(self.done[body], dims, with_dim), axis, count)
        return _squeezed(_folds(monoid, value, axis), axis)


@cache
def axes_of_dims(dims: frozenset[Dim]) -> Dims:
    """Dims in the order of axes."""
    return tuple(sorted(dims, key=lambda d: (d.name, str(d.size))))


def axes_of(node: Term) -> Dims:
    """The dims of a term in the order of the axes of its values."""
    return axes_of_dims(node.dims)


def is_exact(dtype: str) -> bool:
    """Whether values are whole numbers or truth values."""
    return dtype == "bool" or dtype.startswith(("int", "uint"))


def moved(value: Value, own: Dims, dims: Dims) -> Value:
    """A value with axes for more dims. Both are in one order."""
    if own == dims:
        return value
    if isinstance(value, tuple):
        return tuple(moved(part, own, dims) for part in value)
    if isinstance(value, RingNumbers):
        far = None if value.far is None else _expanded(value.far, own, dims)
        shape = iter(value.residues.shape[1:])
        lengths = [next(shape) if d in own else 1 for d in dims] if value.residues.ndim > 1 else [1] * len(dims)
        return RingNumbers(value.residues.reshape(-1, *lengths), far, value.real)
    return _expanded(value, own, dims)


def _expanded(array: np.ndarray, own: Dims, dims: Dims) -> np.ndarray:
    if array.ndim == 0:
        return array.reshape([1] * len(dims))
    shape = iter(array.shape)
    return array.reshape([next(shape) if d in own else 1 for d in dims])


def _spread(value, axis: int, count: int):
    """The value with the full length along an axis."""
    if isinstance(value, tuple):
        return tuple(_spread(part, axis, count) for part in value)
    if isinstance(value, RingNumbers):
        far = None if value.far is None else _repeated(value.far, axis, count)
        return RingNumbers(_repeated(value.residues, axis + 1, count), far)
    return _repeated(value, axis, count)


def _repeated(array: np.ndarray, axis: int, count: int) -> np.ndarray:
    return array if array.shape[axis] == count else np.repeat(array, count, axis)


def _squeezed(value, axis: int):
    if isinstance(value, tuple):
        return tuple(_squeezed(part, axis) for part in value)
    if isinstance(value, RingNumbers):
        return RingNumbers(value.residues.squeeze(axis + 1), None if value.far is None else value.far.squeeze(axis))
    return value.squeeze(axis)


def _without(x: RingNumbers, absent: np.ndarray) -> RingNumbers:
    far = np.where(absent, np.nan, 0.0 if x.far is None else x.far)
    return ring.of_parts(x.residues, far)


_WHOLE: dict[str, Callable] = {
    "sum": np.sum, "prod": np.prod, "max": np.max, "min": np.min, "any": np.any, "all": np.all
}  # fmt: skip


def _folds(monoid: str, value, axis: int):
    if monoid == "rescaled":
        scale, mantissa = value
        return ring.rescaled_total(scale, mantissa, axis)
    if not isinstance(value, RingNumbers):
        return _WHOLE[monoid](value, axis=axis, keepdims=True)
    if monoid == "sum":
        return ring.total(value, axis)
    if monoid == "prod":
        return ring.folded(ring.multiply, value, axis)
    return ring.extreme(value, axis, 1 if monoid == "max" else -1)


_NUMBERS: dict[str, Callable] = {
    "add": ring.add,
    "sub": lambda a, b: ring.add(a, b, -1),
    "mul": ring.multiply,
    "div": ring.divide,
    "neg": ring.negative,
    "exp": ring.exponential,
    "exp2": lambda a: ring.exponential(ring.multiplied(a, 1 / Fraction(LOG2_E))),
    "abs": ring.magnitude,
    "maximum": ring.largest,
    "minimum": ring.smallest,
    "lt": ring.less,
    "le": lambda a, b: ring.less(a, b) | ring.equal(a, b),
    "eq": ring.equal,
    "stored": lambda a: a,
    "finite": lambda a: np.ones(a.shape, bool) if a.far is None else np.isfinite(a.far),
}
LARGEST_POWER = 8
STEP = np.uint64(0x9E3779B97F4A7C15)


def pointwise(node: Term, args: list) -> Value:
    """An operation on values with the same axes."""
    if node.op == "scaled":
        return tuple(args)
    if node.op == "cast":
        return _cast(args[0], node.args[0].dtype, node.attrs[0])
    if node.op == "where":
        return _where(*args)
    if node.op == "uniform":
        return ring.of_bits(_hashed(1, args))
    if not any(isinstance(a, RingNumbers) for a in args):
        return OPS[node.op].meaning(*args)
    args = [a if isinstance(a, RingNumbers) else ring.of_integers(a) for a in args]
    if node.op == "pow" and (times := _whole_power(node.args[1])) is not None:
        return ring.power(args[0], times)
    if node.op in _NUMBERS:
        return _NUMBERS[node.op](*args)
    return ring.arbitrary(zlib.crc32(node.op.encode()), *args)


def _whole_power(exponent: Term) -> int | None:
    if exponent.op != "const" or exponent.attrs[0] not in range(LARGEST_POWER + 1):
        return None
    return int(exponent.attrs[0])


def _where(condition, yes, no):
    if isinstance(yes, RingNumbers) or isinstance(no, RingNumbers):
        yes, no = (x if isinstance(x, RingNumbers) else ring.of_integers(x) for x in (yes, no))
        return ring.choose(condition, yes, no)
    return np.where(condition, yes, no)


def _hashed(seed: int, integers: Sequence[np.ndarray]) -> np.ndarray:
    """64 bits for each place of whole numbers."""
    bits = np.asarray(np.uint64(seed))
    for number in integers:
        bits = ring.mixed(bits * STEP + ring.ONE ^ np.asarray(number).astype(np.int64).view(np.uint64))
    return np.asarray(ring.mixed(bits))


def _cast(value, before: str, after: str):
    if isinstance(value, RingNumbers):
        if is_exact(after):
            bits = ring.bits_of(value)
            return bits % np.uint64(2) == 0 if after == "bool" else (bits % np.uint64(7)).astype(np.int64)
        return value if value.far is None else _overflown(value, after)
    if after == "bool":
        return value.astype(bool)
    if is_exact(after):
        return value.astype(np.int64).astype(after).astype(np.int64)
    return ring.of_integers(value)


def _overflown(value: RingNumbers, dtype: str) -> RingNumbers:
    return ring.of_parts(value.residues, infinite_beyond(value.far, dtype))
