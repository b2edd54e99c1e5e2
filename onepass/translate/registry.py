"""A captured tensor as a function from index terms to a Term, calls of operators, handlers, and arithmetic on terms.

A handler takes an OperatorCall and gives a TensorValue. Invariant: integers are computed as int64, halves as float32,
and both are stored as PyTorch stores them. Example: the element of x.T at (i, j) is that of x at (j, i).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from functools import reduce
from operator import add
from typing import Any, TypeVar

import numpy as np
import torch

from .. import messages
from ..egraph.terms.affine import affine, bounds
from ..egraph.terms.index_simplify import negate, simplify_node
from ..egraph.terms.ops import INTEGER_RANGES, OPS, cast, const, infinite_beyond, make
from ..egraph.terms.positions import at_position
from ..egraph.terms.sizes import Size, product, resolve
from ..egraph.terms.term import Dim, Term
from ..egraph.terms.traversal import all_dims, subterms
from ..errors import Refusal
from ..graph.program import GETITEM, Atom, Meta, ProgramNode, operation
from ..lowering.plan.dtypes import HALVES, is_integer
from ..messages import Message
from .index_bounds import BoundsCondition, out_of_bounds

Index = tuple[Term, ...]
Function = TypeVar("Function", bound=Callable)
Number = int | float | str  # a number as an argument; a symbolic one by its text
FLOATING = (*HALVES, "float32", "float64")
INTEGERS = (*INTEGER_RANGES, "int64")
MAX_SYMBOLIC_SIZE = 2**28  # bounds dims and sizes that are known by name only


class Symbolic(str):
    """An argument that is a number which only a call gives, as text."""


class TooManyElements(Exception):
    """A result is made of more elements, at different places, than are looked at."""


_LEFT: ContextVar[Iterator[int] | None] = ContextVar("_LEFT", default=None)  # one for each that may be looked at


@contextmanager
def at_most(elements: int) -> Iterator[None]:
    """Inside, TooManyElements is raised once more elements are looked at.

    Example: each step of a recurrence that is written row by row reads the one before it at several places, and so
    multiplies their number.
    """
    token = _LEFT.set(iter(range(elements)))
    try:
        yield
    finally:
        _LEFT.reset(token)


class TensorValue:
    """A tensor of the region. `at(index)` is its element, a Term of the dtype `kind`; an index has a term per axis."""

    def __init__(self, meta: Meta, pull: Callable[[Index], Term]):
        self.meta, self._pull = meta, pull
        self._memo: dict[Index, Term] = {}

    @property
    def shape(self) -> tuple[Size, ...]:
        return self.meta.shape

    @property
    def kind(self) -> str:
        return term_dtype(self.meta.dtype)

    def at(self, index: Sequence[Term]) -> Term:
        index = tuple(index)
        assert len(index) == len(self.shape), (index, self.shape)
        if index not in self._memo:
            if (left := _LEFT.get()) is not None and next(left, None) is None:
                raise TooManyElements
            self._memo[index] = self._pull(index)
        return self._memo[index]

    def axis(self, axis: int) -> int:
        """An axis counted from the front: 1 for -1 of a matrix."""
        return axis % max(len(self.shape), 1)


class OperatorCall:
    """One node with its arguments by name. `call["dim"]` is the argument or its default.

    Reading an argument that is Symbolic raises Refusal, unless the handler is registered with its name.
    """

    def __init__(
        self, node: ProgramNode, values: Mapping[str, TensorValue | list[TensorValue]], symbolic: Collection[str]
    ):
        self.node, self.meta, self.symbolic, self._binders = node, node.meta, symbolic, 0
        self.required: list[BoundsCondition] = []  # for sizes that are not known here
        self.arguments = _bind(node, values)

    def __getitem__(self, name: str) -> Any:
        return self._known(name, self.arguments[name])

    def get(self, name: str, default: object = None) -> Any:
        """The argument, or the default where the operation has none of this name."""
        return self._known(name, self.arguments.get(name, default))

    def _known(self, name: str, value):
        parts = value if isinstance(value, list) else [value]
        if any(isinstance(x, Symbolic) for x in parts) and name not in self.symbolic:
            raise self.refuse(messages.SYMBOLIC_ARGUMENT, name=name)
        return value

    def value(self, pull: Callable[[Index], Term], meta: Meta | None = None) -> TensorValue:
        return TensorValue(meta or self.meta, pull)

    def binder(self, size: Size) -> Dim:
        """A fresh dim to reduce over; dim_names.py gives it a short name later."""
        self._binders += 1
        return Dim(f"{self.node.name}.{self._binders}", size)

    def require_within(self, place: Term, size: Size, wraps: bool) -> None:
        """Raises Refusal for an index made of coordinates that is out of bounds: eager raises there.

        If this depends on sizes that only a call gives, the call has to satisfy a condition.
        """
        sizes = (size, *(dim.size for dim in all_dims(place)))
        if not all(isinstance(n, int) for n in sizes) or any(n.op == "size" for n in subterms(place)):
            self.required.append(BoundsCondition(place, size, wraps))
        elif ends := out_of_bounds(place, resolve(size, {}), wraps):
            raise self.refuse(messages.BEYOND_TABLE, first=ends[0], last=ends[1], size=size)

    def refuse(self, message: Message, **named: object) -> Refusal:
        return Refusal(message, self.node.where, call=self.node.target, **named)


@dataclass(frozen=True)
class Handler:
    """What an operation means: a function from its call to a value. symbolic: arguments that may be Symbolic."""

    function: Callable[[OperatorCall], TensorValue | list[TensorValue]]
    symbolic: frozenset[str]


class Handlers(dict[str, Handler]):
    """Handlers by target, such as "aten.softmax.int"; as a decorator, it adds the function under the targets.

    Every module of handlers has one of its own, `handles`. Example: `@handles("aten.pow.Scalar", symbolic="exponent")`.
    """

    def __call__(self, *targets: str, symbolic: str = "") -> Callable[[Function], Function]:
        def add(function: Function) -> Function:
            self.add_all({target: Handler(function, frozenset(symbolic.split())) for target in targets})
            return function

        return add

    def add_all(self, more: Mapping[str, Handler]) -> None:
        """Adds handlers of targets that have none yet: an operation has one meaning."""
        for target in more:
            assert target not in self, f"{target} is registered twice"
        self.update(more)


def _bind(node: ProgramNode, values) -> dict[str, object]:
    def plain(x):
        if isinstance(x, Atom):
            return values[x.text] if x.kind == "node" else Symbolic(x.text) if x.kind == "size" else x.text
        return [plain(v) for v in x] if isinstance(x, tuple) else x

    if node.target == GETITEM:
        return {"self": plain(node.args[0]), "position": node.args[1]}
    schema = operation(node.target)._schema.arguments
    bound = {a.name: a.default_value if a.has_default_value() else None for a in schema}
    bound |= {a.name: plain(x) for a, x in zip(schema, node.args, strict=False)}
    return bound | {k: plain(x) for k, x in node.kwargs}


def term_dtype(dtype: str) -> str:
    """The dtype of the terms of a tensor: integers are all computed as int64."""
    return "int64" if dtype in INTEGERS else dtype


def compute_dtype(dtype: str) -> str:
    """The dtype in which arithmetic on tensors of this dtype is done."""
    return "float32" if dtype in HALVES else term_dtype(dtype)


def operand_dtype(dtype: str) -> str:
    """The dtype that operands take: a number that meets a tensor of uint8 wraps around as that tensor's elements do."""
    return "float32" if dtype in HALVES else dtype


