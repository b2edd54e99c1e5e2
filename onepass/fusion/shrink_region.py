"""A region again, without what cannot be translated in front of it: that is computed as written, and is an input.

Only where a region was refused for it, so it costs nothing elsewhere; what the region owns stays. No node changes.
"""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import fx

from ..errors import Refusal
from ..graph.nodes import value_of_node, where_of
from ..graph.op_kinds import name_of
from ..graph.survey import Survey, in_order
from ..regions.region import Region
from ..translate.translate import pulled


def bordered(region: Region, s: Survey, refusal: Refusal) -> tuple[Region, str] | None:
    """The region that reads the value of the copied nodes that were refused, and what is to be said of them."""
    copied = [n for n in region.nodes if n not in region.owned and n not in region.outputs]
    blamed = [n for n in copied if where_of(n) == refusal.where] if region.refusal is None else []
    reasons = {n: reason for n in blamed if (reason := _reason(n, region))}
    if not reasons:
        return None
    kept, waiting = set(region.owned), [i for n in region.owned for i in n.all_input_nodes]
    while waiting:
        node = waiting.pop()
        if node in copied and node not in kept and node not in reasons:
            kept.add(node)
            waiting.extend(node.all_input_nodes)
    nodes, inputs = in_order(kept, s)
    names = ", ".join(dict.fromkeys(map(name_of, reasons)))
    said = f"{names} in front ({refusal.where}): outside: {next(iter(reasons.values()))}"
    return replace(region, nodes=nodes, inputs=inputs), said


def _reason(node: fx.Node, region: Region) -> str:
    """Why the node by itself cannot be translated; nothing if it can, or if it cannot be said."""
    tensors = [n for n in region.inputs if isinstance(value_of_node(n), torch.Tensor)]  # what is made of none needs one
    inputs = tuple(dict.fromkeys((*node.all_input_nodes, *tensors[:1])))
    try:
        pulled(Region((node,), inputs, (node,), node, frozenset((node,))).program())
    except Refusal as refusal:
        return refusal.reason
    except Exception:  # of tracing a part of a graph: the region then stays refused
        return ""
    return ""
