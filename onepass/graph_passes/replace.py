"""Regions of an fx graph become calls of onepass's operation; everything else in the graph stays as it is.

Works on Dynamo's graphs and on ATen graphs. Equal regions (the layers of a model) are traced and searched once. Nothing
raises unless strict: a region that fails is left alone, and the report says why.
"""

from __future__ import annotations

import logging
import operator as operator_module
from collections.abc import Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace

import torch
from torch import fx
from torch._dynamo import convert_frame

from ..compiler import compiled_region
from ..compiler.compiled_region import Fused
from ..compiler.options import Options
from ..egraph.forks import keep_usable
from ..egraph.terms.sizes import UnknownSize
from ..errors import ProgramError, Refusal
from ..fusion.compare_plans import FusionContext, ReadCounts
from ..fusion.estimates import size_hints
from ..fusion.fuse import fuse
from ..fusion.shrink_region import without_refused_nodes
from ..graph.grad_modes import attach_unrecorded, detach_unrecorded, recording, records
from ..graph.nodes import size_of, value_of_node, where_of
from ..graph.op_kinds import name_of
from ..graph.survey import Survey, storages, survey
from ..lowering.plan.records import NotPlannable
from ..regions.find import find_regions
from ..regions.open_calls import open_calls
from ..regions.placement import Pairs, first_user, kept_apart, late, overtaken, standing
from ..regions.region import Region, signature
from ..report.records import Refused, RegionReport, Report
from ..runtime import operator  # noqa: F401  (registers the operation)
from .float_inputs import settle_floats
from .functionalize import make_functional
from .move_scalars import settle_devices
from .output_strides import laid_out
from .size_calls import name_sizes
from .specialize_sizes import fill_blocks, fix_widths

KEPT_META = ("val", "example_value", "tensor_meta", "stack_trace", "from_node", "nn_module_stack", "source_fn_stack")
PREPARATIONS = (make_functional, detach_unrecorded, settle_floats, settle_devices, name_sizes, fill_blocks)
log = logging.getLogger(__name__)
keep_usable(convert_frame.compile_lock)  # Dynamo holds it while anything is compiled


@contextmanager
def _unseen():
    """What is traced is nothing that a caller saves for a backward pass: a checkpoint around the call counts that."""
    same = lambda x: x
    with torch.autograd.graph.saved_tensors_hooks(same, same):
        yield


@_unseen()
def rewrite(
    graph: fx.Graph, options: Options, dry: bool = False, sources: bool = False, apart: Pairs | None = None
) -> Report:
    """Replaces what can be replaced and says what was done. Raises only if strict.

    `dry` replaces nothing; `sources` writes the kernels' source to files for reading; `apart` takes the inputs that the
    caller sees to that they share no memory. Without it, regions that need that stay as they are.
    """
    known: dict[str, Fused | Exception] = {}
    reports: dict[str, RegionReport] = {}
    refusals: list[Refused] = []
    failures: list[str] = []
    try:
        kept = open_calls(graph)
        for change in PREPARATIONS:
            change(graph)
        regions, s = [*find_regions(graph), *kept], survey(graph)
    except Exception as error:
        _failed(error, "", options, failures)
        return Report(failures=tuple(failures))
    answers: dict[int, Fused] = {}

    def attempt(number: int, act) -> None:
        try:
            answers[number] = act(regions[number])
        except Exception as error:
            answers.pop(number, None)
            if isinstance(error, Refusal | NotPlannable | ProgramError | UnknownSize):
                refusals.append(_refused(error, regions[number]))
            else:
                _failed(error, where_of(regions[number].anchor), options, failures)

    reads, stands = ReadCounts(), dict[int, fx.Node]()
    claimed = {node for region in regions for node in region.owned}

    def answered(number: int, region: Region) -> Fused:
        taken = frozenset(claimed - region.owned)
        make = lambda r: _answer(r, s.mixed, options, known)
        copies = taken.union(*(r.nodes for r in regions if r is not region and r.refusal is None))
        regions[number], found = _planned(region, FusionContext(s, options.fuse_loads, make, taken, copies, reads))
        claimed.update(regions[number].owned)
        stands[number] = standing(regions[number], s).place
        _require_its_place(regions[number], s, stands[number], apart)
        return found

    for number in range(len(regions)):
        attempt(number, lambda region, number=number: answered(number, region))
    given: dict[fx.Node, fx.Node] = {}
    for number in () if dry else sorted(answers, reverse=True):
        more = (answers[number], stands[number], given, options, s.switched)
        attempt(number, lambda region, more=more: insert(graph, region, *more))
    for number, answer in sorted(answers.items()):
        if answer.key not in reports and sources:
            answer = compiled_region.with_sources(answer)
        _merge(reports, answer.report, where_of(regions[number].output) or where_of(regions[number].anchor))
    if not dry:
        attach_unrecorded(graph)
    if reports and not dry:
        graph.lint()
    return Report(tuple(reports.values()), tuple(dict.fromkeys(refusals)), tuple(dict.fromkeys(failures)))


