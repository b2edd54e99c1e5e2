"""What a page shows of one fused region: its record, and what is computed from its plan when the page is made.

A piece that cannot be computed is left out, and the others are shown. Nothing here decides anything. Example: the view
of a causal region has one picture of tiles, one loop nest and one derivation.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any, TypeVar

from ..egraph.terms.printing import show
from ..lowering.executors import GLUON, TRITON
from ..wording.answers import Speed, speed_of
from ..wording.loop_nest import loop_nest
from ..wording.text import LABEL, bytes_text, derivative_lines, in_loops, region_laws, runner, search
from .derivation_view import DerivationView, LawView, derivation_view, law_views
from .marked_source import SourceView, source_views
from .mask_svg import MaskView, mask_views, percent
from .timeline_svg import TimelineView, timeline_view

RegionReport = Any
KernelReport = Any
Made = TypeVar("Made")
log = logging.getLogger(__name__)
MAX_NAMED_LAYERS = 6  # of more, the first ones
NOTHING = DerivationView((), 0)
NO_PICTURES: tuple[MaskView, ...] = ()
NO_TIMELINES: tuple[TimelineView, ...] = ()
NO_ESTIMATE = "there is no estimate of this kernel here"
MAX_TERM = 160  # characters of a term that another plan would store


@dataclass(frozen=True)
class KernelView:
    """A kernel: what is said of it, its loops, its text, and the pictures of its masks."""

    name: str
    facts: tuple[tuple[str, str], ...]
    estimate: str = ""
    nest: str = ""
    source: str = ""
    masks: tuple[MaskView, ...] = ()
    timelines: tuple[TimelineView, ...] = ()


@dataclass(frozen=True)
class RegionView:
    """A region's card. pieces that are not known are empty."""

    number: int
    title: str
    places: tuple[str, ...]
    layers: str
    count: int
    passes: tuple[int, int]
    loops: str
    bytes: tuple[str, str]
    speed: Speed
    captured: str
    extracted: str
    sources: tuple[SourceView, ...]
    laws: tuple[LawView, ...]
    derivations: tuple[DerivationView, ...]
    kernels: tuple[KernelView, ...]
    alternatives: tuple[tuple[str, str], ...]
    facts: tuple[tuple[str, str], ...]
    derivatives: tuple[tuple[str, tuple[tuple[str, str], ...]], ...]
    notes: tuple[str, ...]


def region_view(region: RegionReport, number: int) -> RegionView:
    """The view of a region."""
    sources = tuple(source_views((*region.places, *region.lines)))
    return RegionView(
        number=number,
        title=_title(region, sources),
        places=region.places,
        layers=_layers(region.layers),
        count=region.count,
        passes=region.passes,
        loops=in_loops(region),
        bytes=(bytes_text(region.bytes[0]), bytes_text(region.bytes[1])),
        speed=speed_of(region),
        captured=region.captured,
        extracted=region.extracted,
        sources=sources,
        laws=law_views(region.derivation),
        derivations=tuple(_derivations(region)),
        kernels=tuple(_kernel(region, n) for n in range(len(region.kernels))),
        alternatives=tuple(_alternatives(region)),
        facts=tuple(_facts(region)),
        derivatives=tuple(_derivatives(region)),
        notes=region.notes,
    )


def _known(empty: Made, make: Callable[..., Made], *arguments: Any) -> Made:
    """What is made, or the empty value: a page is for reading, and shows what it can."""
    try:
        return make(*arguments)
    except Exception as error:
        log.debug("onepass: a piece of a page is left out: %s", error, exc_info=error)
        return empty


def _title(region: RegionReport, sources: tuple[SourceView, ...]) -> str:
    """The layer, or where it is in the user's file."""
    if region.layers:
        return region.layers[0] + (f" and {len(region.layers) - 1} more" if len(region.layers) > 1 else "")
    if sources:
        return f"{sources[0].name}:{sources[0].marked}"
    return next(iter(region.places), "source line unknown")


def _layers(layers: tuple[str, ...]) -> str:
    more = len(layers) - MAX_NAMED_LAYERS
    return ", ".join(layers[:MAX_NAMED_LAYERS]) + (f" and {more} more" if more > 0 else "")


