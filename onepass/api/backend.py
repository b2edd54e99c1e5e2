"""The torch.compile backend "onepass": fuses regions of a graph, then compiles the graph by Inductor or runs it.

torch finds it by entry point, so `torch.compile(f, backend="onepass")` needs no import. A failure in onepass leaves the
graph as it was, unless the option strict is set. The backend changes no settings of the process.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from copy import deepcopy
from dataclasses import dataclass, field, replace
from functools import partial

import torch
from torch import fx
from torch.autograd import forward_ad

from .. import messages
from ..compiler.options import Options
from ..errors import InputError, OptionError
from ..graph.op_kinds import changes_in_place
from ..lowering.stage_times import Seconds, shown, stage
from ..regions.placement import InputPairs
from ..report.graph_breaks import with_break
from ..report.publish import publish
from ..report.records import Report, record
from ..runtime import library_choice
from ..runtime.compile_ahead import compile_ahead, start_compiler
from ..runtime.region_call import falls_back, has_tangent
from ..runtime.runner import one_line
from .eager_graph import leaves_nothing_to_compile, without_compiler
from .mask_data import taking, wanted, with_tensors
from .recompile import Recompiled, may_recompile

log = logging.getLogger(__name__)
start_compiler()  # who imports this module compiles next; a thread of its own has the time that Dynamo takes first
Tell = Callable[[Report], None]
Compiled = tuple[Callable, Report, InputPairs]  # and the inputs that must not share memory


def onepass_backend(
    gm: fx.GraphModule | None = None,
    example_inputs: Sequence | None = None,
    *,
    options: Mapping[str, object] | None = None,
    mode: str | None = None,
) -> Callable:
    """The backend function that Dynamo calls with each graph. `options` and `mode` are those of torch.compile.

    Without a graph it returns a backend with these options, so that bad options raise at once and not in the first
    call. Raises OptionError, RuleRefuted and RuleUnproved; InputError if the first argument is no graph of Dynamo.

    >>> import onepass, torch
    >>> double = torch.compile(lambda x: x + x, backend=onepass.onepass_backend, options={"inner": "eager"})
    >>> double(torch.ones(2))
    tensor([2., 2.])
    """
    if isinstance(gm, Mapping):
        raise InputError(f"onepass_backend takes options by name: onepass_backend(options={dict(gm)!r})")
    if gm is not None and not isinstance(gm, fx.GraphModule):
        given = getattr(gm, "__name__", type(gm).__name__)
        meant = f"torch.compile({given}, backend=onepass.onepass_backend)"
        raise InputError(f"onepass_backend is what torch.compile calls: {meant}")
    backend = Backend(Options.read(options), _known(mode))
    return backend if gm is None else backend(gm, example_inputs)


@dataclass(frozen=True)
class Backend:
    """A backend with its options. Raises OptionError for options that contradict each other, or are given twice.

    kept: gets the report of each graph.
    """

    options: Options
    mode: str | None = None
    kept: list[Report] | None = field(default=None, compare=False)
    __name__ = "onepass"  # the name in messages of Dynamo

    def __post_init__(self):
        if self.mode and self.options.inner != "inductor":
            raise OptionError(f"mode is Inductor's, and inner={self.options.inner!r} leaves Inductor out")

    def __call__(self, gm: fx.GraphModule, example_inputs, **given):
        if given:
            raise OptionError(f"{', '.join(given)} given twice: to onepass_backend(...), and to torch.compile")
        seconds: Seconds = {}
        with stage("backend", seconds):
            run = self._run_of(gm, example_inputs, seconds)
        log.debug("onepass: seconds of the compilation: %s", shown(seconds))
        return run

    def _run_of(self, gm: fx.GraphModule, example_inputs: Sequence, seconds: Seconds) -> Callable:
        """What runs a graph. seconds: of the stages, for its report."""
        may_change = self.options.inner == "inductor" and self.options.required == "nothing"
        again = may_change and may_recompile(example_inputs)
        original = deepcopy(gm.graph) if again or any(map(changes_in_place, gm.graph.nodes)) else None
        written = partial(deepcopy, original) if again else lambda: original  # its one user may change it
        make = lambda graph, tell: self._compiled(graph, example_inputs, tell, written)
        tell = lambda report: publish(replace(report, seconds=seconds), self.options.required)
        run, report, separate = _or_fused(make, gm, tell, written) if again else make(gm, tell)
        if not (again and report.regions) or separate:  # without its regions, it would not look at shared memory
            return run
        anew = lambda args: self._compiled(fx.GraphModule(gm, written()), args, record, written)[0]
        return Recompiled(run, [region.key for region in report.regions], anew)

    def _compiled(
        self,
        gm: fx.GraphModule,
        example_inputs: Sequence,
        tell: Tell,
        written: Callable[[], fx.Graph],
    ) -> Compiled:
        """The graph with its regions fused, as it is to run, its report, and the inputs that must not share memory.

        tell: gets the report before anything runs. written: gives the graph as the user wrote it, if that is needed.
        """
        inputs = [n.name for n in gm.graph.nodes if n.op == "placeholder"]
        separate: InputPairs = set()
        with stage("rewriting"):
            report = rewrite_module(gm, self.options, separate_inputs=separate)
        if self.kept is not None:
            self.kept.append(report)
        tell(report)
        own = self.mode or self.options.inner_options
        if self.options.inner == "eager":
            run = without_compiler(gm)
        elif not own and leaves_nothing_to_compile(gm):
            with stage("kernels ahead"):
                compile_ahead(gm)
            run = without_compiler(gm)
        else:
            carries = without_compiler(fx.GraphModule(gm, deepcopy(gm.graph)))
            with stage("Inductor"):
                run = _unless_dual(_inductor(gm, example_inputs, self.options, self.mode), carries)
            if any(map(_has_own_class, example_inputs)):
                run = _without_classes(run)
        places = [(inputs.index(one.name), inputs.index(other.name)) for one, other in separate]
        if places:
            run = _unless_shared(run, without_compiler(fx.GraphModule(gm, written())), places)
        return run, report, separate


def _or_fused(
    make: Callable[[fx.GraphModule, Tell], Compiled], gm: fx.GraphModule, tell: Tell, written: Callable[[], fx.Graph]
) -> Compiled:
    """What is made of a graph; with all regions fused, if Inductor fails where some were left to it."""
    told: list[Report] = []

    def tell_and_keep(report: Report) -> None:
        told.append(report)
        tell(report)

    try:
        return make(gm, tell_and_keep)
    except Exception as error:
        if not any(refused.code == messages.MEASURED_SLOWER.code for report in told for refused in report.refusals):
            raise
        log.warning("onepass: Inductor failed on calls that were left to it; they are fused: %s", one_line(error))
    before = library_choice.LEAVES.set(False)
    try:
        return make(fx.GraphModule(gm, written()), tell)
    finally:
        library_choice.LEAVES.reset(before)


def _known(mode: str | None) -> str | None:
    """The mode for Inductor; None for its default. Raises OptionError for an unknown mode."""
    if mode in (None, "default"):
        return None
    try:
        torch._inductor.list_mode_options(mode)
    except RuntimeError as error:
        raise OptionError(str(error)) from error
    return mode


def _unless_dual(run, carries):
    """A function that runs `carries`, as eager, if an argument has a tangent: Inductor's code would drop it."""

    def call(*args):
        if forward_ad._current_level >= 0 and any(map(has_tangent, args)):
            return carries(*args)
        return run(*args)

    return call