def same_size(a: Size, b: Size) -> bool:
    """Whether two sizes are known to be equal."""
    return a == b or product((a,)) == product((b,))


def spread(value: TensorValue, index: Index, shape: Sequence[Size]) -> Index:
    """The index into a value that is broadcast to a shape; `index` is one of that shape."""
    kept = index[len(index) - len(value.shape) :]
    sizes = tuple(shape)[len(index) - len(value.shape) :]
    return tuple(const(0) if own == 1 != size else i for own, size, i in zip(value.shape, sizes, kept, strict=True))


def literal(x: float, dtype: str) -> Term:
    """A Python scalar in arithmetic of the dtype, infinite if it is out of range."""
    if dtype == "bool":
        return const(bool(x))
    if dtype == "int64":
        return const(int(max(x, -(2.0**63))))  # devices agree on this, not on NaN and numbers above int64
    return const(infinite_beyond(x, dtype).item())


def stored_literal(x: float, dtype: str) -> Term:
    """A Python scalar as an element of a tensor of the dtype, rounded as storing it rounds."""
    return literal(torch.tensor(x, dtype=getattr(torch, dtype)).item() if dtype in HALVES else x, term_dtype(dtype))


def require_fit(call: OperatorCall, *numbers: object) -> None:
    """Raises Refusal if a finite number is out of range of the result's dtype, as eager raises."""
    dtype = getattr(torch, call.meta.dtype)
    known = [n for n in numbers if isinstance(n, int | float) and dtype.is_floating_point and math.isfinite(n)]
    if any(abs(n) > torch.finfo(dtype).max for n in known):
        raise call.refuse(messages.BEYOND_DTYPE, dtype=call.meta.dtype)


