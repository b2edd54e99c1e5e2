"""Evaluates a term in float64 by the meanings of ops.py. Rules, plans and kernels are compared with its results.

While a term is evaluated, every array has one axis for each dim of `all_dims`, in that order. An axis has the length 1
where the value does not depend on the dim. Example: `evaluate(x + 1.0, {"x": np.zeros(3)})` for a load of x.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from .ops import MONOIDS, OPS, infinite_beyond, rounded
from .term import FLOATS, PAIR, Dim, Term, TermError
from .traversal import all_dims, subterms

Sizes = Mapping[str, int] | None  # values of symbolic sizes


def evaluate(
    root: Term,
    tensors: Mapping[str, np.ndarray],
    dims: Sequence[Dim] | None = None,
    sizes: Sizes = None,
    rounding: str | None = None,
) -> np.ndarray:
    """The values of the term in float64, as an array whose axes are `dims` (default: its free dims in order of name).

    tensors: arrays for loads and for variables, by name. The array of a variable has one axis for each dim of
    `all_dims`. sizes: values of symbolic sizes. Raises TermError for a name or a size without a value.

    rounding: a floating dtype to compute in instead of float32. Results of float32 terms are rounded to it, results of
    other floating dtypes to their own. Without it nothing is rounded, and a cast only overflows.
    """
    order, sizes = all_dims(root), sizes or {}
    wanted = sorted(root.dims) if dims is None else list(dims)
    return _arrange(evaluate_all(root, tensors, sizes, rounding)[root], wanted, order, _lengths(order, sizes))


def evaluate_all(
    root: Term, tensors: Mapping[str, np.ndarray], sizes: Sizes = None, rounding: str | None = None
) -> dict[Term, object]:
    """The values of every subterm, with the axes `all_dims(root)`; a state is a tuple of two arrays."""
    order, sizes = all_dims(root), sizes or {}
    length = _lengths(order, sizes)
    done: dict[Term, object] = {}
    with np.errstate(all="ignore"):
        for node in subterms(root):
            value = _value(node, [done[a] for a in node.args], tensors, order, length, sizes)
            done[node] = value if rounding is None or node.op == "const" else _rounded(value, node.dtype, rounding)
    return done


def _lengths(order: Sequence[Dim], sizes) -> dict[Dim, int]:
    return {d: d.size if isinstance(d.size, int) else _size(sizes, d.size) for d in order}


def _arrange(value, wanted, order, length):
    if isinstance(value, tuple):
        return tuple(_arrange(v, wanted, order, length) for v in value)
    value = np.asarray(value)
    full = np.broadcast_to(value, np.broadcast_shapes(value.shape, (1,) * len(order)))
    kept = [order.index(d) for d in wanted if d in order]
    dropped = tuple(k for k in range(len(order)) if k not in kept)
    flat = np.transpose(np.squeeze(full, axis=dropped), np.argsort(np.argsort(kept)))
    shape = [1 if d not in order else length[d] for d in wanted]
    for position, d in enumerate(wanted):
        if d not in order:
            flat = np.expand_dims(flat, position)
    return np.broadcast_to(flat, shape)


def _value(node: Term, args, tensors, order, length, sizes):
    match node.op:
        case "const":
            return np.asarray(node.attrs[0])
        case "iota":
            shape = [length[d] if d == node.attrs[0] else 1 for d in order]
            return np.arange(length[node.attrs[0]]).reshape(shape)
        case "size":
            return np.asarray(_size(sizes, node.attrs[0]))
        case "var":
            return _named(tensors, node.attrs[0])
        case "load":
            return _gather(_named(tensors, node.attrs[0].name), args)
        case "cast":
            return _cast(args[0], node.attrs[0])
        case "reduce":
            axis = order.index(node.attrs[1])
            return MONOIDS[node.attrs[0]].fold(_spread(args[0], axis, length[node.attrs[1]], len(order)), axis)
    return OPS[node.op].meaning(*args)


def _size(sizes, name):
    if name not in sizes:
        raise TermError(f"no value was given for the size {name!r}")
    return sizes[name]


def _rounded(value, dtype: str, rounding: str):
    if isinstance(value, tuple):
        return tuple(_rounded(part, dtype.removeprefix(PAIR), rounding) for part in value)
    if value.dtype.kind != "f":
        return value
    return rounded(value, dtype if dtype in FLOATS[1:] and dtype != "float32" else rounding)


def _named(tensors, name):
    if name not in tensors:
        raise TermError(f"no value was given for {name!r}")
    return np.asarray(tensors[name])


def _gather(array, index):
    array = array.astype(np.float64) if array.dtype.kind == "f" else array
    return array[tuple(np.broadcast_arrays(*index))] if len(index) > 1 else array[index[0]] if index else array


def _spread(value, axis, size, rank):
    """Gives the folded axis its full length. A fold repeats a body that does not depend on the dim."""
    if isinstance(value, tuple):
        return tuple(_spread(v, axis, size, rank) for v in value)
    shape = list(np.broadcast_shapes(value.shape, (1,) * rank))
    shape[axis] = size
    return np.broadcast_to(value, shape)


def _cast(value, dtype):
    if dtype == "bool":
        return value.astype(bool)
    if str(dtype).startswith(("int", "uint")):  # wraps as the dtype does; computed as int64
        return np.trunc(value).astype(np.int64).astype(dtype).astype(np.int64)
    return infinite_beyond(value, dtype)
