"""Forms of which torch has a kernel of its own, and that kernel's call: a table of terms and calls, nothing else.

A region whose derived term is such a form may be run by the call instead; onepass/runtime/runner.py decides by
measuring. Only forms that mean the same for finite inputs are here: none in which a row may keep no element, as an
arbitrary mask allows.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch

from ..egraph.rewrite.pattern import either
from ..egraph.rewrite.pattern_matcher import matches
from ..egraph.terms.ops import cast, const, iota, le, mantissa, rescaled_sum, sum_over, var, where
from ..egraph.terms.sizes import value_of
from ..egraph.terms.term import AttributeVariable, Dim, Term
from ..errors import OnepassError

ASSUMED = "no row has -∞ as its every score"  # eager gives NaN there, torch's kernels may give 0


class Unsuitable(OnepassError):
    """Tensors that the call does not take."""


def _quotient(score: Term, weight: Term) -> Term:
    total = mantissa(rescaled_sum("j", score, const(1.0)))
    found = mantissa(rescaled_sum("j", score, weight)) / total
    return either(found, cast(found, AttributeVariable("dtype")))


_PRODUCT = sum_over("d", var("x") * var("y"))
_SCORE = either(_PRODUCT, _PRODUCT * var("c"))
_LOWER = where(le(iota(Dim("j")), iota(Dim("i"))), _SCORE, const(-math.inf))
PATTERNS = ((False, _quotient(_SCORE, var("w"))), (True, _quotient(_LOWER, var("w"))))


@dataclass(frozen=True)
class Operand:
    """A tensor by its name, and what each of its axes runs over: a dim, a dim in groups of a number, or one place."""

    name: str
    axes: tuple[tuple[Dim, int] | int, ...]


@dataclass(frozen=True)
class Form:
    """Σ_j over quotients of exponentials: rows of `query` against `key`, times `value`, over the `outer` dims.

    `row` and `column` are the result's inner dims, `order` the result's; lower: row i keeps the elements j <= i.
    """

    query: Operand
    key: Operand
    value: Operand
    factor: float
    lower: bool
    outer: tuple[Dim, ...]
    row: Dim
    length: Dim
    inner: Dim
    column: Dim
    order: tuple[Dim, ...]


def form_of(term: Term, order: tuple[Dim, ...]) -> Form | None:
    """The form that a result's term is, if it is one."""
    for lower, pattern in PATTERNS:
        for bound in matches(pattern, term):
            found = _form(bound, lower, term.dtype, order)
            if found is not None:
                return found
    return None


def _form(bound: dict, lower: bool, dtype: str, order: tuple[Dim, ...]) -> Form | None:
    length, inner, factor = bound["dim j"], bound["dim d"], bound.get("c", const(1.0))
    pair = sorted((bound["x"], bound["y"]), key=lambda t: length in t.dims)
    operands = [_operand(t, dtype) for t in (*pair, bound["w"])]
    if None in operands or factor.op != "const" or length in pair[0].dims or length not in pair[1].dims:
        return None
    rows = [d for d in order if d in pair[0].dims and d not in pair[1].dims and d not in bound["w"].dims]
    columns = [d for d in order if d in bound["w"].dims and d not in pair[0].dims and d not in pair[1].dims]
    row = bound.get("dim i", rows[-1] if rows else None)
    if len(columns) != 1 or row not in rows or inner in order:
        return None
    outer = tuple(d for d in order if d not in (row, columns[0]))
    wanted = ((row, inner), (length, inner), (length, columns[0]))
    if not all(_covers(o, outer, last) for o, last in zip(operands, wanted, strict=True)):
        return None
    number = float(factor.attrs[0])
    return Form(*operands, number, lower, outer, row, length, inner, columns[0], order)


def _operand(t: Term, dtype: str) -> Operand | None:
    """A load of the result's dtype, each axis of which is a dim, a dim in groups, or one place."""
    t = t.args[0] if t.op == "cast" else t
    if t.op != "load" or t.dtype != dtype:
        return None
    axes = tuple(map(_axis, t.args))
    return None if None in axes else Operand(t.attrs[0].name, axes)


def _axis(index: Term) -> tuple[Dim, int] | int | None:
    match index.op, index.args:
        case "iota", _:
            return index.attrs[0], 1
        case "const", _:
            return int(index.attrs[0])
        case "floordiv", (Term(op="iota") as over, Term(op="const") as by):
            return over.attrs[0], int(by.attrs[0])
    return None