def _has_own_class(value: object) -> bool:
    """Whether this is an instance of a subclass of torch.Tensor that Dynamo traces through, other than a parameter."""
    if not isinstance(value, torch.Tensor) or isinstance(value, torch.nn.Parameter):
        return False
    ordinary = torch._C._disabled_torch_dispatch_impl
    return type(value) is not torch.Tensor and type(value).__torch_dispatch__ is ordinary


def _without_classes(run):
    """A function that runs on plain tensors in place of subclasses of torch.Tensor.

    In the first call of a graph, torch checks custom operations, and that check raises for subclasses. Dynamo gives the
    results their classes again.
    """

    def call(*args):
        return run(*(x.as_subclass(torch.Tensor) if _has_own_class(x) else x for x in args))

    return call


def _unless_shared(run, original, places: list[tuple[int, int]]):
    """A function that runs the original if two arguments share memory of which one is written and the other read.

    places: the pairs of numbers of such arguments.
    """
    memory = lambda x: x.untyped_storage().data_ptr()

    def call(*args):
        shared = any(memory(args[one]) == memory(args[other]) for one, other in places)
        if not shared:
            return run(*args)
        falls_back("two arguments share memory, of which one is written and the other read")
        return original(*args)

    return call


def rewrite_module(
    gm: fx.GraphModule,
    options: Options,
    dry: bool = False,
    separate_inputs: InputPairs | None = None,
    derivatives: frozenset[str] = frozenset(),
) -> Report:
    """Replaces regions of a Dynamo graph in place and recompiles it; `dry` only reports. Raises only if strict.

    separate_inputs: gets the pairs of inputs that must not share memory. derivatives: what a dry run reports in full.
    """
    from ..graph_passes.pipeline import rewrite
    from .wrappers import left_as_written

    report = left_as_written(options.inner_options) if options.inner == "inductor" else None
    if report is None:
        separate = set() if dry else separate_inputs
        report = rewrite(gm.graph, options, dry, sources=dry, separate_inputs=separate, derivatives=derivatives)
    if report.regions and not dry:
        gm.recompile()
    return with_break(report, gm)


def _inductor(gm, example_inputs, options: Options, mode):
    from torch._inductor.compile_fx import compile_fx

    from ..graph_passes.reduced_dims import with_other_dims

    with stage("kernels ahead"):
        compile_ahead(gm)
    patches = dict(options.inner_options)
    if mode:
        patches = {**torch._inductor.list_mode_options(mode), **patches}
    patches = with_other_dims(gm, patches)
    dual = forward_ad._current_level >= 0  # of the first call: the code is for calls without tangents
    with forward_ad._set_fwd_grad_enabled(False) if dual else nullcontext():
        return compile_fx(gm, example_inputs, config_patches=patches or None)


class Recorder:
    """A backend that collects the reports of a function's graphs, while the function runs as written."""

    def __init__(self, options: Options, derivatives: frozenset[str] = frozenset()):
        self.options, self.derivatives = options, derivatives
        self.reports: list[Report] = []

    def __call__(self, gm: fx.GraphModule, example_inputs, **_):
        place = len(self.reports)
        seconds: Seconds = {}
        with stage("rewriting", seconds):
            report = rewrite_module(gm, self.options, dry=True, derivatives=self.derivatives)
        self.reports.append(replace(report, seconds=seconds))
        if not (names := wanted(self.reports[place])):
            return gm.forward
        take, forward = taking(gm, names), gm.forward

        def run(*arguments):
            self.reports[place] = with_tensors(self.reports[place], take(arguments))
            return forward(*arguments)

        return run