def _planned(region: Region, context: FusionContext) -> tuple[Region, Fused]:
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


def _require_its_place(region: Region, s: Survey, stands: fx.Node, apart: Pairs | None) -> None:
    """Nothing is drawn in another order there, and no memory is shared that must not be. Raises Refusal."""
    if (node := overtaken(region, s, stands)) is not None:
        said = f"{name_of(node)} draws before what the region reads is drawn, and would draw after it"
        raise Refusal(said, where_of(node) or where_of(region.anchor), "random")
    pairs = kept_apart(region, s, stands)
    if pairs and apart is None:
        (written, read), *_ = sorted(pairs, key=str)
        reason = f"{written.name} is written between what the region reads of {read.name}, and may be its memory"
        raise Refusal(reason, where_of(region.anchor), "in-place")
    if pairs:
        apart |= pairs


def _answer(region: Region, mixed: Mapping, options: Options, known: dict) -> Fused:
    """What is known of a region with this signature; a refusal is remembered as well as a plan."""
    fix_widths(region, mixed)
    name = signature(region)
    if name not in known:
        try:
            program = region.program()  # first: it refuses outputs that have no strides
            strides = tuple(map(_strides, region.outputs))
            known[name] = compiled_region.make(program, options, strides, size_hints(region))
        except Exception as error:  # remembered: the next layer would only fail again
            known[name] = error
    if isinstance(known[name], Exception):
        raise known[name]
    return known[name]


def _failed(error: Exception, where: str, options: Options, failures: list[str]) -> None:
    if options.strict:
        raise error
    log.warning("onepass: failed, the original stays: %s", error, exc_info=error)
    text = " ".join(str(error).split())[:300]
    failures.append(f"{type(error).__name__}: {text}" + (f" ({where})" if where else ""))


def _refused(refusal: Exception, region) -> Refused:
    where = getattr(refusal, "where", "") or where_of(region.anchor)
    file, _, line = where.rpartition(":")
    reason, kind = getattr(refusal, "reason", str(refusal)), getattr(refusal, "kind", "no plan")
    return Refused(reason, file, int(line) if line.isdigit() else 0, kind)


def _merge(reports: dict[str, RegionReport], new: RegionReport, where: str) -> None:
    """Equal regions share one report, which names every place."""
    old = reports.get(new.key, replace(new, places=(where,) if where else new.places))
    places = old.places if where in old.places or not where else (*old.places, where)
    reports[new.key] = replace(old, places=places, count=old.count + 1 if new.key in reports else 1)


# What is known of a region before it is traced ------------------------------------------------------------------------


def _strides(node: fx.Node) -> tuple[int | str, ...]:
    return tuple(map(size_of, laid_out(node).stride()))


# Surgery --------------------------------------------------------------------------------------------------------------


