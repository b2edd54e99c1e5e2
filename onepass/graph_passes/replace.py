"""Replaces the regions of an fx graph by calls of onepass's operation; everything else in the graph stays as it is.

It works on Dynamo's graphs and on ATen graphs. Equal regions (the layers of a model) are traced and searched once. A
region that fails is left alone, and the report says why; with the option strict the error is raised.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from typing import TypeVar

import torch
from torch import fx
from torch._dynamo import convert_frame

from .. import messages
from ..compiler import compiled_region
from ..compiler.compiled_region import Fused, TracedRegion
from ..compiler.options import Options
from ..egraph.forks import keep_usable
from ..egraph.terms.sizes import UnknownSize
from ..errors import ProgramError, Refusal
from ..fusion.compare_plans import FusionContext, ReadCounts
from ..fusion.estimates import size_hints
from ..fusion.fuse import fuse
from ..fusion.shrink_region import to_reductions, without_refused_nodes
from ..graph.grad_modes import recording
from ..graph.nodes import layer_of, value_of_node, where_of
from ..graph.op_kinds import name_of
from ..graph.survey import Survey, survey
from ..graph.value_names import name_for_readers
from ..lowering.plan.records import NotPlannable
from ..regions.copies import without_views
from ..regions.find import find_regions
from ..regions.open_calls import inline_library_calls
from ..regions.placement import InputPairs, insertion_point, must_not_alias, overtaken_random_node, written_results
from ..regions.refusals import refusal_to_move
from ..regions.region import Region, signature
from ..report.records import Refused, RegionReport, Report
from ..runtime.library_choice import share_of_compiled
from ..runtime.region_call import CALLING
from .insert_call import CallInserter
from .output_strides import KnownCopies, output_strides
from .region_gradients import (
    derivative_reports,
    forward_plan,
    gradients_needed,
    in_forward_mode,
    in_training,
    is_derived,
)
from .specialize_sizes import number_of_guards, specialize_widths

REFUSALS = (Refusal, NotPlannable, ProgramError, UnknownSize)
RegionName = tuple[str, tuple]  # the signature, and the strides of the results
Made = TypeVar("Made")
MAX_LENGTH_OF_A_FAILURE = 300  # characters
log = logging.getLogger(__name__)
keep_usable(convert_frame.compile_lock)  # Dynamo holds it while anything is compiled.


@dataclass
class Rewriting:
    """One run of the passes over one graph: what the caller asks for, and what the passes find.

    The first five fields are the arguments of `pipeline.rewrite`. `inside` is what the names of the graph's own values
    begin with, so that no other graph of the same compilation has them. `refused_calls` are library calls that stay
    whole.
    """

    options: Options
    dry: bool = False
    sources: bool = False
    separate_inputs: InputPairs | None = None
    derivatives: frozenset[str] = frozenset()
    inside: str = ""
    refused_calls: list[Region] = field(default_factory=list)
    regions: list[Region] = field(default_factory=list)
    survey: Survey | None = None
    reports: dict[str, RegionReport] = field(default_factory=dict)
    refusals: list[Refused] = field(default_factory=list)
    failures: list[str] = field(default_factory=list)

    def report(self) -> Report:
        """What was done, without repetitions."""
        regions = tuple(self.reports.values())
        given = tuple(rule.name for rule in self.options.rules)
        refusals, failures = tuple(dict.fromkeys(self.refusals)), tuple(dict.fromkeys(self.failures))
        return Report(regions, refusals, failures, given=given, options=self.options.said)

    def note_failure(self, error: Exception, where: str) -> None:
        """Logs the error and adds it to the report. Raises it if strict."""
        if self.options.strict:
            raise error
        log.warning("onepass: failed, the original stays: %s", error, exc_info=error)
        text = " ".join(str(error).split())[:MAX_LENGTH_OF_A_FAILURE]
        self.failures.append(f"{type(error).__name__}: {text}" + (f" ({where})" if where else ""))

    def note_refusal(self, error: Exception, region: Region) -> None:
        """Adds to the report why the region stays."""
        where = getattr(error, "where", "") or where_of(region.anchor)
        file, _, line = where.rpartition(":")
        found = error if isinstance(error, Refusal) else Refusal(messages.NO_PLAN, reason=str(error))
        number = int(line) if line.isdigit() else 0
        self.refusals.append(Refused(found.reason, file, number, found.kind, found.code))

    def note_region(self, new: RegionReport, region: Region) -> None:
        """Adds a region's report. Equal regions share one report, which names every place, line and layer."""
        known = self.reports.get(new.key)
        where, layer = where_of(region.output) or where_of(region.anchor), layer_of(region.anchor)
        old = known or replace(new, places=() if where else new.places)
        self.reports[new.key] = replace(
            old,
            places=_with(old.places, [where]),
            lines=_with(old.lines, map(where_of, region.nodes)),
            layers=_with(old.layers, [layer]),
            count=old.count + 1 if known else 1,
        )


