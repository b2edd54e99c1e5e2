"""Decides whether a wider region has a better plan than the region itself, and says why not.

A wider region loses if it cannot be moved or planned, takes more kernels, or gives up a faster kernel. Example: with
a gate behind it, attention no longer has the form of torch's own attention kernel. No node changes.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from ..compiler import library_kernels
from ..compiler.compiled_region import Fused, TracedRegion
from ..egraph.search.engine import EngineError
from ..errors import OnepassError
from ..graph.survey import Nodes, Survey
from ..lowering.executors import has_hopper_form
from ..lowering.plan.records import NotPlannable
from ..regions.refusals import refusal_to_move
from ..regions.region import Region
from .estimates import device_type, hopper_form_seconds, library_seconds, on_hopper

SLOWEST_PLAN = 2.0  # the time of a plan without that form, in times of torch's own kernel
FASTER_THAN_PLANS = (
    'which may be faster than any plan, takes the region without it; options={"fuse_loads": "always"} puts it inside'
)
LOSES_THE_HOPPER_FORM = "the kernel would lose its form on Hopper, whose products read tensors as they are stored"
CANNOT_BE_COMPILED = (OnepassError, NotPlannable, EngineError)
# By a region's signature: for every input, how often an element is read, and a phrase for it; or why that is unknown.
ReadCounts = dict[str, "tuple[tuple[float, str], ...] | Exception"]


@dataclass(frozen=True)
class FusionContext:
    """What fusion knows about a graph besides the region.

    mode: the option fuse_loads, "auto", "always" or "never"; "training" where that is "auto" and gradients are needed.
    make: compiles a region, or raises. owned: nodes that other regions own. computed: these, and the copies that other
    regions make, which read results as they are. traced: traces a region, or raises; that of a graph does it once for
    equal regions. read_counts: shared by all regions of a graph.
    """

    survey: Survey
    mode: str
    make: Callable[[Region], Fused]
    owned: Nodes
    computed: Nodes
    traced: Callable[[Region], TracedRegion] = lambda region: TracedRegion(region.program())
    read_counts: ReadCounts = field(default_factory=dict)


def reason_against(wide: Region, region: Region, context: FusionContext, saved: float) -> str:
    """Why the region is better than the wider one; empty if it is not.

    saved: seconds that the wider region saves outside of its kernels.
    """
    if (refusal := refusal_to_move(wide, context.survey)) is not None:
        return refusal.reason
    try:
        answer = context.make(wide)
    except CANNOT_BE_COMPILED as error:
        return reason_of(error)
    if context.mode != "auto":
        return ""
    own = context.make(region)
    lost_kernel = _lost_library_kernel(region, own, answer)
    if lost_kernel is not None and not _outweighs_a_library(region, own, saved):
        return f"{lost_kernel.name} of torch's, {FASTER_THAN_PLANS}"
    if len(own.plan.kernels) < len(answer.plan.kernels):
        return f"it would take {len(answer.plan.kernels)} kernels instead of {len(own.plan.kernels)}"
    loses = on_hopper(region) and has_hopper_form(own.plan) and not has_hopper_form(answer.plan)
    loses = loses and hopper_form_seconds(region, own.plan) > saved
    return LOSES_THE_HOPPER_FORM if loses else ""


def reason_of(error: Exception) -> str:
    """What an error says to users."""
    return getattr(error, "reason", str(error)) or type(error).__name__


def _lost_library_kernel(region: Region, own: Fused, wide: Fused) -> library_kernels.LibraryKernel | None:
    """A kernel of torch's that can run the region and not the wider one.

    On Hopper it does not count if the wider plan has the Hopper form, which is measured to be faster than torch's.
    """
    options = wide.options
    if not options.libraries or options.executor != "auto" or own.form is None or wide.form is not None:
        return None
    if on_hopper(region) and has_hopper_form(wide.plan):
        return None
    return next(iter(library_kernels.kernels(own.form, device_type(region), own.program.output_metas[0].dtype)), None)


def _outweighs_a_library(region: Region, own: Fused, saved: float) -> bool:
    """Whether what a wider plan saves is more than what a plan may take longer than torch's kernel: on a GPU.

    Example: a cache in int8 that torch's kernel could read only as a copy in half precision.
    """
    return _has_kernels(region) and saved > (SLOWEST_PLAN - 1) * library_seconds(region, own.plan)


def _has_kernels(region: Region) -> bool:
    """Whether plans run as kernels on the device of the region's result."""
    return device_type(region) != "cpu"