def is_literal(x: Term) -> bool:
    return x.op == "const"


def _is_choice(x: Term) -> bool:
    return x.op == "where" and is_literal(x.args[1]) and is_literal(x.args[2])


def distribute(function: Callable[..., Term], *args: Term) -> Term | None:
    """f(where(p, a, b), c) = where(p, f(a, c), f(b, c)) for literals a, b, c; None for other arguments."""
    choices = [k for k, a in enumerate(args) if _is_choice(a)]
    if len(choices) != 1 or not all(is_literal(a) for k, a in enumerate(args) if k not in choices):
        return None
    (k,) = choices
    branches = [function(*args[:k], branch, *args[k + 1 :]) for branch in args[k].args[1:]]
    return choose(args[k].args[0], *branches)


def apply(op: str, *args: Term) -> Term:
    """An operation on terms of one dtype, computed if the operands are literals or choices between literals."""
    if args and all(map(is_literal, args)) and (found := _fold(op, args)) is not None:
        return found
    chosen = tuple(map(_as_choice, args)) if op in ("add", "sub", "mul") and any(map(is_literal, args)) else args
    found = distribute(lambda *branch: apply(op, *branch), *chosen)
    return simplify_node(make(op, args), args) if found is None else found


def _as_choice(x: Term) -> Term:
    """A truth value cast to a number as a choice of 1 and 0: a mask (1 - kept) · x becomes a choice of x and 0."""
    counts = x.op == "cast" and x.args[0].dtype == "bool" and x.dtype in FLOATING
    return make("where", (x.args[0], literal(1, x.dtype), literal(0, x.dtype))) if counts else x


def _fold(op: str, args: tuple[Term, ...]) -> Term | None:
    with np.errstate(all="ignore"):
        try:
            value = np.asarray(OPS[op].meaning(*(a.attrs[0] for a in args))).item()
        except (ValueError, TypeError, ZeroDivisionError, OverflowError):
            return None
    return None if isinstance(value, float) and math.isnan(value) else const(value)


def choose(condition: Term, yes: Term, no: Term) -> Term:
    """where(condition, yes, no), simplified; a literal branch comes last, of two literals the smaller one."""
    if is_literal(condition):
        chosen = yes if condition.attrs[0] else no
        return chosen if yes.dtype == no.dtype or not is_literal(chosen) else make("where", (condition, yes, no))
    if yes is no:
        return yes
    if yes.dtype == no.dtype == "bool" and is_literal(no):
        return _choose_truth(condition, yes, no)
    if yes.op == "where" and is_literal(no) and yes.args[2] is no:
        return choose(apply("and", condition, yes.args[0]), yes.args[1], no)
    exchange = is_literal(yes) and (not is_literal(no) or yes.attrs[0] < no.attrs[0])
    return make("where", (negate(condition), no, yes)) if exchange else make("where", (condition, yes, no))


