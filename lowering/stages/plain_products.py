"""Kernels that are products of two stored matrices and nothing else: torch's library runs them.

Invariant: what a library computes is what the kernel would, sums in float32 that are rounded once. Example: of the
gradients of a layer with its cross entropy, grad_w[d, c] = Σ_j g[j, d] · x[j, c] for a stored g.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch

from ...egraph.terms.ops import iota
from ...egraph.terms.term import Dim, Term
from ..analysis.dim_roles import sum_factors
from ..analysis.exact_products import native
from ..plan.dtypes import HALVES
from ..plan.records import Accumulator, Kernel, Range, Store

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
    state, store = whole_sum(kernel), kernel.stores[0]
    if state is None or len(kernel.stores) != 1 or store.places or store.adds or not kernel.columns:
        return None
    total = store.term.args[0] if store.term.op == "cast" else store.term
    parts = [native(part) for part in sum_factors(state.reductions[0])]
    if total is not state.reductions[0] or len(parts) != 2 or store.output.dtype not in (*HALVES, "float32"):
        return None
    one, other = parts
    if one is None or other is None or not _by_coordinates(one) or not _by_coordinates(other):
        return None
    inner, (rows, columns) = kernel.loops[0].dim, (kernel.rows, kernel.columns[0])
    one, other = (one, other) if rows in one.dims else (other, one)
    batch = tuple(d for d in store.order if d not in (rows, columns))
    if one.dims != {*batch, rows, inner} or other.dims != {*batch, columns, inner} or one.dtype != other.dtype:
        return None
    return PlainProduct(one, other, batch, rows, columns, inner, store)


def whole_sum(kernel: Kernel) -> Accumulator | None:
    """The one state of a kernel whose only loop is one sum over all of a dim; None for another kernel."""
    if len(kernel.loops) != 1 or kernel.rows is None:
        return None
    (loop,) = kernel.loops
    plain = loop.guard is None and loop.map is None and loop.part is None and not loop.outer and loop.ranges == EVERY
    if not plain or not loop.tile or len(loop.accumulators) != 1:
        return None
    (state,) = loop.accumulators
    return state if state.monoid == "sum" and len(state.values) == 1 and state.gauge is None else None


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
    """one @ other, summed in float32, into `out`; added: to what is there."""
    if one.device.type != "cuda":
        product = one.float() @ other.float()
        out.copy_(out + product if added else product)
    elif one.dim() > 2:
        result = torch.matmul(one, other) if out.dtype == one.dtype else torch.matmul(one.float(), other.float())
        out.copy_(out + result if added else result)
    elif out.dtype == one.dtype:
        torch.mm(one, other, out=out)
    elif added:
        torch.addmm(out, one, other, out.dtype, out=out)
    else:
        torch.mm(one, other, out.dtype, out=out)
