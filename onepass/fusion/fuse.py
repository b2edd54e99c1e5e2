"""Fuses what pays around a region: its epilogue, products that can wait, and the producers of its inputs.

In training, only gathers of learned tables join: Inductor compiles the gradients of everything else that is around.

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
from .gathers import fuse_gathers
from .producers import fuse_producers
from .shrink_region import leave_joins_outside

FusionStep = Callable[[Region, FusionContext], tuple[Region, list[str]]]
EVERY_STEP = (fuse_epilogue, leave_joins_outside, defer_products, fuse_producers, fuse_gathers)
STEPS: dict[str, tuple[FusionStep, ...]] = {  # by the mode of the context
    "auto": EVERY_STEP,
    "always": EVERY_STEP,
    "training": (fuse_gathers,),
    "never": (),
}


def fuse(region: Region, context: FusionContext, notes: list[str]) -> tuple[Region, Fused]:
    """The region with what is fused around it, and its plan, whose report has the notes of all steps.

    notes: what was noted before. Raises what `context.make` raises for the region itself.
    """
    steps = STEPS[context.mode]
    if region.refusal is not None or not steps:
        return region, context.make(region)
    for step in steps:
        region, new = step(region, context)
        notes = [*notes, *new]
    answer = context.make(region)
    return region, replace(answer, report=replace(answer.report, around=tuple(notes)))
