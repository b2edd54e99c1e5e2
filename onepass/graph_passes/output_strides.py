"""The strides of a region's results: eager's, or those that a copy behind them would make.

A kernel can write any strides. If the only user moves axes and then copies, as transformers do to put heads beside
their columns, the kernel writes what the copy would write, and the copy has nothing to do. Example: the result of
`(p @ v).transpose(1, 2).contiguous()` gets the strides of its contiguous transpose. Invariant: each element has a place
of its own; an expanded result of eager has not.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import fx

from ..egraph.terms.sizes import Size
from ..graph.nodes import size_of, value_of_node
from ..graph.op_kinds import Trait, has_trait, is_aten

MOVES = Trait.PERMUTES | Trait.MOVES_AXES | Trait.SWAPS_AXES
AXIS_LABELS = (2, 3, 5, 7, 11, 13, 17, 19)  # Different lengths for a tensor's axes, to follow them through moves.
# Strides by the sizes and strides of a result, and the order of axes in which it is copied.
KnownCopies = dict[tuple[tuple[Size, ...], tuple[Size, ...], tuple[int, ...]], tuple[Size, ...]]


def output_strides(node: fx.Node, copies: KnownCopies) -> tuple[Size, ...]:
    """The strides of a result, in elements; symbolic ones as text. Empty for what is no strided tensor.

    copies: what was found with the same guards; results of equal layers are copied alike.
    """
    value = value_of_node(node)
    if not isinstance(value, torch.Tensor) or value.layout != torch.strided:
        return ()
    order = _order_of_copy(node, value)
    own = tuple(map(size_of, value.stride()))
    if order is None:
        return tuple(map(size_of, _with_places(value).stride()))
    copied = (tuple(map(size_of, value.shape)), own, order)
    if copied not in copies:
        copies[copied] = tuple(map(size_of, _as_copied(value, order).stride()))
    return copies[copied]


def strided_value(node: fx.Node) -> torch.Tensor:
    """The fake value of a result, with the strides that the kernel writes."""
    value = value_of_node(node)
    order = _order_of_copy(node, value)
    return _with_places(value) if order is None else _as_copied(value, order)


def _with_places(value: torch.Tensor) -> torch.Tensor:
    """The value; contiguous if it is expanded: a kernel, and the backward a cotangent, store every element."""
    is_expanded = any(size_of(step) == 0 and size_of(n) != 1 for step, n in zip(value.stride(), value.shape))
    return value.contiguous() if is_expanded else value


def _as_copied(value: torch.Tensor, order: Sequence[int]) -> torch.Tensor:
    return value.permute(order).contiguous().permute([order.index(axis) for axis in range(len(order))])


def _order_of_copy(node: fx.Node, value: torch.Tensor) -> tuple[int, ...] | None:
    """The order of a result's axes in which a copy behind it lies in memory; None if there is no such copy."""
    last = node
    if value.dim() > len(AXIS_LABELS) or is_aten(node):
        return None
    labelled = torch.empty(AXIS_LABELS[: value.dim()], device="meta")
    while (user := _only_user(last)) is not None and has_trait(user, MOVES):
        last, labelled = user, _moved(user, labelled)
        if labelled is None:
            return None
    copy = _only_user(last)
    if last is node or copy is None or not has_trait(copy, Trait.MAKES_CONTIGUOUS) or not _is_copied(node, copy):
        return None
    return tuple(AXIS_LABELS.index(n) for n in labelled.shape)


def _only_user(node: fx.Node) -> fx.Node | None:
    (user,) = node.users if len(node.users) == 1 else (None,)
    return user if user is not None and user.op in ("call_function", "call_method") else None


def _moved(move: fx.Node, labelled: torch.Tensor) -> torch.Tensor | None:
    """What the call makes of the labelled tensor; None if the axes that it names are no literals."""
    arguments = (move.args[1:], move.kwargs)
    if move.args[:1] != tuple(move.all_input_nodes):
        return None
    if move.op == "call_method":
        return getattr(labelled, move.target)(*arguments[0], **arguments[1])
    return move.target(labelled, *arguments[0], **arguments[1])


def _is_copied(node: fx.Node, copy: fx.Node) -> bool:
    """Whether eager copies here into contiguous memory. A reshape may also be a view, whose strides users can see."""
    value, result = value_of_node(node), value_of_node(copy)
    if not isinstance(result, torch.Tensor) or copy.kwargs.get("memory_format") is not None:
        return False
    is_new = value.untyped_storage()._cdata != result.untyped_storage()._cdata
    return is_new and result.is_contiguous() and copy.args[:1] == (copy.all_input_nodes[0],)
