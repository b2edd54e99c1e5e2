"""Tensors made of nothing but their shape and perhaps a seed, triangles of a tensor, and running sums and differences
of integers that the graph itself makes.

Each is a function of the index; for running sums and differences no tensor is read. Examples: tril keeps the element at
(i, j) where j ≤ i + diagonal; decoders find packed sequences by jumps in positions, and count positions with the
cumulative sum of a mask of ones.
"""

from __future__ import annotations

from collections.abc import Sequence

from .. import messages
from ..egraph.terms.affine import compare
from ..egraph.terms.index_simplify import simplify_index
from ..egraph.terms.ops import cast, const, iota, le, uniform
from ..egraph.terms.sizes import Size, term_of
from ..egraph.terms.term import Term
from ..egraph.terms.traversal import subterms
from ..graph.random_operators import least_kept
from .registry import (
    Handlers,
    Index,
    Number,
    OperatorCall,
    TensorValue,
    apply,
    choose,
    convert,
    require_fit,
    stored,
    stored_literal,
    term_dtype,
)

handles = Handlers()


def filled(call: OperatorCall, number: Number) -> TensorValue:
    """A tensor of one number, or of one whose text is symbolic."""
    require_fit(call, number)
    fill = term_of(number) if isinstance(number, str) else stored_literal(number, call.meta.dtype)
    return call.value(lambda index: convert(fill, term_dtype(call.meta.dtype)))


CREATED = {"zeros": 0, "ones": 1, "new_zeros": 0, "new_ones": 1, "zeros_like": 0, "ones_like": 1}
for _name, _number in CREATED.items():
    handles(f"aten.{_name}.default")(lambda call, number=_number: filled(call, number))


@handles("aten.full.default", "aten.new_full.default", "aten.full_like.default", symbolic="fill_value")
def full(call: OperatorCall) -> TensorValue:
    return filled(call, call["fill_value"])


@handles("aten.scalar_tensor.default", symbolic="s")
def scalar_tensor(call: OperatorCall) -> TensorValue:
    return filled(call, call["s"])


RANGES = ("aten.arange.default", "aten.arange.start", "aten.arange.start_step", "prims.iota.default")


@handles(*RANGES, symbolic="start step")
def arange(call: OperatorCall) -> TensorValue:
    start, step = call.get("start") or 0, call.get("step") or 1
    if not all(isinstance(x, int | str) for x in (start, step)):
        raise call.refuse(messages.FRACTIONAL_STEPS)
    place = lambda index: apply("add", term_of(start), apply("mul", term_of(step), index[0]))
    return call.value(lambda index: convert(place(index), call.meta.dtype))


@handles("aten.eye.default", "aten.eye.m")
def eye(call: OperatorCall) -> TensorValue:
    one, zero = (stored_literal(x, call.meta.dtype) for x in (1, 0))
    return call.value(lambda index: choose(apply("eq", index[0], index[1]), one, zero))


def number_at(seed: TensorValue, index: Index, shape: Sequence[Size]) -> Term:
    """The random number of an element: of its matrix, counted over all axes but the last two, row and column."""
    *around, row, column = (const(0), const(0), *index)[min(len(index), 2) :]
    matrix: Term = const(0)
    for place, size in zip(around, shape[:-2], strict=True):
        matrix = apply("add", apply("mul", matrix, term_of(size)), place)
    return uniform(seed.at((const(0),)), seed.at((const(1),)), matrix, row, column)


def kept_at(seed: TensorValue, p: float, index: Index, shape: Sequence[Size], dtype: str) -> Term:
    """1 for an element that is kept, and 0 where a share p is dropped."""
    return cast(le(const(least_kept(p)), number_at(seed, index, shape)), dtype)


@handles("onepass.uniform_numbers.default")
def uniform_numbers(call: OperatorCall) -> TensorValue:
    return call.value(lambda index: number_at(call["seed"], index, call.meta.shape))


@handles("aten.tril.default", "aten.triu.default", symbolic="diagonal")
def triangle(call: OperatorCall) -> TensorValue:
    source, diagonal = call["self"], term_of(call["diagonal"])
    zero = stored_literal(0, call.meta.dtype)
    lower = "tril" in call.node.target

    def pull(index):
        limit = apply("add", index[-2], diagonal)
        kept = apply("le", index[-1], limit) if lower else apply("le", limit, index[-1])
        return choose(kept, source.at(index), zero)

    return call.value(pull)


@handles("aten.diff.default")
def differences(call: OperatorCall) -> TensorValue:
    """x[i + 1] - x[i]; with one number in front: x[0] - front, then x[i] - x[i - 1]."""
    source, front = call["self"], call["prepend"]
    axis = source.axis(call["dim"])
    if call["n"] != 1 or call["append"] is not None or term_dtype(call.meta.dtype) != "int64":
        raise call.refuse(messages.DIFFERENCES)
    if front is not None and front.shape[axis] != 1:
        raise call.refuse(messages.DIFFERENCE_IN_FRONT)

    def pull(index):
        at = lambda x, i: convert(x.at((*index[:axis], simplify_index(i), *index[axis + 1 :])), "int64")
        step = lambda later, earlier: stored(simplify_index(apply("sub", later, earlier)), call.meta.dtype)
        i = index[axis]
        if front is None:
            return step(at(source, i + const(1)), at(source, i))
        first = step(at(source, const(0)), at(front, const(0)))
        return choose(compare("le", i, const(0)), first, step(at(source, i), at(source, i - const(1))))

    return call.value(lambda index: _require_numbers(call, pull(index)))


@handles("aten.cumsum.default")
def cumulative_sum(call: OperatorCall) -> TensorValue:
    """Σ_{j ≤ i} x[j] = (i + 1) · x, where x is the same for every j."""
    source = call["self"]
    axis, dtype = source.axis(call["dim"]), term_dtype(call.meta.dtype)
    if dtype != "int64" or not source.shape:
        raise call.refuse(messages.RUNNING_SUM)

    def pull(index):
        j = iota(call.binder(source.shape[axis]))
        x = _require_numbers(call, convert(source.at((*index[:axis], j, *index[axis + 1 :])), dtype))
        if j in subterms(x):
            raise call.refuse(messages.RUNNING_SUM_OF_DATA)
        return stored(simplify_index(apply("mul", x, index[axis] + const(1))), call.meta.dtype)

    return call.value(pull)


def _require_numbers(call: OperatorCall, x: Term) -> Term:
    """x, if it reads no tensor: otherwise positions before the first one would be read. Raises Refusal."""
    if any(t.op == "load" for t in subterms(x)):
        raise call.refuse(messages.RUNNING_SUM_OF_DATA)
    return x