def _choose_truth(condition: Term, yes: Term, no: Term) -> Term:
    """The choice between a truth value and a literal one, by `and`, `or` and `not`."""
    if is_literal(yes):
        return condition if yes.attrs[0] else negate(condition)
    return apply("or", negate(condition), yes) if no.attrs[0] else apply("and", condition, yes)


def wrapped(x: Term, dtype: str) -> Term:
    """An integer as an element of a tensor of the dtype: one that does not fit, or may not, wraps around."""
    if dtype not in INTEGER_RANGES:
        return x
    least, largest = INTEGER_RANGES[dtype]
    if is_literal(x):
        return const((x.attrs[0] - least) % (largest - least + 1) + least)
    if (found := distribute(lambda branch: wrapped(branch, dtype), x)) is not None:
        return found
    low, high = bounds(x, {n: (0, MAX_SYMBOLIC_SIZE) for n in subterms(x) if _is_named(n)})
    fits = low is not None and high is not None and least <= low and high <= largest
    return x if fits else cast(cast(x, dtype), "int64")


def _is_named(x: Term) -> bool:
    """A symbolic size, or a coordinate of a dim with one."""
    return x.op == "size" or (x.op == "iota" and not isinstance(x.attrs[0].size, int))


def stored(x: Term, dtype: str) -> Term:
    """A result of arithmetic as an element of the dtype.

    Sums of int32 without known bounds are assumed to fit: they are positions, and bounds of loops are found in plain
    sums only.
    """
    x = convert(x, term_dtype(dtype))
    return x if dtype == "int32" and None in bounds(x) and _is_sum(x) else wrapped(x, dtype)


def _is_sum(x: Term) -> bool:
    return all(abs(c) == 1 and atom.op not in ("mul", "pow") for atom, c in affine(x)[0].items())


def convert(x: Term, dtype: str) -> Term:
    """x as a term of the dtype; narrow integers wrap around, literals and weak terms change without a cast."""
    if dtype in INTEGER_RANGES:
        whole = convert(x, "int64")
        return whole if dtype == "int32" and x.dtype != "int64" else wrapped(whole, dtype)
    if x.dtype == dtype:
        return x
    if is_literal(x):
        value = x.attrs[0]
        return const(value != 0) if dtype == "bool" else literal(value, dtype)
    if x.op == "cast" and is_integer(x.dtype) and x.args[0].dtype == dtype and is_whole(x.args[0]):
        return x.args[0]
    found = distribute(lambda branch: convert(branch, dtype), x)
    weak = x.dtype == "float" and dtype in FLOATING
    return found or (x if weak else cast(x, dtype))


def is_whole(x: Term) -> bool:
    """Whether a number is whole: an integer as a float, or a sum of products of such, however it is rounded."""
    if x.op == "cast":
        return is_integer(x.args[0].dtype) and x.dtype in ("float32", "float64")
    summed = x.op in ("mul", "add", "sub") or (x.op == "reduce" and x.attrs[0] == "sum")
    return summed and all(map(is_whole, x.args))


def picked(values: Term, dim: Dim, position: Term) -> Term:
    """The element at a position of what has the dim.

    What is the same for all of the dim is subtracted behind, together: a row's largest score and the logarithm beside
    it are a logarithm of a sum, whose gradient asks for no largest score. That holds for positions within the dim.
    """
    if values.op == "cast" and dim in values.dims:
        return make("cast", (picked(values.args[0], dim, position),), values.attrs)
    same: list[Term] = []
    while values.op == "sub" and dim not in values.args[1].dims:
        values, subtracted = values.args
        same.insert(0, subtracted)
    found = at_position(values, dim, position)
    return found - reduce(add, same) if same else found


def element(value: TensorValue, index: Index, dtype: str | None = None) -> Term:
    """An element, converted to the dtype (default: the one in which its own dtype computes)."""
    return convert(value.at(index), dtype or compute_dtype(value.meta.dtype))
