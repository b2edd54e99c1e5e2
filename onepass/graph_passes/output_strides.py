"""The strides of a region's results: eager's, or those that a copy behind them would make.

Heads are moved beside their columns and then copied, in nearly every transformer. A kernel writes by any strides: what
it writes lies as the copy would, which has nothing to do then. Only where nothing else uses the result.
"""

from __future__ import annotations

import torch
from torch import fx

from ..graph.nodes import value_of_node
from ..graph.op_kinds import Trait, has_trait, is_aten

MOVES = Trait.PERMUTES | Trait.MOVES_AXES | Trait.SWAPS_AXES
PRIMES = (2, 3, 5, 7, 11, 13, 17, 19)  # lengths that tell axes apart


def laid_out(node: fx.Node) -> torch.Tensor:
    """The result's value with the strides that it is given."""
    value, last, places = value_of_node(node), node, None
    if value.dim() <= len(PRIMES) and not is_aten(node):
        places = torch.empty(PRIMES[: value.dim()], device="meta")
    while places is not None and (user := _only_user(last)) is not None and has_trait(user, MOVES):
        last, places = user, _moved(user, places)
    copy = _only_user(last)
    if places is None or last is node or copy is None or not has_trait(copy, Trait.MAKES_CONTIGUOUS):
        return value
    if not _is_copied(node, copy):
        return value
    order = [PRIMES.index(n) for n in places.shape]
    return value.permute(order).contiguous().permute([order.index(axis) for axis in range(len(order))])


def _only_user(node: fx.Node) -> fx.Node | None:
    (user,) = node.users if len(node.users) == 1 else (None,)
    return user if user is not None and user.op in ("call_function", "call_method") else None


def _moved(move: fx.Node, places: torch.Tensor) -> torch.Tensor | None:
    """What the call makes of a tensor whose lengths say which axis is which; None if its axes are no literals."""
    arguments = (move.args[1:], move.kwargs)
    if move.args[:1] != tuple(move.all_input_nodes):
        return None
    if move.op == "call_method":
        return getattr(places, move.target)(*arguments[0], **arguments[1])
    return move.target(places, *arguments[0], **arguments[1])


def _is_copied(node: fx.Node, copy: fx.Node) -> bool:
    """Eager copies here, to neighbours in memory; a reshape may also be a view, whose strides are seen."""
    one, other = (value_of_node(n) for n in (node, copy))
    if not isinstance(other, torch.Tensor) or copy.kwargs.get("memory_format") is not None:
        return False
    apart = one.untyped_storage()._cdata != other.untyped_storage()._cdata
    return apart and other.is_contiguous() and copy.args[:1] == (copy.all_input_nodes[0],)
