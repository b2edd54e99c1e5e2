"""From a Program to a term for each result: values are computed at an index of the result, so views become indices.

Invariant: the term's value is the program's result, by the definitions of the operations. What has no terms raises
Refusal with the user's line. Example: q @ k.mT is Σ_d q[i, d] * k[j, d].
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from math import inf
from types import ModuleType

from .. import messages
from ..egraph.terms.index_conditional import simplify_under_conditions
from ..egraph.terms.index_simplify import simplify_index
from ..egraph.terms.ops import cast, const, iota, load
from ..egraph.terms.term import Dim, Tensor, Term
from ..egraph.terms.traversal import subterms
from ..errors import Refusal
from ..graph.program import Input, Program
from ..lowering.plan.records import Store
from . import concatenation, contractions, creation, losses, norms, pointwise, reductions, views
from .dim_names import named_alike
from .index_bounds import BoundsCondition
from .registry import (
    FLOATING,
    Handlers,
    OperatorCall,
    TensorValue,
    TooManyElements,
    at_most,
    convert,
    term_dtype,
)

MOST_SUBTERMS = 600  # of a result: those of models and tests have up to 450, and gradients of 800 take half a minute
MOST_ELEMENTS = 5_000  # that a result is made of, each at one place: of a model's region it is some 1,000
MODULES = (concatenation, contractions, creation, losses, norms, pointwise, reductions, views)


def _collect(modules: Iterable[ModuleType]) -> Handlers:
    found = Handlers()
    for module in modules:
        found.add_all(module.handles)
    return found


HANDLERS = _collect(MODULES)


@dataclass(frozen=True)
class Captured:
    """A region as algebra: each result's term over the dims of its axes; `inputs` as in the program.

    required: conditions on the sizes of a call; where one fails, eager raises.
    """

    results: tuple[Store, ...]
    inputs: tuple[Tensor, ...]
    required: tuple[BoundsCondition, ...] = ()

    @property
    def term(self) -> Term:
        """The first result's term."""
        return self.results[0].term

    @property
    def output(self) -> Tensor:
        """The first result's tensor."""
        return self.results[0].output

    @property
    def order(self) -> tuple[Dim, ...]:
        """The first result's dims, one for each axis."""
        return self.results[0].order


def translate(program: Program) -> Captured:
    """The region's mathematics. Raises Refusal for an operation or a shape that is not understood."""
    _refuse_mixed_devices(program)
    inputs = tuple(Tensor(i.name, i.meta.dtype, i.meta.shape) for i in program.inputs)
    required: list[BoundsCondition] = []
    values = _values(program, inputs, required)
    results = [_result(values[name], number, program) for number, name in enumerate(program.outputs)]
    return Captured(tuple(named_alike(results)), inputs, tuple(required))


def pulled(program: Program) -> list[Term]:
    """An element of each result, of any dtype, at symbolic coordinates. Raises Refusal as `translate` does."""
    inputs = tuple(Tensor(i.name, i.meta.dtype, i.meta.shape) for i in program.inputs)
    found = [_values(program, inputs, [])[name] for name in program.outputs]
    values = [value for one in found for value in (one if isinstance(one, list) else [one])]
    return [v.at(tuple(iota(Dim(f"{axis}", size)) for axis, size in enumerate(v.shape))) for v in values]


def _values(
    program: Program, inputs: tuple[Tensor, ...], required: list[BoundsCondition]
) -> dict[str, TensorValue | list[TensorValue]]:
    values: dict[str, TensorValue | list[TensorValue]] = {
        i.name: _loaded(i, t) for i, t in zip(program.inputs, inputs, strict=True)
    }
    for node in program.nodes:
        handler = HANDLERS.get(node.target)
        if handler is None:
            raise Refusal(messages.NO_TERMS, node.where, call=node.target)
        call = OperatorCall(node, values, handler.symbolic)
        values[node.name] = handler.function(call)
        required += call.required
    return values


def _result(value: TensorValue | list[TensorValue], number: int, program: Program) -> Store:
    if isinstance(value, list):
        raise Refusal(messages.NO_TENSOR_RESULT, _where(program))
    meta = value.meta
    if meta.dtype not in (*FLOATING, "int64"):
        raise Refusal(messages.NO_FLOATING_RESULT, _where(program), dtype=meta.dtype)
    name = _free(f"output{number or ''}", {i.name for i in program.inputs})
    order = tuple(Dim(f"{name}.{axis}", size) for axis, size in enumerate(meta.shape))
    try:
        with at_most(MOST_ELEMENTS):
            pulled = simplify_index(convert(value.at(tuple(iota(d) for d in order)), term_dtype(meta.dtype)))
    except TooManyElements as error:
        raise _too_large(program) from error
    if len({*subterms(pulled)}) > MOST_SUBTERMS:
        raise _too_large(program)
    pulled = concatenation.in_pieces(simplify_under_conditions(pulled))
    pulled = concatenation.cut_where_columns_end(concatenation.over_all_places(pulled))
    if meta.dtype == "int64" and not reductions.is_position(pulled):
        raise Refusal(messages.NO_FLOATING_RESULT, _where(program), dtype=meta.dtype)
    if any(map(_is_largest_of_none, subterms(pulled))):
        raise Refusal(messages.NO_SCORE_KEPT, _where(program))
    return Store(pulled, Tensor(name, meta.dtype, meta.shape), order)


def _too_large(program: Program) -> Refusal:
    return Refusal(messages.LARGE_FORM, _where(program), most=MOST_SUBTERMS)


def _is_largest_of_none(node: Term) -> bool:
    """Whether it is the largest of scores that are all hidden: what is divided by their sum is not a number."""
    return node.op == "reduce" and node.attrs[0] == "max" and _chosen(node.args[0]) is const(-inf)


def _chosen(node: Term) -> Term:
    """What a choice by a literal chooses."""
    while node.op == "where" and node.args[0].op == "const":
        node = node.args[1] if node.args[0].attrs[0] else node.args[2]
    return node


def _free(name: str, taken: set[str]) -> str:
    """The name, with underscores appended until no input has it."""
    return _free(f"{name}_", taken) if name in taken else name


def _where(program: Program) -> str:
    return program.nodes[-1].where if program.nodes else ""


def _loaded(entry: Input, tensor: Tensor) -> TensorValue:
    """An input. Integers are computed as int64, the dtype of coordinates, and wrap around where they are stored."""

    def pull(index):
        found = load(tensor, *index)
        return found if found.dtype == term_dtype(entry.meta.dtype) else cast(found, term_dtype(entry.meta.dtype))

    return TensorValue(entry.meta, pull)


def _refuse_mixed_devices(program: Program) -> None:
    devices = sorted({i.meta.device for i in program.inputs})
    if len(devices) > 1:
        raise Refusal(messages.DEVICES, _where(program), devices=", ".join(devices))
