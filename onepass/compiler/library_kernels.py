"""Forms of terms for which torch has a kernel of its own, and the calls of those kernels.

Invariant: for finite inputs, the call means what the form means. So there is no form in which a row may keep no
element, as an arbitrary mask allows. Example: softmax(q kᵀ · c) v is `_scaled_dot_product_flash_attention`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch

from ..egraph.rewrite.pattern import either
from ..egraph.rewrite.pattern_matcher import matches
from ..egraph.terms.ops import cast, const, iota, le, mantissa, rescaled_sum, sum_over, var, where
from ..egraph.terms.sizes import resolve
from ..egraph.terms.term import AttributeVariable, Dim, Term
from ..errors import OnepassError
from ..lowering.plan.dtypes import HALVES

ALIGNED_BYTES = 16
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
class FormOperand:
    """A tensor by its name, and the index of each axis: a dim, a dim divided by a group size, or a constant."""

    name: str
    axes: tuple[tuple[Dim, int] | int, ...]


@dataclass(frozen=True)
class AttentionForm:
    """Σ_j over quotients of exponentials: rows of `query` against `key`, times `value`, over the `outer` dims.

    `row` and `column` are the result's inner dims, `order` the result's; lower: row i keeps the elements j <= i.
    """

    query: FormOperand
    key: FormOperand
    value: FormOperand
    factor: float
    lower: bool
    outer: tuple[Dim, ...]
    row: Dim
    length: Dim
    inner: Dim
    column: Dim
    order: tuple[Dim, ...]


def form_of(term: Term, order: tuple[Dim, ...]) -> AttentionForm | None:
    """The form that a result's term is, if it is one."""
    for lower, pattern in PATTERNS:
        for bound in matches(pattern, term):
            found = _form(bound, lower, term.dtype, order)
            if found is not None:
                return found
    return None


def _form(bound: dict, lower: bool, dtype: str, order: tuple[Dim, ...]) -> AttentionForm | None:
    """The form that a match of a pattern gives; None if a kernel cannot read the operands, or lacks one of the dims."""
    length, inner, factor = bound["dim j"], bound["dim d"], bound.get("c", const(1.0))
    query, key = sorted((bound["x"], bound["y"]), key=lambda term: length in term.dims)
    value = bound["w"]
    if factor.op != "const" or length in query.dims or length not in key.dims or inner in order:
        return None
    rows, columns = (_dims_of_one(order, one, others) for one, others in ((query, (key, value)), (value, (query, key))))
    row = bound.get("dim i", rows[-1] if rows else None)
    operands = [_operand(term, dtype) for term in (query, key, value)]
    if None in operands or row not in rows or len(columns) != 1:
        return None
    (column,) = columns
    outer = tuple(d for d in order if d not in (row, column))
    wanted = ((row, inner), (length, inner), (length, column))
    if not all(_covers(operand, outer, last) for operand, last in zip(operands, wanted, strict=True)):
        return None
    scale = float(factor.attrs[0])
    return AttentionForm(operands[0], operands[1], operands[2], scale, lower, outer, row, length, inner, column, order)


def _dims_of_one(order: tuple[Dim, ...], one: Term, others: tuple[Term, Term]) -> list[Dim]:
    """The result's dims that only one of the operands has."""
    return [d for d in order if d in one.dims and not any(d in other.dims for other in others)]


def _operand(t: Term, dtype: str) -> FormOperand | None:
    """The operand of a load of the result's dtype; None for other terms, and where an index has another form."""
    t = t.args[0] if t.op == "cast" else t
    if t.op != "load" or t.dtype != dtype:
        return None
    axes = tuple(map(_axis, t.args))
    return None if None in axes else FormOperand(t.attrs[0].name, axes)


def _axis(index: Term) -> tuple[Dim, int] | int | None:
    match index.op, index.args:
        case "iota", _:
            return index.attrs[0], 1
        case "const", _:
            return int(index.attrs[0])
        case "floordiv", (Term(op="iota") as over, Term(op="const") as by):
            return over.attrs[0], int(by.attrs[0])
    return None


def _covers(operand: FormOperand, outer: tuple[Dim, ...], last: tuple[Dim, Dim]) -> bool:
    dims = [axis[0] for axis in operand.axes if not isinstance(axis, int)]
    groups = [axis for axis in operand.axes if not isinstance(axis, int) and axis[1] != 1]
    whole = len(set(dims)) == len(dims) and set(last) <= set(dims) <= {*outer, *last}
    return whole and all(dim in outer for dim, _ in groups)