def insert(
    graph: fx.Graph,
    region,
    answer: Fused,
    stands: fx.Node,
    given: dict[fx.Node, fx.Node],
    options: Options,
    switched: bool,
) -> Fused:
    """Puts the call where the first result is used, or in front of what must come behind it.

    `given` has what other regions' calls give for their outputs, which may be inputs here, and gets this one's.
    `switched`: gradients are recorded in one part of the graph and not in another.

    Inputs that come later move up: a region where that would change something was refused. Only the region's own nodes
    are erased: fx would take an in-place operation whose result is unused for dead code.
    """
    region = replace(region, inputs=tuple(given.get(n, n) for n in region.inputs))
    tensors = [n for n in region.inputs if isinstance(value_of_node(n), torch.Tensor)]
    sizes = [_size_node(graph, symbol, region) for symbol in answer.free_symbols]
    place = _place(graph, region, (*region.inputs, *sizes), stands, switched)
    with graph.inserting_before(place):
        given_to = (tensors, answer.text, sizes, _sources(tensors, options))
        call = graph.call_function(torch.ops.onepass.region.default, given_to)
        results = [graph.call_function(operator_module.getitem, (call, k)) for k in range(len(region.outputs))]
    call.meta = {name: value for name, value in region.output.meta.items() if name in KEPT_META[3:]}
    for kind in KEPT_META[:2]:
        values = [old.meta[kind] for old in region.outputs if kind in old.meta]
        call.meta |= {kind: values} if len(values) == len(results) else {}
    for old, result in zip(region.outputs, results, strict=True):
        result.meta = {name: old.meta[name] for name in KEPT_META if name in old.meta}
        result.meta |= {name: laid_out(old) for name in KEPT_META[:2] if name in old.meta}
        old.replace_all_uses_with(result)
        given[old] = result
    for node in reversed(region.nodes):
        if not node.users:
            graph.erase_node(node)
    return answer


def _sources(tensors: Sequence[fx.Node], options: Options) -> str:
    """What each tensor is, by name: Inductor writes one value into another's memory and counts no version, except what
    comes from outside. Nothing where the calls are left to eager, which counts."""
    if options.inner == "eager":
        return ""
    return ",".join(_from_outside(n) or n.name for n in tensors)


def _from_outside(node: fx.Node) -> str:
    """The name of the input or attribute of the graph that the node is or is a view of."""
    while node.all_input_nodes and storages(node) == storages(node.all_input_nodes[0]):
        node = node.all_input_nodes[0]
    return node.name if node.op in ("placeholder", "get_attr") else ""


def _place(graph: fx.Graph, region, needed, stands: fx.Node, switched: bool) -> fx.Node:
    """The first user outside, or what has to come behind: in front of it all that is needed is moved. Raises Refusal.

    Calls of other regions may use this one's results earlier than its own nodes were used.
    """
    place = {node: k for k, node in enumerate(graph.nodes)}
    first = min((first_user(region, place), stands), key=lambda node: place.get(node, len(place)))
    moving, on = late(needed, first, place), recording(place) if switched else {}
    if on and not on[first] and records((*moving, *region.outputs), on):
        reason = "the region's first result is used under no_grad, in front of what needs gradients"
        raise Refusal(reason, where_of(region.anchor), "no_grad")
    for node in moving:
        first.prepend(node)
    return first


def _size_node(graph: fx.Graph, symbol: str, region) -> fx.Node:
    """A node of the graph whose value is the symbolic size."""
    for node in graph.nodes:
        if node is region.output:  # later nodes cannot be used
            break
        value = value_of_node(node)
        if isinstance(value, torch.SymInt) and str(value.node.expr) == symbol:
            return node
    said = f"no value in the graph gives the size {symbol}"
    if any(isinstance(v := value_of_node(n), torch.SymFloat) and symbol in str(v.node.expr) for n in graph.nodes):
        said = "a float that each call gives is read at run time only where it multiplies or divides a tensor"
    raise Refusal(said, where_of(region.anchor), "sizes")