def _with(old: tuple[str, ...], new: Iterable[str]) -> tuple[str, ...]:
    """The old ones, and the new ones that are not empty and not among them."""
    return tuple(dict.fromkeys((*old, *filter(None, new))))


def inline(graph: fx.Graph, rewriting: Rewriting) -> None:
    """Inlines library calls, and notes those that stay whole."""
    rewriting.refused_calls = inline_library_calls(graph)


def find(graph: fx.Graph, rewriting: Rewriting) -> None:
    """Finds the regions of the graph."""
    rewriting.survey = survey(graph)
    rewriting.regions = [*find_regions(graph, rewriting.survey), *rewriting.refused_calls]


def replace_regions(graph: fx.Graph, rewriting: Rewriting) -> None:
    """Plans every region, inserts the calls unless the run is dry, and reports both."""
    replacement = Replacement(graph, rewriting)
    numbers = range(len(rewriting.regions))
    for number in numbers:
        replacement.attempt(number, replacement.plan)
    for number in reversed(numbers):
        if number in replacement.answers and not rewriting.dry:
            replacement.attempt(number, replacement.insert)
    for number in numbers:
        if number in replacement.answers:
            replacement.note(number)


class Replacement:
    """The replacement of one graph's regions. `answers` are the plans by the number of the region."""

    def __init__(self, graph: fx.Graph, rewriting: Rewriting):
        self.rewriting, self.survey, self.regions = rewriting, rewriting.survey, rewriting.regions
        self.answers: dict[int, Fused] = {}
        self._insertion_points: dict[int, fx.Node] = {}
        self._owned = {node for region in self.regions for node in region.owned}
        self._names: dict[tuple[Region, int], RegionName] = {}
        self._copies: dict[int, KnownCopies] = {}  # by the number of guards
        self._traced: dict[RegionName, TracedRegion | Exception] = {}
        self._by_signature: dict[RegionName, Fused | Exception] = {}
        self._read_counts = ReadCounts()
        self._shares: dict[str, float | None] = {}  # by key: what equal calls took of the plan's time
        self._records = recording(graph.nodes)
        self._inserter = CallInserter(graph, rewriting.options, self.survey, rewriting.inside)

    def attempt(self, number: int, act: Callable[[int], None]) -> None:
        """Acts on one region. After a failure it has no plan any more, and the report says why."""
        try:
            act(number)
        except Exception as error:
            self.answers.pop(number, None)
            if isinstance(error, REFUSALS):
                self.rewriting.note_refusal(error, self.regions[number])
            else:
                self.rewriting.note_failure(error, where_of(self.regions[number].anchor))

    def plan(self, number: int) -> None:
        """Fuses what pays around the region, and makes its plan. Raises Refusal and whatever planning raises."""
        region, s = self.regions[number], self.survey
        self._refuse_in_training(region)
        owned = frozenset(self._owned - region.owned)
        computed = owned.union(*(r.nodes for r in self.regions if r is not region and r.refusal is None))
        context = lambda mode: FusionContext(
            s, mode, self._compiled, owned, computed, self._trace_of, self._read_counts
        )
        self.regions[number], answer = self._fused(region, context)
        self._owned.update(self.regions[number].owned)
        self._insertion_points[number] = insertion_point(self.regions[number], s).before
        self._require_same_effects(number)
        self._leave_to_faster_calls(self.regions[number], answer)
        self.answers[number] = self._with_derivatives(self.regions[number], answer)

    def _refuse_in_training(self, region: Region) -> None:
        """Raises Refusal for a region of one product on a CPU whose gradients are needed, where Inductor compiles both.
        """
        options = self.rewriting.options
        left = options.inner == "inductor" and options.prefer == "speed"
        leaves = region.one_product and region.refusal is None and left
        values = map(value_of_node, region.inputs)
        on_gpu = any(isinstance(value, torch.Tensor) and value.is_cuda for value in values)
        if leaves and not on_gpu and any(gradients_needed(region, self._records)):
            raise Refusal(messages.ONE_PRODUCT_IN_TRAINING, where_of(region.anchor))

    def _leave_to_faster_calls(self, region: Region, answer: Fused) -> None:
        """Raises Refusal where the calls as Inductor compiles them were measured to be faster than the plan: in the
        graph, they have no call of onepass around them. Who requires regions to be fused gets the same in each process.
        """
        if self.rewriting.options.required != "nothing" or CALLING.planned is not None:
            return
        planned = forward_plan(answer, gradients_needed(region, self._records))
        if planned is None:
            return
        if planned.key not in self._shares:
            self._shares[planned.key] = share_of_compiled(planned)
        if (share := self._shares[planned.key]) is not None:
            raise Refusal(messages.MEASURED_SLOWER, where_of(region.anchor), share=f"{share:.2f}")

    def _fused(self, region: Region, context: Callable[[str], FusionContext]) -> tuple[Region, Fused]:
        """The region with what is fused around it, where gradients are needed only what they are better with."""
        mode = self.rewriting.options.fuse_loads
        if mode != "auto":
            return _fused(region, context(mode))
        if not any(gradients_needed(region, self._records)):
            # What pays depends on sizes, and what a kernel computes itself may have other bits than Inductor's.
            wide, answer = _fused(region, context("always" if self.rewriting.options.invariant else mode))
            if not any(gradients_needed(wide, self._records)):
                return wide, answer
        if refusal_to_move(narrow := without_views(region, self.survey), self.survey) is None:
            region = narrow
        wide, answer = _fused(region, context("training"))
        if is_derived(answer, gradients_needed(wide, self._records)):
            return wide, answer
        if (narrow := to_reductions(region, self.survey)) is not None:
            wide, answer = _fused(narrow, context("training"))
            if is_derived(answer, gradients_needed(wide, self._records)):
                return wide, answer
        return _fused(region, context("never"))

    def _with_derivatives(self, region: Region, answer: Fused) -> Fused:
        """The plan with what its report says of derivatives. Raises Refusal where Inductor is to compile the region."""
        report, needed = answer.report, gradients_needed(region, self._records)
        if any(needed) and self.rewriting.options.invariant:
            raise Refusal(messages.INVARIANT_IN_TRAINING, where_of(region.anchor))
        if any(needed):
            said = in_training(region, answer, needed, self.rewriting.options, size_hints(region))
            report = replace(report, backward=said)
        if any(self.survey.duals[node] for node in region.nodes):
            report = replace(report, forward_mode=in_forward_mode(region, answer))
        return replace(answer, report=report)

    def _compiled(self, region: Region) -> Fused:
        """The plan of a region, made once for equal regions whose results lie in memory alike; so is an error."""
        name = self._name_of(region)

        def made() -> Fused:
            traced = self._trace_of(region)  # This refuses outputs that have no strides.
            return compiled_region.make_traced(traced, self.rewriting.options, name[1], size_hints(region))

        return _once(self._by_signature, name, made)

    def _trace_of(self, region: Region) -> TracedRegion:
        """A region as it is traced, once for equal regions whose results lie in memory alike; so is an error."""
        return _once(self._traced, self._name_of(region), lambda: TracedRegion(region.program()))

    def _name_of(self, region: Region) -> RegionName:
        """What equal regions whose results lie in memory alike have in common. Widths are numbers from here on.

        No node changes while plans are made, so a region keeps its name until a guard says more of its sizes.
        """
        if (region, number_of_guards(region)) not in self._names:
            strides: tuple = ()
            if region.refusal is None:  # Nobody needs the guards of a region that stays.
                specialize_widths(region, self.survey.mixed)
                copies = self._copies.setdefault(number_of_guards(region), {})
                strides = tuple(output_strides(node, copies) for node in region.outputs)
            self._names[region, number_of_guards(region)] = (signature(region), strides)
        return self._names[region, number_of_guards(region)]

    def _require_same_effects(self, number: int) -> None:
        """Refuses an insertion point that changes the order of random numbers, or that needs separate inputs.

        Raises Refusal.
        """
        region, before = self.regions[number], self._insertion_points[number]
        if (node := overtaken_random_node(region, self.survey, before)) is not None:
            raise Refusal(messages.RANDOM_ORDER, where_of(node) or where_of(region.anchor), call=name_of(node))
        pairs = must_not_alias(region, self.survey, before)
        if pairs and self.rewriting.separate_inputs is None:
            (written, read), *_ = sorted(pairs, key=str)
            where = where_of(region.anchor)
            named = {"written": name_for_readers(written), "read": name_for_readers(read)}
            raise Refusal(messages.MAY_SHARE_MEMORY, where, **named)
        if pairs:
            self.rewriting.separate_inputs |= pairs

    def insert(self, number: int) -> None:
        """Inserts the region's call. Raises Refusal."""
        region = self.regions[number]
        written = written_results(region, self.survey)
        self._inserter.insert(region, self.answers[number], self._insertion_points[number], written)

    def note(self, number: int) -> None:
        """Adds the region to the report."""
        region, answer = self.regions[number], self.answers[number]
        if answer.key not in self.rewriting.reports:  # equal regions share one report
            answer = compiled_region.with_bytes(answer, size_hints(region))
            if self.rewriting.sources:
                answer = compiled_region.with_sources(answer)
                answer = replace(answer, report=self._with_derivative_reports(region, answer))
                answer = replace(answer, report=self._with_mask_inputs(region, answer))
        self.rewriting.note_region(answer.report, region)

    def _with_mask_inputs(self, region: Region, answer: Fused) -> RegionReport:
        """The report with the names of the values that masks read, where these are the outermost graph's."""
        if self.rewriting.inside:
            return answer.report
        values = [node.name for node in region.inputs if isinstance(value_of_node(node), torch.Tensor)]
        data = replace(answer.report.data, inputs=compiled_region.mask_inputs(answer, values))
        return replace(answer.report, data=data)

    def _with_derivative_reports(self, region: Region, answer: Fused) -> RegionReport:
        """The report with derivatives in full, where they are asked for. A failure is noted, and leaves them out."""
        needed, asked = gradients_needed(region, self._records), self.rewriting.derivatives
        try:
            return derivative_reports(region, answer, needed, asked, size_hints(region))
        except Exception as error:
            self.rewriting.note_failure(error, where_of(region.anchor))
            return answer.report


def _once(known: dict[RegionName, Made | Exception], name: RegionName, make: Callable[[], Made]) -> Made:
    """What is made for a region of this name, or the error that was raised, the first time and again."""
    if name not in known:
        try:
            known[name] = make()
        except Exception as error:
            known[name] = error
    found = known[name]
    if isinstance(found, Exception):
        raise found
    return found


def _fused(region: Region, context: FusionContext) -> tuple[Region, Fused]:
    """The region with what is fused around it, and its plan. What cannot be translated in front becomes an input."""
    notes: list[str] = []
    while True:
        try:
            return fuse(region, context, notes)
        except Refusal as refusal:
            if (found := without_refused_nodes(region, context.survey, refusal)) is None:
                raise
            region, note = found
            notes.append(note)
