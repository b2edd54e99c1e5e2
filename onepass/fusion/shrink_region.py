"""Shrinks a region: what its kernel cannot or should not compute is computed by torch, and becomes an input.

What the region owns stays inside; only copies of nodes in front of it leave. Example: a mask made by an operation
without terms is read as a tensor. No node changes.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import replace

import torch
from torch import fx

from ..errors import Refusal
from ..graph.nodes import value_of_node, where_of
from ..graph.op_kinds import name_of
from ..graph.survey import Survey, in_order, reduced
from ..lowering.executors import has_hopper_form
from ..regions.copies import with_cheap_inputs, without_joins
from ..regions.refusals import refusal_to_move
from ..regions.region import Region
from ..translate.translate import pulled
from .compare_plans import LOSES_THE_HOPPER_FORM, FusionContext
from .estimates import device_of, hopper_form_seconds, on_hopper, write_and_read_seconds


def without_refused_nodes(region: Region, s: Survey, refusal: Refusal) -> tuple[Region, str] | None:
    """The region without the copied nodes that caused the refusal, and a note; None if no copy caused it."""
    copied = [n for n in region.nodes if n not in region.owned and n not in region.outputs]
    reasons = _untranslatable(copied, region, refusal)
    if not reasons:
        return None
    kept = _needed(region.owned, set(copied) - reasons.keys())
    nodes, inputs = in_order(kept, s)
    names = ", ".join(dict.fromkeys(map(name_of, reasons)))
    note = f"{names} in front ({refusal.where}): outside: {next(iter(reasons.values()))}"
    return replace(region, nodes=nodes, inputs=inputs), note


def _untranslatable(copied: Iterable[fx.Node], region: Region, refusal: Refusal) -> dict[fx.Node, str]:
    """Copied nodes of the line that the refusal names, each with the reason why it cannot be translated."""
    if region.refusal is not None:
        return {}
    reasons = {n: _reason(n, region) for n in copied if where_of(n) == refusal.where}
    return {n: reason for n, reason in reasons.items() if reason}


def _needed(owned: Iterable[fx.Node], allowed: Collection[fx.Node]) -> set[fx.Node]:
    """The owned nodes, and the allowed ones that they are computed from by a path of allowed nodes."""
    found, waiting = set(owned), [i for n in owned for i in n.all_input_nodes]
    while waiting:
        node = waiting.pop()
        if node in allowed and node not in found:
            found.add(node)
            waiting.extend(node.all_input_nodes)
    return found


def _reason(node: fx.Node, region: Region) -> str:
    """Why the node alone cannot be translated; empty if it can, or if the reason is unknown."""
    # A node that reads no tensor, as arange, still needs one: it says which device the region is on.
    tensors = [n for n in region.inputs if isinstance(value_of_node(n), torch.Tensor)]
    inputs = tuple(dict.fromkeys((*node.all_input_nodes, *tensors[:1])))
    try:
        pulled(Region((node,), inputs, (node,), node, frozenset((node,))).program())
    except Refusal as refusal:
        return refusal.reason
    except Exception:  # Tracing a part of a graph may raise anything. The region then stays refused.
        return ""
    return ""


def to_reductions(region: Region, s: Survey) -> Region | None:
    """A region of one product without what reads the product's reductions; None where there is nothing behind them."""
    found = reduced(region.anchor, s) if region.one_product else None
    if found is None or found.nodes >= region.owned:
        return None
    if any(s.kind[n] in ("contraction", "layer") for n in region.owned - found.nodes):
        return None
    outputs = tuple(n for n in in_order(found.nodes, s)[0] if not found.nodes.issuperset(n.users))
    narrow = replace(with_cheap_inputs(found.nodes, outputs, region.anchor, s), one_product=True)
    return narrow if refusal_to_move(narrow, s) is None else None


def leave_joins_outside(region: Region, context: FusionContext) -> tuple[Region, list[str]]:
    """The region without concatenations in front of it, where they cost more than reading what they make.

    They cost the kernel its Hopper form, because that reads operands of products as they are stored.
    """
    if context.mode != "auto" or not on_hopper(region):
        return region, []
    narrow, joins = without_joins(region, context.survey)
    if not joins or has_hopper_form(context.make(region).plan) or refusal_to_move(narrow, context.survey) is not None:
        return region, []
    plan, device = context.make(narrow).plan, device_of(region)
    saved = sum(write_and_read_seconds(n, device) for n in joins)
    if not has_hopper_form(plan) or hopper_form_seconds(narrow, plan) <= saved:
        return region, []
    return narrow, [f"{name_of(n)} ({where_of(n)}): outside: {LOSES_THE_HOPPER_FORM}" for n in joins]
