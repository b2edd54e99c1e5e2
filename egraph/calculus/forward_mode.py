"""Forward mode on terms: from the tangents of tensors to the tangents of results.

A node's tangent is the sum, over its operands, of the derivative by the operand times the operand's tangent. The
derivatives are the rows that reverse mode reads, too. What depends on no given tangent has none, so its terms are not
there, rather than multiplied by 0. Example: with the tangent q' of q, Σ_d q · k has the tangent Σ_d q' · k.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import reduce
from operator import add

from ..terms.ops import cast, load, sum_over
from ..terms.term import FLOATS, Tensor, Term
from ..terms.traversal import subterms
from .adjoint import no_sum
from .partials import ZERO, partials


def tangents_of(forms: Iterable[Term], given: Mapping[str, Tensor]) -> dict[Term, Term]:
    """The tangent of each form that has one. given: tensors of tangents, by the name of the tensor that each is of.

    Raises NotDifferentiable.
    """
    forms = list(dict.fromkeys(forms))
    nodes = dict.fromkeys(n for form in forms for n in subterms(form, lambda t: t.op == "load"))
    passed_on = _passed_on(nodes, given)
    reached = _reached([form for form in forms if form in passed_on], passed_on)
    tangents: dict[Term, Term] = {}
    for node in nodes:
        if node in reached:
            tangents[node] = _tangent(node, passed_on[node], tangents, given)
    return {form: tangents[form] for form in forms if form in tangents}


def _passed_on(nodes: Iterable[Term], given: Mapping[str, Tensor]) -> dict[Term, tuple[int, ...]]:
    """For each node that has a tangent: the numbers of the operands that give it one."""
    found: dict[Term, tuple[int, ...]] = {}
    for node in nodes:
        if node.op == "load" and node.attrs[0].name in given:
            found[node] = ()
        elif node.op != "load" and node.dtype in FLOATS:
            changes = [k for k, operand in enumerate(node.args) if operand in found]
            passes = _parts(node, [ZERO] * len(node.args)) if changes else ()
            numbers = tuple(k for k in changes if passes[k] is not None)
            if numbers:
                found[node] = numbers
    return found


def _reached(roots: list[Term], passed_on: Mapping[Term, tuple[int, ...]]) -> set[Term]:
    """The nodes whose tangents the roots' tangents are made of. Raises NotDifferentiable for a maximum among them."""
    found: set[Term] = set()
    while roots:
        node = roots.pop()
        if node not in found:
            found.add(node)
            _require_sum(node)
            roots.extend(node.args[k] for k in passed_on[node])
    return found


def _require_sum(node: Term) -> None:
    """A largest element has the tangent of the place where it is, which is not asked for."""
    if node.op == "reduce" and node.attrs[0] != "sum":
        raise no_sum(node)


def _tangent(node: Term, numbers: tuple[int, ...], tangents: Mapping[Term, Term], given: Mapping[str, Tensor]) -> Term:
    """The tangent of a node whose operands have theirs."""
    if node.op == "load":
        return load(given[node.attrs[0].name], *node.args)
    parts = _parts(node, [tangents.get(operand, ZERO) for operand in node.args])
    found = reduce(add, (part for k in numbers if (part := parts[k]) is not None))
    return found if found.dtype in (node.dtype, "float") else cast(found, node.dtype)


def _parts(node: Term, tangents: list[Term]) -> tuple[Term | None, ...]:
    """What each operand's tangent gives to the node's; None from an operand by which the node has no derivative."""
    if node.op == "reduce":
        return (sum_over(node.attrs[1], tangents[0]),)
    return tuple(partials(node, tangent)[k] for k, tangent in enumerate(tangents))
