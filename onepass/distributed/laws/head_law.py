"""Proves on terms that an axis of the result is computed element by element, such as heads: ranks may share them out.

What is proved: whatever depends on the axis are tensors' elements at the same place of an axis of theirs, or at that of
its group; and with fewer heads the function has the same terms. Invariant: what is not of this form raises Refusal.
Example: of softmax(q @ k.mT, -1) @ v axis 1 is shared out with axis 1 of q, k and v; a mean over heads is refused.
"""

from __future__ import annotations

from collections.abc import Container, Mapping
from dataclasses import dataclass
from math import prod

import torch

from ... import messages
from ...egraph.terms.index_simplify import simplify_index
from ...egraph.terms.ops import const, make
from ...egraph.terms.term import Dim, Tensor, Term
from ...egraph.terms.traversal import rebuild, subterms
from ...errors import Refusal
from ...translate.translate import Captured
from .merge_law import Along

NumberedAxes = Mapping[int, int]  # of tensors by number: an axis, from 0


@dataclass(frozen=True)
class Heads:
    """An axis of what an attention gives that is shared out, and the axis of each tensor, by number, cut with it.

    rows: the axis of the queries. form: what a part gives, as terms, with the lengths of the proof.
    """

    axis: int
    axes: NumberedAxes
    rows: int = -2
    form: Captured | None = None

    def cut(self, tensors: list[torch.Tensor], rank: int, ranks: int, kept: Container[int] = ()) -> list[torch.Tensor]:
        """The tensors with one rank's heads, those in `kept` excepted."""
        found = list(tensors)
        for number, axis in self.axes.items():
            if number not in kept:
                found[number] = tensors[number].chunk(ranks, axis)[rank]
        return found


def independent_heads(captured: Captured, queries: NumberedAxes, keys: NumberedAxes, parts: int) -> list[Heads]:
    """Axes of the first result, the one that cuts most first. Raises Refusal if none is computed element by element.

    queries, keys: the tensors that are shared out by the sequence, with its axis.
    """
    shared = {**keys, **queries}
    result, found, reasons = captured.results[0], list[Heads](), list[str]()
    for axis, dim in enumerate(result.order):
        axes = _axes_along(captured, dim)
        if queries.keys().isdisjoint(axes) or any(shared.get(k) == a for k, a in axes.items()):
            continue  # such as the columns of the values, and the sequence itself
        named = {captured.inputs[k].name: a for k, a in axes.items()}
        reason = Along(dim, named, groups=True).broken(result.term) or _undivided(captured, dim, axes, parts)
        if reason:
            reasons.append(f"of axis {axis} of the result, {reason}")
        else:
            found.append(Heads(axis, axes))
    if not found:
        reason = reasons[-1] if reasons else "no axis of the result but the sequence's is one of queries"
        raise Refusal(messages.RANKS_NO_HEADS, reason=reason)
    elements = lambda one: sum(prod(map(int, captured.inputs[k].shape)) for k in one.axes if k in shared)
    return sorted(found, key=elements, reverse=True)


def _axes_along(captured: Captured, dim: Dim) -> dict[int, int]:
    """The first axis of each tensor, by number, whose index depends on the dim."""
    numbers = {tensor.name: number for number, tensor in enumerate(captured.inputs)}
    axes: dict[int, int] = {}
    for node in subterms(captured.term):
        if node.op == "load":
            for axis, index in enumerate(node.args):
                if dim in index.dims:
                    axes.setdefault(numbers[node.attrs[0].name], axis)
    return axes


def _undivided(captured: Captured, dim: Dim, axes: NumberedAxes, parts: int) -> str:
    """Why they are not cut into equal parts; "" if they can be."""
    sizes = {captured.inputs[number].name: int(captured.inputs[number].shape[axis]) for number, axis in axes.items()}
    for name, size in {**sizes, "the result": int(dim.size)}.items():
        if size % parts:
            return f"{name} has {size}, which are not cut into {parts} equal parts"
    return ""


def same_at_other_sizes(one: Captured, other: Captured, sizes: Mapping[Dim, int]) -> bool:
    """Whether the second first result is the first one's term with these sizes of its dims, and the second's inputs."""
    tensors = {tensor.name: tensor for tensor in other.inputs}

    def resized(value: object) -> object:
        if isinstance(value, Tensor):
            return tensors[value.name]
        return Dim(value.name, sizes.get(value, value.size)) if isinstance(value, Dim) else value

    def change(node: Term, args: tuple[Term, ...]) -> Term:
        return _decided(make(node.op, args, tuple(map(resized, node.attrs))), args)

    return simplify_index(rebuild(one.term, change)) is simplify_index(rebuild(other.term, _decided))


def _decided(node: Term, args: tuple[Term, ...]) -> Term:
    """The node with these arguments; 0 for the place along a dim of one element, and what a known truth value chooses.

    Example: behind the keys' scores, what is joined to them is where(641 < 641, the score of key 640, 0), which is 0.
    """
    if node.op == "iota" and node.attrs[0].size == 1:
        return const(0)
    if node.op == "where" and args[0].op == "const":
        return args[1] if args[0].attrs[0] else args[2]
    return make(node.op, args, node.attrs)
