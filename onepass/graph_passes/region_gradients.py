"""What becomes of a region whose derivatives are needed: a derived backward, or Inductor, or autograd on its own calls.

Invariant: where no backward is derived, the region is left to Inductor, which compiles forward and backward; unless
what it would keep for the backward takes a large part of the memory. Example: sigmoids that are divided by the largest
of their row are left, with the reason.
"""

from __future__ import annotations

import os
from collections.abc import Collection, Mapping
from dataclasses import replace

import torch
from torch import fx
from torch.utils._pytree import tree_leaves

from .. import messages
from ..compiler.compiled_region import Fused
from ..compiler.options import Options
from ..compiler.traffic import made_bytes
from ..egraph.terms.sizes import UnknownSize
from ..errors import Refusal
from ..graph.nodes import value_of_node, where_of
from ..graph.op_kinds import name_of
from ..regions.region import Region
from ..report.records import RECOMPUTES, RegionReport
from ..training.plans import Training, training
from ..training.report import backward_line, forward_mode_line, gradients_report, tangents_report
from ..training.step_estimates import may_beat_inductor, takes_far_longer
from ..training.tangent_plans import tangent_plan

SHARE_OF_MEMORY = 8  # one region's values, kept for the backward by the compiler around, may take 1/8 of the memory


def gradients_needed(region: Region, records: Mapping[fx.Node, bool]) -> list[bool]:
    """Whether autograd wants the gradient of each tensor that the region reads.

    records: whether gradients are recorded at each node.
    """
    results = (x for node in region.outputs if records[node] for x in tree_leaves(value_of_node(node)))
    wanted = any(isinstance(x, torch.Tensor) and x.is_floating_point() for x in results)
    return [wanted and value.requires_grad for value in _tensors(region)]


def is_derived(found: Fused, needed: list[bool]) -> bool:
    """Whether the backward of a region is derived for these gradients."""
    return not isinstance(training(found.text, needed), str)


def forward_plan(found: Fused, needed: list[bool]) -> Fused | None:
    """What runs the region's forward: with saved values, where gradients are needed; None where none are derived."""
    if not any(needed):
        return found
    made = training(found.text, needed)
    return None if isinstance(made, str) else made.forward


def in_training(region: Region, found: Fused, needed: list[bool], options: Options, hints: Mapping[str, int]) -> str:
    """What the report says of the backward of a region that gets one. Raises Refusal for one that Inductor compiles."""
    made = training(found.text, needed)
    if not isinstance(made, str):
        if region.one_product and options.inner == "inductor" and _leaves(found, made, hints):
            raise Refusal(messages.ONE_PRODUCT_IN_TRAINING, where_of(region.anchor))
        return backward_line(made)
    if options.inner == "inductor" and not _takes_much_memory(found, hints):
        raise Refusal(messages.NOT_DERIVED, where_of(region.anchor), reason=made)
    return RECOMPUTES + made


def _leaves(found: Fused, made: Training, hints: Mapping[str, int]) -> bool:
    """Whether Inductor's step is the better one: where memory counts, if the plans take several times as long."""
    if _takes_much_memory(found, hints):
        return takes_far_longer(made, hints)
    return not may_beat_inductor(made, hints)


def tangents_given(region: Region) -> list[bool]:
    """Whether each tensor that the region reads may have a tangent: the graph makes it of dual numbers."""
    tensors = [node for node in region.inputs if isinstance(value_of_node(node), torch.Tensor)]
    return [_is_made_of_duals(node) for node in tensors]


def _is_made_of_duals(node: fx.Node) -> bool:
    stack, seen = [node], {node}
    while stack:
        found = stack.pop()
        if name_of(found) == "_make_dual":
            return True
        fresh = seen.symmetric_difference(seen.union(found.all_input_nodes))
        seen |= fresh
        stack.extend(fresh)
    return False


def derivative_reports(
    region: Region, found: Fused, needed: list[bool], asked: Collection[str], hints: Mapping[str, int]
) -> RegionReport:
    """The region's report with its gradients and tangents in full, as they are asked for: by the names of fields.

    needed: the tensors whose gradients are wanted; of tangents, every floating tensor has one.
    """
    report = found.report
    if "gradients" in asked and any(needed):
        report = replace(report, gradients=gradients_report(training(found.text, needed), hints))
    given = [value.is_floating_point() for value in _tensors(region)]
    if "tangents" in asked and any(given):
        report = replace(report, tangents=tangents_report(found.text, tangent_plan(found.text, given)))
    return report


def _tensors(region: Region) -> list[torch.Tensor]:
    values = (value_of_node(node) for node in region.inputs)  # sizes among them
    return [value for value in values if isinstance(value, torch.Tensor)]


def in_forward_mode(region: Region, found: Fused) -> str:
    """What the report says of a region whose graph gives it tangents; empty if it gives none."""
    given = tangents_given(region)
    return forward_mode_line(tangent_plan(found.text, given)) if any(given) else ""


def _takes_much_memory(found: Fused, hints: Mapping[str, int]) -> bool:
    """Whether what the compiler around would keep takes too much memory; any is too much where that is preferred."""
    if found.options.prefer == "memory":
        return True
    try:
        kept = sum(made_bytes(found.program, hints))
    except UnknownSize:
        return False
    return kept * SHARE_OF_MEMORY > _memory(found.program.output_meta.device)


def _memory(device: str) -> int:
    """Bytes of the device's memory."""
    if device == "cuda":
        return torch.cuda.get_device_properties(torch.device(device)).total_memory
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
