"""Reverse mode from forms to gradients: cotangents of loads, transposed, and added up for each tensor.

How a cotangent is simplified is the caller's to say: laws do it where gradients are derived, recorded derivations where
a certificate is checked. Example: `differentiated(forms, ["q"], normaliser.normal)` is the gradient of q.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from itertools import count

from ..terms.ops import cast, iota, make
from ..terms.term import Dim, Tensor, Term
from ..terms.traversal import rebuild, reduces, rename_dims
from .adjoint import cotangents_of_loads
from .saved import read
from .transpose import at_place, transposed


@dataclass(frozen=True)
class Result:
    """A result of the forward: its normal term, its tensor, the dims of its axes; no cotangent: nobody asks for one."""

    term: Term
    tensor: Tensor
    order: tuple[Dim, ...]
    cotangent: Tensor | None


@dataclass(frozen=True)
class Derivative:
    """The gradient of an input, or the tangent of a result, as a term over the dims of the tensor's axes."""

    tensor: Tensor
    term: Term
    axes: tuple[Dim, ...]


def differentiated(
    forms: Mapping[Result, Term], wanted: Sequence[str], simplified: Callable[[Term], Term]
) -> tuple[list[Derivative], list[Term]]:
    """The gradients of the wanted tensors, in their order, and the cotangents of all loads.

    forms: what each result is. simplified: is asked at every joint and for every gradient. Raises NotDifferentiable.
    """
    cotangents: dict[Term, Term] = {}
    for result, form in forms.items():
        if result.cotangent is not None:  # equal results have one form, whose cotangent is the sum of theirs
            given = read(result.cotangent, result.order)
            cotangents[form] = cotangents[form] + given if form in cotangents else given
    sums: dict[Tensor, tuple[Term, tuple[Dim, ...]]] = {}
    joints: list[Term] = []
    for node, g in cotangents_of_loads(cotangents, wanted, lambda _, g: simplified(g)):
        joints.append(g)
        tensor = node.attrs[0]
        term, axes = transposed(node, g)
        if tensor in sums:
            before, own = sums[tensor]
            term, axes = _rounded_once(before, _over(own, term, axes)), own
        sums[tensor] = term, axes
    order = list(wanted)
    found = [Derivative(tensor, simplified(term), axes) for tensor, (term, axes) in sums.items()]
    return sorted(found, key=lambda gradient: order.index(gradient.tensor.name)), joints


def _rounded_once(one: Term, other: Term) -> Term:
    """The sum of two parts of a gradient: it is rounded to the tensor's dtype once, not its addends."""
    if one.op == other.op == "cast" and one.attrs == other.attrs and one.args[0].dtype == other.args[0].dtype:
        return cast(one.args[0] + other.args[0], one.attrs[0])
    return one + other


def _over(own: tuple[Dim, ...], term: Term, axes: tuple[Dim, ...]) -> Term:
    """The same gradient with other dims for its axes; dims that are bound inside make way."""
    taken = {*own, *axes}
    names = {r.attrs[1]: _fresh(r.attrs[1], taken) for r in reduces(term) if r.attrs[1] in taken}
    return rename_dims(_rename_bound(term, names), dict(zip(axes, own, strict=True)))


def _fresh(dim: Dim, taken: Collection[Dim]) -> Dim:
    names = {d.name for d in taken}
    return next(Dim(name, dim.size) for k in count(1) if (name := f"{dim.name}.{k}") not in names)


def _rename_bound(term: Term, names: Mapping[Dim, Dim]) -> Term:
    """Other names for dims that reductions bind; free dims keep theirs."""

    def change(node: Term, args: tuple[Term, ...]) -> Term:
        if node.op == "reduce" and node.attrs[1] in names:
            monoid, dim = node.attrs
            return make("reduce", (at_place(args[0], dim, iota(names[dim])),), (monoid, names[dim]))
        return make(node.op, args, node.attrs)

    return rebuild(term, change)