def _covers(operand: Operand, outer: tuple[Dim, ...], last: tuple[Dim, Dim]) -> bool:
    dims = [axis[0] for axis in operand.axes if not isinstance(axis, int)]
    groups = [axis for axis in operand.axes if not isinstance(axis, int) and axis[1] != 1]
    whole = len(set(dims)) == len(dims) and set(last) <= set(dims) <= {*outer, *last}
    return whole and all(dim in outer for dim, _ in groups)


# Calls ----------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Kernel:
    """One of torch's kernels: where it runs, for which dtypes, and its call on [batch, heads, length, dim]."""

    name: str
    device: str
    dtypes: tuple[str, ...]
    call: Callable


_ATEN = torch.ops.aten
HALVES = ("float16", "bfloat16")
KERNELS = (
    Kernel(
        "sdpa cudnn", "cuda", HALVES,
        lambda q, k, v, lower, c: _ATEN._scaled_dot_product_cudnn_attention.default(
            q, k, v, None, False, 0.0, lower, False, scale=c
        )[0],
    ),
    Kernel(
        "sdpa flash", "cuda", HALVES,
        lambda q, k, v, lower, c: _ATEN._scaled_dot_product_flash_attention.default(
            q, k, v, 0.0, lower, False, scale=c
        )[0],
    ),
    Kernel(
        "sdpa flash", "cpu", (*HALVES, "float32", "float64"),
        lambda q, k, v, lower, c: _ATEN._scaled_dot_product_flash_attention_for_cpu.default(
            q, k, v, 0.0, lower, attn_mask=None, scale=c
        )[0],
    ),
)  # fmt: skip


def kernels(form: Form, device: str, dtype: str) -> tuple[Kernel, ...]:
    return tuple(k for k in KERNELS if k.device == device and dtype in k.dtypes)


def prepare(form: Form, kernel: Kernel, names: Sequence[str], sizes: dict[str, int]) -> Callable:
    """What runs the form by the kernel: tensors in the order of `names` to the result. Raises Unsuitable."""
    size = {d: value_of(d.size, sizes) for d in (*form.outer, form.row, form.length, form.inner, form.column)}
    if 0 in size.values() or size[form.inner] != size[form.column]:
        raise Unsuitable("a dim is empty, or the dims of keys and values differ")
    if form.lower and size[form.row] != size[form.length]:
        raise Unsuitable("as many rows as columns are needed under a triangle")
    lasts = ((form.row, form.inner), (form.length, form.inner), (form.length, form.column))
    operands = (form.query, form.key, form.value)
    views = [_view(o, form.outer, last, size) for o, last in zip(operands, lasts, strict=True)]
    places = [names.index(o.name) for o in operands]
    back = tuple((*form.outer, form.row, form.column).index(d) for d in form.order)
    shape = [size[d] for d in (*form.outer, form.row, form.column)]

    def run(given: Sequence[torch.Tensor]) -> torch.Tensor:
        q, k, v = (view(given[place]) for view, place in zip(views, places))
        return kernel.call(q, k, v, form.lower, form.factor).reshape(shape).permute(back)

    return run


def _view(operand: Operand, outer: tuple[Dim, ...], last: tuple[Dim, Dim], size: dict[Dim, int]) -> Callable:
    """A tensor as [batch, heads, length, dim]: outer dims it does not have are repeated, groups as well."""
    places = [(n, axis) for n, axis in enumerate(operand.axes) if isinstance(axis, int)]
    kept = [axis for axis in operand.axes if not isinstance(axis, int)]
    have = {dim: n for n, (dim, _) in enumerate(kept)}
    order = [have[d] for d in (*outer, *last) if d in have]
    missing = [n for n, d in enumerate(outer) if d not in have]
    groups = [(outer.index(dim), by) for dim, by in kept if by != 1]
    shape = [size[d] for d in (*outer, *last)]

    def view(x: torch.Tensor) -> torch.Tensor:
        for n, place in reversed(places):
            x = x.select(n, place)
        x = x.permute(order)
        for n in missing:
            x = x.unsqueeze(n)
        for n, by in groups:
            x = x.repeat_interleave(by, n)
        x = x.expand(shape)
        return x.flatten(0, -4) if len(shape) > 4 else x[(None,) * (4 - len(shape))]

    return view