# Calls ----------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class LibraryKernel:
    """One of torch's kernels: where it runs, for which dtypes, and its call on [batch, heads, length, dim]."""

    name: str
    device: str
    dtypes: tuple[str, ...]
    call: Callable


_ATEN = torch.ops.aten
KERNELS = (
    LibraryKernel(
        "sdpa cudnn", "cuda", HALVES,
        lambda q, k, v, lower, c: _ATEN._scaled_dot_product_cudnn_attention.default(
            q, k, v, None, False, 0.0, lower, False, scale=c
        )[0],
    ),
    LibraryKernel(
        "sdpa flash", "cuda", HALVES,
        lambda q, k, v, lower, c: _ATEN._scaled_dot_product_flash_attention.default(
            q, k, v, 0.0, lower, False, scale=c
        )[0],
    ),
    LibraryKernel(
        "sdpa flash", "cpu", (*HALVES, "float32", "float64"),
        lambda q, k, v, lower, c: _ATEN._scaled_dot_product_flash_attention_for_cpu.default(
            q, k, v, 0.0, lower, attn_mask=None, scale=c
        )[0],
    ),
)  # fmt: skip


def kernels(form: AttentionForm, device: str, dtype: str) -> tuple[LibraryKernel, ...]:
    """The kernels for the form on a type of device ("cuda", "cpu") and a dtype."""
    return tuple(k for k in KERNELS if k.device == device and dtype in k.dtypes)


def prepare(
    form: AttentionForm,
    kernel: LibraryKernel,
    names: Sequence[str],
    sizes: dict[str, int],
    tensors: Sequence[torch.Tensor],
) -> Callable:
    """What runs the form by the kernel: tensors in the order of `names` to the result. Raises Unsuitable.

    tensors: like those that it will be given, in strides and in where their memory begins.
    """
    size = {d: resolve(d.size, sizes) for d in (*form.outer, form.row, form.length, form.inner, form.column)}
    if 0 in size.values() or size[form.inner] != size[form.column]:
        raise Unsuitable("a dim is empty, or the dims of keys and values differ")
    if form.lower and size[form.row] != size[form.length]:
        raise Unsuitable("as many rows as columns are needed under a triangle")
    lasts = ((form.row, form.inner), (form.length, form.inner), (form.length, form.column))
    operands = (form.query, form.key, form.value)
    views = [
        _as_it_is if o.axes == _whole(form.outer, last) else _view(o, form.outer, last, size)
        for o, last in zip(operands, lasts, strict=True)
    ]
    places = [names.index(o.name) for o in operands]
    for place, view in zip(places, views, strict=True):
        _require_aligned_rows(view(tensors[place]), 1 if kernel.device == "cpu" else ALIGNED_BYTES)
    back = tuple((*form.outer, form.row, form.column).index(d) for d in form.order)
    shape = [size[d] for d in (*form.outer, form.row, form.column)]

    (q, k, v), (of_q, of_k, of_v) = places, views
    turned = len(shape) != 4 or list(back) != [0, 1, 2, 3]

    def run(given: Sequence[torch.Tensor]) -> torch.Tensor:
        result = kernel.call(of_q(given[q]), of_k(given[k]), of_v(given[v]), form.lower, form.factor)
        return result.reshape(shape).permute(back) if turned else result

    return run


def _require_aligned_rows(x: torch.Tensor, multiple: int) -> None:
    """Raises Unsuitable for rows that are not contiguous, or that begin at no multiple of so many bytes.

    Torch does not check this when its kernels are called directly. A GPU's kernel then fails with "misaligned address",
    and the process cannot use the GPU any more; a CPU's kernel gives wrong numbers.
    """
    begins = (x.data_ptr(), *(step * x.element_size() for step, size in zip(x.stride(), x.shape[:-1]) if size > 1))
    if (x.stride(-1) != 1 and x.shape[-1] > 1) or any(begin % multiple for begin in begins):
        raise Unsuitable(f"the rows of an operand are not contiguous, or do not begin at multiples of {multiple} bytes")


def _as_it_is(x: torch.Tensor) -> torch.Tensor:
    """The view of a tensor that is [batch, heads, length, dim] already: on small tensors each view costs a call."""
    return x


def _whole(outer: tuple[Dim, ...], last: tuple[Dim, Dim]) -> tuple | None:
    """The axes of a tensor that needs no view; None where the kernel's four axes are not these dims."""
    return tuple((dim, 1) for dim in (*outer, *last)) if len(outer) == 2 else None


def _view(operand: FormOperand, outer: tuple[Dim, ...], last: tuple[Dim, Dim], size: dict[Dim, int]) -> Callable:
    """A function that gives a tensor as [batch, heads, length, dim]; dims that it lacks, and groups, are repeated."""
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
