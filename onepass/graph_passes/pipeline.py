"""The passes over one fx graph, in order. The backend and the Inductor pass run the same list.

Every pass leaves a graph that computes what it computed before. Set the log level of this module to DEBUG to see the
graph after each pass that changes it. Example: attention on Dynamo's graph goes through all stages but the last, which
Inductor runs.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass, replace
from enum import Enum

import torch
from torch import fx

from .. import messages
from ..compiler.options import Options
from ..graph.grad_modes import attach_unrecorded, detach_unrecorded, recording
from ..graph.nodes import value_of_node
from ..graph.op_kinds import Trait, has_trait
from ..graph.random_calls import draw_seeds, remove_seeds
from ..graph.survey import SOURCE, bodies, source_name
from ..graph.trace import without_saved_tensors
from ..lowering.source_folder import debug_folder, keep_stage
from ..regions.exchanges import overlap_exchanges
from ..regions.layer_rows import flatten_rows
from ..regions.placement import InputPairs
from ..report.records import Refused, Report
from .float_inputs import replace_float_inputs
from .functionalize import functionalize
from .index_assignment import assign_behind_views
from .move_scalars import move_scalars
from .reduced_dims import reduce_over_last_dims, split_extrema
from .replace import Rewriting, find, inline, replace_regions
from .size_calls import remove_checks, replace_size_calls
from .specialize_sizes import guard_block_lengths

log = logging.getLogger(__name__)


class Stage(Enum):
    """When a pass runs."""

    PREPARE = "before anything is replaced; a failure leaves the graph to torch"
    REPLACE = "replaces regions; a failure leaves one region to torch"
    FINISH = "after regions were replaced"
    INDUCTOR = "on the ATen graph that Inductor compiles"


@dataclass(frozen=True)
class FxPass:
    """`run` changes the graph in place. Afterwards the graph is as `guarantee` says."""

    name: str
    stage: Stage
    run: Callable[[fx.Graph, Rewriting], None]
    guarantee: str


def rewrite_called_graphs(graph: fx.Graph, rewriting: Rewriting) -> None:
    """Runs the passes over each graph that one call of this graph runs in its place, in the grad mode of the call.

    Inputs of such a graph may share memory, so a region that needs the promise that they do not stays as written.
    """
    calls = [n for n in graph.nodes if has_trait(n, Trait.RUNS_A_GRAPH) and len(n.args[0].users) == 1]
    recorded = recording(graph.nodes) if calls else {}
    for call in calls:
        inside = f"{rewriting.inside}{call.args[0].name}."
        inner = replace(rewriting, separate_inputs=None, inside=inside, refused_calls=[], regions=[], survey=None)
        for body in bodies(call):
            for node, argument in zip(body.find_nodes(op="placeholder"), call.args[1:], strict=False):
                if isinstance(argument, fx.Node):
                    node.meta[SOURCE] = source_name(argument, rewriting.inside)
            with torch.set_grad_enabled(recorded[call]):
                _run_passes(body, inner)
            if not rewriting.dry:
                body.owning_module.recompile()


def _of_graph(run: Callable[[fx.Graph], None]) -> Callable[[fx.Graph, Rewriting], None]:
    """A pass that needs nothing but the graph."""
    return lambda graph, rewriting: run(graph)


PASSES = (
    FxPass("inline_library_calls", Stage.PREPARE, inline, "no library call hides a region that can be replaced"),
    FxPass("functionalize", Stage.PREPARE, _of_graph(functionalize), "values inside regions are not written in place"),
    FxPass(
        "assign_behind_views",
        Stage.PREPARE,
        _of_graph(assign_behind_views),
        "slots of an input of pages are written in the input itself",
    ),
    FxPass(
        "detach_unrecorded",
        Stage.PREPARE,
        _of_graph(detach_unrecorded),
        "what is made under no_grad is detached, so that a region may reach across the switch",
    ),
    FxPass(
        "float_inputs",
        Stage.PREPARE,
        _of_graph(replace_float_inputs),
        "a float that Dynamo made an input is a number, or a tensor without axes",
    ),
    FxPass("move_scalars", Stage.PREPARE, _of_graph(move_scalars), "the operands of a region are on one device"),
    FxPass("size_calls", Stage.PREPARE, _of_graph(replace_size_calls), "sizes are read from inputs, not from scores"),
    FxPass("checks", Stage.PREPARE, _of_graph(remove_checks), "no check of a dtype that holds reads a value"),
    FxPass("specialize_sizes", Stage.PREPARE, _of_graph(guard_block_lengths), "blocks of a length fill it, by a guard"),
    FxPass(
        "draw_seeds",
        Stage.PREPARE,
        _of_graph(draw_seeds),
        "a dropout is a function of a seed that is drawn in front of it",
    ),
    FxPass(
        "flatten_rows",
        Stage.PREPARE,
        _of_graph(flatten_rows),
        "a layer of which reductions are read has rows of one axis, and only those that are read",
    ),
    FxPass(
        "reduced_dims",
        Stage.PREPARE,
        _of_graph(split_extrema),
        "the largest score of a head is that of its rows' largest scores",
    ),
    FxPass("find_regions", Stage.PREPARE, find, "the regions of the graph are known"),
    FxPass("replace", Stage.REPLACE, replace_regions, "each region that has a plan is one call of onepass's operation"),
    FxPass("called_graphs", Stage.REPLACE, rewrite_called_graphs, "regions inside of a checkpoint are replaced, too"),
    FxPass("remove_seeds", Stage.FINISH, _of_graph(remove_seeds), "a dropout outside of regions draws its own numbers"),
    FxPass("attach_unrecorded", Stage.FINISH, _of_graph(attach_unrecorded), "detaches outside of regions are gone"),
    FxPass(
        "overlap_exchanges",
        Stage.FINISH,
        _of_graph(overlap_exchanges),
        "exchanges between ranks start as early as they can, and are waited for where their results are read",
    ),
    FxPass(
        "softmax_dims",
        Stage.INDUCTOR,
        _of_graph(reduce_over_last_dims),
        "no softmax that is left is over another dim than the last",
    ),
)


@without_saved_tensors()
def rewrite(
    graph: fx.Graph,
    options: Options,
    dry: bool = False,
    sources: bool = False,
    separate_inputs: InputPairs | None = None,
    derivatives: frozenset[str] = frozenset(),
) -> Report:
    """Replaces what can be replaced, and reports what was done. Raises only if strict.

    dry: replaces nothing. sources: writes the kernels' source to files for reading. separate_inputs: gets pairs of the
    graph's inputs; the caller promises that they share no memory. Without it, regions that need the promise stay.
    derivatives: "gradients", "tangents", to be reported in full where sources are written.
    """
    sources = sources or debug_folder() is not None
    keep_stage("graph as captured", str(graph) if debug_folder() else "")
    if (name := _unknown_input(graph)) is not None:
        return Report(refusals=(Refused.of(messages.NO_METADATA, name=name),), options=options.said)
    rewriting = Rewriting(options, dry, sources, separate_inputs, derivatives)
    _run_passes(graph, rewriting)
    return rewriting.report()


def _unknown_input(graph: fx.Graph) -> str | None:
    """The first input of a graph in which no node has an example value; None of any other graph."""
    inputs = graph.find_nodes(op="placeholder")
    return inputs[0].name if inputs and all(value_of_node(node) is None for node in graph.nodes) else None


def _run_passes(graph: fx.Graph, rewriting: Rewriting) -> None:
    """Runs the passes of all stages but Inductor's over one graph, and over the graphs that it runs."""
    try:
        run_stage(Stage.PREPARE, graph, rewriting)
    except Exception as error:
        rewriting.note_failure(error, "")
        return
    run_stage(Stage.REPLACE, graph, rewriting)
    if not rewriting.dry:
        run_stage(Stage.FINISH, graph, rewriting)
        if rewriting.reports:
            graph.lint()


def run_stage(stage: Stage, graph: fx.Graph, rewriting: Rewriting) -> None:
    """Runs the passes of one stage, in order."""
    for one in PASSES:
        if one.stage is stage:
            before = _shown(graph)
            one.run(graph, rewriting)
            if (after := _shown(graph)) != before:
                log.debug("onepass: the graph after %s:\n%s", one.name, after)
                keep_stage(f"graph after {one.name}", after)


def _shown(graph: fx.Graph) -> str:
    """The graph as text where it is logged or kept, else nothing: to write it takes time."""
    return str(graph) if log.isEnabledFor(logging.DEBUG) or debug_folder() else ""
