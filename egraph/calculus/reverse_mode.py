"""Reverse mode from forms to gradients: cotangents of loads, transposed, and added up for each tensor.

How a cotangent is simplified is the caller's to say: laws do it where gradients are derived, recorded derivations where
a certificate is checked. Example: `differentiated(forms, ["q"], normaliser.normal)` is the gradient of q.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from ..terms.ops import cast
from ..terms.term import Dim, Tensor, Term
from .adjoint import cotangents_of_loads
from .saved import read
from .transpose import transposed, with_axes


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
            term, axes = _rounded_once(before, with_axes(own, term, axes)), own
        sums[tensor] = term, axes
    order = list(wanted)
    found = [Derivative(tensor, simplified(term), axes) for tensor, (term, axes) in sums.items()]
    return sorted(found, key=lambda gradient: order.index(gradient.tensor.name)), joints


def _rounded_once(one: Term, other: Term) -> Term:
    """The sum of two parts of a gradient: it is rounded to the tensor's dtype once, not its addends."""
    if one.op == other.op == "cast" and one.attrs == other.attrs and one.args[0].dtype == other.args[0].dtype:
        return cast(one.args[0] + other.args[0], one.attrs[0])
    return one + other