def _derivations(region: RegionReport) -> Iterator[DerivationView]:
    laws = {step.rule: step.law for step in region.derivation}
    for written in region.certificates:
        found = _known(NOTHING, derivation_view, written["derivation"], laws)
        if found.steps:
            yield found


def _kernel(region: RegionReport, number: int) -> KernelView:
    kernel, data = region.kernels[number], region.data
    facts = tuple(_kernel_facts(kernel, region.device))
    if data is None:
        return KernelView(kernel.name, facts, kernel.estimate)
    planned = data.plan.kernels[number]
    if refusal := _known(None, TRITON.kernel_refusal, planned, data.plan):
        facts += (("in Triton", f"not: {refusal}"),)
    pictures = (_known(NO_PICTURES, mask_views, planned, loop, data.sizes, data.tensors) for loop in planned.loops)
    return KernelView(
        kernel.name,
        facts,
        kernel.estimate or _known("", GLUON.describe_time, planned, data.plan, data.sizes),
        _known("", loop_nest, planned),
        _known("", TRITON.source, planned, data.plan),
        tuple(view for views in pictures for view in views),
        _known(NO_TIMELINES, _timelines, region, number) or (TimelineView(kernel.name, why_not=NO_ESTIMATE),),
    )


def _timelines(region: RegionReport, number: int) -> tuple[TimelineView, ...]:
    plan = region.data.plan
    return tuple(map(timeline_view, GLUON.timelines(plan, plan.kernels[number], region.data.sizes)))


def _kernel_facts(kernel: KernelReport, device: str) -> Iterator[tuple[str, str]]:
    yield "programs", f"one for each {', '.join((*kernel.grid, *([f'tile of {kernel.rows}'] if kernel.rows else [])))}"
    yield "loops over", ", ".join(kernel.loops) or "none"
    yield from (("mask", text) for text in kernel.masks)
    yield from (("in parts", text) for text in filter(None, [kernel.parts]))
    if kernel.form:
        yield ("on Hopper" if device != "cpu" else "on a Hopper GPU"), kernel.form


def _alternatives(region: RegionReport) -> Iterator[tuple[str, str]]:
    """What other plans would store or compute again, with which rows, and how much slower they are by the estimates."""
    for other in region.data.plan.alternatives if region.data is not None else ():
        again = (f"not stored: {_clipped(show(term))}" for term in other.computed)
        chosen = "; ".join((*(_clipped(show(term)) for term in other.stored), *again, *other.rows))
        slower = f"{percent(other.share - 1)} slower" if other.share > 1 else f"only {percent(1 - other.share)} faster"
        yield chosen, slower


def _clipped(text: str) -> str:
    return text if len(text) <= MAX_TERM else f"{text[:MAX_TERM]}…"


def _facts(region: RegionReport) -> Iterator[tuple[str, str]]:
    yield "runs by", runner(region)
    yield from (("plan", text) for text in filter(None, [region.plan_check]))
    yield from (("between kernels", text) for text in region.between)
    yield from (("around", text) for text in region.around)
    yield from (("shape", text) for text in region.shape_reasons)
    if region.deterministic:
        yield "repeats", "the plan is deterministic: its sums are in a fixed order"
    yield from (("assumes", text) for text in region.assumptions)
    yield from (("trusted", f"{name}: not proved, used on its author's word") for name in region.trusted)
    yield from (("law", f"{name}: {said}") for name, said in region_laws(region))
    yield "backward", region.backward
    yield from (("backward ran by", text) for text in filter(None, [region.backward_ran]))
    yield from (("tangents", text) for text in filter(None, [region.forward_mode]))
    yield "search", search(region)
    yield "cache", region.cache


def _derivatives(region: RegionReport) -> Iterator[tuple[str, tuple[tuple[str, str], ...]]]:
    for found in (region.gradients, region.tangents):
        if found is not None:
            yield found.kind, tuple(_rows(derivative_lines(found, region.device, verbose=True)))


def _rows(lines: Iterable[str]) -> Iterator[tuple[str, str]]:
    """Lines of a report as (label, text). A line without a label goes on with the one before it."""
    label = ""
    texts: list[str] = []
    for line in lines:
        if texts and line[:LABEL].strip():
            yield label, "\n".join(texts)
            texts = []
        label = line[:LABEL].strip() or label
        texts.append(line[LABEL:].strip())
    if texts:
        yield label, "\n".join(texts)
