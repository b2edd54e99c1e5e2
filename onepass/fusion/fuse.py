"""Fuses what pays around a region: its epilogue, products that can wait, and the producers of its inputs.

Each step takes a region and gives a region with notes for the report. Example: attention whose keys are rotated first
becomes one region with the rotation inside. No node changes.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from ..compiler.compiled_region import Fused
from ..regions.region import Region
from .compare_plans import FusionContext
from .deferred_products import defer_products
from .epilogues import fuse_epilogue
from .producers import fuse_producers
from .shrink_region import leave_joins_outside

FusionStep = Callable[[Region, FusionContext], tuple[Region, list[str]]]
STEPS: tuple[FusionStep, ...] = (fuse_epilogue, leave_joins_outside, defer_products, fuse_producers)


def fuse(region: Region, context: FusionContext, notes: list[str]) -> tuple[Region, Fused]:
    """The region with what is fused around it, and its plan, whose report has the notes of all steps.

    notes: what was noted before. Raises what `context.make` raises for the region itself.
    """
    if region.refusal is not None or context.mode == "never":
        return region, context.make(region)
    for step in STEPS:
        region, new = step(region, context)
        notes = [*notes, *new]
    answer = context.make(region)
    return region, replace(answer, report=replace(answer.report, around=tuple(notes)))
