"""Kernels that are products of two stored matrices and nothing else: torch's library runs them.

Invariant: what a library computes is what the kernel would, sums in float32 that are rounded once. Example: of the
gradients of a layer with its cross entropy, grad_w[d, c] = Σ_j g[j, d] · x[j, c] for a stored g.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import torch

from ...egraph.terms.ops import iota
from ...egraph.terms.term import Dim, Term
from ..analysis.dim_roles import is_long, sum_factors
from ..analysis.exact_products import native
from ..plan.records import Accumulator, Kernel, Loop, Range, Store
from ..plan.thresholds import MAX_RESIDENT_ELEMENTS

EVERY = (Range((), (), True),)


@dataclass(frozen=True)
class PlainProduct:
    """result[batch, rows, columns] = Σ_inner left[batch, rows, inner] · right[batch, columns, inner], in these axes.

    left, right: loads of halves of one type, by coordinates alone.
    """

    left: Term
    right: Term
    batch: tuple[Dim, ...]
    rows: Dim
    columns: Dim
    inner: Dim
    store: Store

    def run(self, values: Mapping[str, torch.Tensor], out: torch.Tensor, added: bool = False) -> None:
        """Writes the product, of these tensors by name, to a tensor; added: adds it to what is there, in float32."""
        one = _turned(values, self.left, (*self.batch, self.rows, self.inner))
        other = _turned(values, self.right, (*self.batch, self.inner, self.columns))
        order = (*self.batch, self.rows, self.columns)
        multiply(one, other, out.permute([self.store.order.index(d) for d in order]), added)


def plain_product(kernel: Kernel) -> PlainProduct | None:
    """The product that a kernel is; None for another kernel."""
    state, rows, columns = whole_sum(kernel), kernel.rows, columns_of_product(kernel)
    if state is None or rows is None or columns is None or not stores_only(kernel, state.reductions[0]):
        return None
    parts = [part for part in map(native, sum_factors(state.reductions[0])) if part is not None]
    if len(parts) != 2 or not all(map(_by_coordinates, parts)) or parts[0].dtype != parts[1].dtype:
        return None
    (store,), inner = kernel.stores, kernel.loops[0].dim
    one, other = parts if rows in parts[0].dims else parts[::-1]
    batch = tuple(d for d in store.order if d not in (rows, columns))
    if one.dims != {*batch, rows, inner} or other.dims != {*batch, columns, inner}:
        return None
    return PlainProduct(one, other, batch, rows, columns, inner, store)


def stores_only(kernel: Kernel, total: Term) -> bool:
    """Whether a kernel stores a sum of products, as it is or rounded to its factors' type, and nothing else."""
    (store, *others) = kernel.stores
    stored = store.term.args[0] if store.term.op == "cast" else store.term
    factors = sum_factors(total)
    plain = not others and not store.places and not store.adds and len(factors) == 2
    # torch multiplies into no other type on a GPU
    types = {"float32", *(half.dtype for half in map(native, factors) if half is not None)}
    return plain and stored is total and store.output.dtype in types


def sizes_are_numbers(kernels: Iterable[Kernel]) -> bool:
    """Whether no tensor of these kernels has a symbol for a size: stages are made for sizes that are known."""
    tensors = {t for k in kernels for t in (*k.inputs, *(s.output for s in k.stores))}
    return all(isinstance(size, int) for t in tensors for size in t.shape)


def whole_sum(kernel: Kernel) -> Accumulator | None:
    """The one state of a kernel whose only loop is one sum over all of a dim; None for another kernel."""
    if len(kernel.loops) != 1 or kernel.rows is None:
        return None
    (loop,) = kernel.loops
    if not is_whole(loop) or not loop.tile or len(loop.accumulators) != 1:
        return None
    (state,) = loop.accumulators
    return state if state.monoid == "sum" and len(state.values) == 1 and state.gauge is None else None


def columns_of_product(kernel: Kernel) -> Dim | None:
    """The dim of a large product's columns: one that tiles are taken of, or a long one that a tile holds."""
    long = [dim for dim in kernel.held if is_long(dim, MAX_RESIDENT_ELEMENTS)]
    found = [*kernel.columns, *long]
    return found[0] if len(found) == 1 and len(long) == len(kernel.held) else None


def is_whole(loop: Loop) -> bool:
    """Whether a loop goes through all of its dim, whatever the coordinates are."""
    return loop.guard is None and loop.map is None and loop.part is None and not loop.outer and loop.ranges == EVERY


def _by_coordinates(term: Term) -> bool:
    """Whether it is a load by coordinates, each of a dim of its own."""
    return term.op == "load" and len(term.dims) == len(term.args) and all(a is iota(d) for a, d in _axes(term))


def _axes(term: Term) -> list[tuple[Term, Dim]]:
    return [(a, next(iter(a.dims))) for a in term.args if len(a.dims) == 1]


def _turned(values: Mapping[str, torch.Tensor], read: Term, order: tuple[Dim, ...]) -> torch.Tensor:
    """The tensor of a load, with axes in this order."""
    axes = [dim for _, dim in _axes(read)]
    return values[read.attrs[0].name].permute([axes.index(dim) for dim in order])


def multiply(one: torch.Tensor, other: torch.Tensor, out: torch.Tensor, added: bool = False) -> None:
    """one @ other, summed in float32, into `out`; added: to what is there, which is float32 then."""
    if one.dim() > 3:
        for pair in zip(one, other, out, strict=True):
            multiply(*pair, added)
    elif one.device.type != "cuda":
        product = one.float() @ other.float()
        out.copy_(out + product if added else product)
    elif added:
        add = torch.addmm if one.dim() == 2 else torch.baddbmm
        add(out, one, other, out.dtype, out=out)
    else:
        product_of = torch.mm if one.dim() == 2 else torch.bmm
        product_of(one, other, **({} if out.dtype == one.dtype else {"out_dtype": out.dtype}), out=out)
