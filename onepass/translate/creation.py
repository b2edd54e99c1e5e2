"""Tensors made of nothing but their shape and perhaps a seed, and triangles of a tensor.

Each is a function of the index. Example: tril keeps the element at (i, j) where j ≤ i + diagonal.
"""

from __future__ import annotations

from collections.abc import Sequence

from .. import messages
from ..egraph.terms.ops import cast, const, le, uniform
from ..egraph.terms.sizes import Size, term_of
from ..egraph.terms.term import Term
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
