"""What a rank computes of some keys: their state by the derived kernels, and gradients for a given state of all keys.

The backward of a region reads the logarithm of its sums and its result. Given those of all keys instead of its own, it
gives the part of some keys in the gradients of all: dS = exp(s - L) · (g · v - g · o). Invariant: where no derived
backward can be given them, autograd differentiates the weights exp(s - L) as written, to the same mathematics.
Example: `PartState(cut, options).state(tensors)` is a State of the keys among the tensors.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from math import inf
from typing import Any

import torch
from torch import fx

from ..compiler.options import Options
from ..egraph.forks import lock
from ..errors import OnepassError
from ..graph.nodes import value_of_node
from ..graph_passes.pipeline import rewrite
from ..lowering.executors import TILED
from ..process_state import registered
from ..report.publish import publish
from ..report.records import Report
from ..runtime import executors
from ..runtime.region_call import RegionCall, Tensors, unfit
from ..runtime.runner import ExecutorError
from ..runtime.training_runners import BackwardRunner
from ..states import State
from ..training.plans import Training, training
from .laws.attention_cut import AttentionCut, state_graph, weighted_graph

_LOCK = lock()
_RUNNERS: dict[tuple[str, tuple[bool, ...], tuple[bool, ...]], GivenRunner] = registered({}, "runners", _LOCK)


Call = Callable[..., torch.Tensor]  # of the tensors


class NotGiven(OnepassError):
    """A region whose backward cannot read another state than its own; the message says why."""


class PartState:
    """The state of some keys and its gradients, for tensors of one kind."""

    def __init__(self, cut: AttentionCut, options: Options):
        self.module = state_graph(cut)
        self.dtype: torch.dtype = value_of_node(cut.mean).dtype
        self._weighted = weighted_graph(cut)
        self.report: Report = rewrite(self.module.graph, options)
        if all(value_of_node(x).numel() for x in cut.traced.inputs):  # of an empty part there is nothing to fuse
            publish(self.report, options.required)
        self.module.recompile()
        self._given: fx.GraphModule | None = None
        try:
            self._given = _given_graph(self.module)
            self.why_not = ""
        except NotGiven as reason:
            self.why_not = str(reason)

    @torch.no_grad()
    def state(self, tensors: Sequence[torch.Tensor]) -> State:
        """The state of the keys among the tensors, which the placeholders take in order."""
        with torch._C._DisableAutocast():
            return State(*self.module(*tensors))

    def gradients(
        self, tensors: Sequence[torch.Tensor], needed: Sequence[bool], whole: State, cotangent: torch.Tensor
    ) -> list[torch.Tensor | None]:
        """For each needed tensor its gradient, as far as these keys are concerned; `whole` is the state of all keys."""
        total = _finite(whole)
        if self._given is not None:
            try:
                return _differentiated(
                    lambda own: [self._given(*own, whole.output, total)], tensors, needed, [cotangent]
                )
            except (NotGiven, ExecutorError) as reason:
                self._given, self.why_not = None, str(reason)
        run = lambda own: self._weighted(*own, total)
        return _differentiated(run, tensors, needed, [cotangent, _of_share(whole, cotangent)])


def sink_state(scores_of: Call, tensors: Sequence[torch.Tensor]) -> State:
    """The state of scores without keys. scores_of: those [..., queries, sinks], from the tensors."""
    with torch._C._DisableAutocast():
        scores = scores_of(*tensors)
    total = scores.to(torch.promote_types(scores.dtype, torch.float32)).logsumexp(-1, keepdim=True)
    return State(torch.zeros_like(total), total)


def sink_gradients(
    scores_of: Call, tensors: Sequence[torch.Tensor], needed: Sequence[bool], whole: State, cotangent: torch.Tensor
) -> list[torch.Tensor | None]:
    """For each needed tensor its gradient, as far as sinks are concerned; `whole` is the state of keys and sinks."""
    run = lambda own: [torch.exp(scores_of(*own) - _finite(whole)).sum(-1, keepdim=True)]
    return _differentiated(run, tensors, needed, [_of_share(whole, cotangent)])


def _finite(whole: State) -> torch.Tensor:
    """The logarithms; 0 for a row without keys, whose weights are 0."""
    return torch.where(whole.logsumexp == -inf, 0.0, whole.logsumexp)


def _of_share(whole: State, cotangent: torch.Tensor) -> torch.Tensor:
    """The cotangent of a share in the sum of the weights: -g · o."""
    wide = whole.logsumexp.dtype
    return -(cotangent.to(wide) * whole.output.to(wide)).sum(-1, keepdim=True)


def _differentiated(
    run: Callable[[list[torch.Tensor]], Sequence[torch.Tensor]],
    tensors: Sequence[torch.Tensor],
    needed: Sequence[bool],
    cotangents: Sequence[torch.Tensor],
) -> list[torch.Tensor | None]:
    with torch.enable_grad(), torch._C._DisableAutocast():
        own = [
            t.detach().requires_grad_(n) if t.requires_grad or n else t for t, n in zip(tensors, needed, strict=True)
        ]
        pairs = [(r, g) for r, g in zip(run(own), cotangents, strict=True) if r.requires_grad]
        wanted = [t for t, n in zip(own, needed, strict=True) if n]
        results, given = zip(*pairs, strict=True) if pairs else ((), ())
        found = iter(torch.autograd.grad(results, wanted, given, allow_unused=True) if pairs else [None] * len(wanted))
    return [next(found) if n else None for n in needed]


# A region's backward with a given state -------------------------------------------------------------------------------


def _given_graph(module: fx.GraphModule) -> fx.GraphModule:
    """From the inputs, and output and logarithms of all keys, to that output, with the region's own backward.

    Raises NotGiven unless one region computes both results.
    """
    calls = [n for n in module.graph.nodes if n.target is torch.ops.onepass.region.default]
    if len(calls) != 1:
        raise NotGiven(f"{len(calls)} regions make the state" if calls else "no region makes the state")
    graph, copies = fx.Graph(), dict[fx.Node, fx.Node]()
    graph.output(graph.graph_copy(module.graph, copies))
    output = next(iter(graph.find_nodes(op="output")))
    call, places = copies[calls[0]], []
    for result in output.args[0]:
        if result.target is not operator.getitem or result.args[0] is not call:
            raise NotGiven("something follows the region that makes the state")
        places.append(result.args[1])
    with graph.inserting_before(next(n for n in graph.nodes if n.op != "placeholder")):
        whole, total = graph.placeholder("onepass_whole"), graph.placeholder("onepass_total")
    tensors, text, sizes, *_ = call.args
    with graph.inserting_before(call):
        result = graph.call_function(given_region, (text, sizes, tuple(places), whole, total, *tensors))
    output.args = (result,)
    graph.eliminate_dead_code()
    return fx.GraphModule(torch.nn.Module(), graph)


def given_region(text: str, sizes: Sequence[int], places: tuple[int, int], *tensors: torch.Tensor) -> torch.Tensor:
    """The given output, whose gradients are those of a region that has the given logarithms.

    places: of the weighted values and of the logarithms among the region's results. tensors: the output, the
    logarithms, and the region's inputs.
    """
    return _Given.apply(text, tuple(sizes), places, *tensors)


class _Given(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, text: str, sizes: tuple[int, ...], places: tuple[int, int], whole: torch.Tensor, *rest: torch.Tensor
    ) -> torch.Tensor:
        ctx.call = text, sizes, places
        ctx.save_for_backward(whole, *rest)
        return whole.view_as(whole)

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        whole, total, *tensors = ctx.saved_tensors
        text, sizes, places = ctx.call
        needed = tuple(ctx.needs_input_grad[5:])
        found = training(text, needed)
        if isinstance(found, str):
            raise NotGiven(found)
        runner, kept = _runner(found, needed, places, whole, total)
        grads: list[torch.Tensor | None] = [None] * found.results
        grads[places[0]] = grad
        by_need = iter(runner.gradients(grads, tensors, kept, sizes, needed))
        return None, None, None, None, None, *[next(by_need) if n else None for n in needed]


def _runner(
    found: Training, needed: tuple[bool, ...], places: tuple[int, int], whole: torch.Tensor, total: torch.Tensor
) -> tuple[GivenRunner, dict[int, torch.Tensor]]:
    """Who runs the backward for the first result's cotangent, and what it reads instead of what a forward kept."""
    given = tuple(number == places[0] for number in range(found.results))
    made = found.backward(needed, given)
    if made is None:
        raise NotGiven("no backward is planned for the cotangent of the values alone")
    known = {places[0]: whole, places[1]: total}
    kept = {k: _kept(found, k, known, total) for k in made.kept}
    key = made.region.key, needed, given
    with _LOCK:
        if key not in _RUNNERS:
            _RUNNERS[key] = GivenRunner(found, made)
        return _RUNNERS[key], kept


def _kept(found: Training, position: int, known: dict[int, torch.Tensor], total: torch.Tensor) -> torch.Tensor:
    """What a backward reads at a position among the forward's outputs, if all keys are known. Raises NotGiven."""
    if position in known:
        return known[position]
    number = position - found.results
    tensor = found.stores.saved[number].output if number >= 0 else None
    kind = "" if tensor is None else tensor.name.rstrip("0123456789_")
    shape = () if tensor is None else tuple(int(n) for n in tensor.shape)
    if kind not in ("log", "shift") or torch.Size(shape).numel() != total.numel():
        raise NotGiven(f"the backward reads {tensor.name if tensor else 'another result'} of the forward")
    alone = not any(s.output.name.startswith("shift") for s in found.stores.saved)
    read = total if alone or kind == "shift" else torch.zeros_like(total)
    return read.reshape(shape).to(getattr(torch, tensor.dtype))


class GivenRunner(BackwardRunner):
    """A backward that reads a given state. Invariant: no original calls run, as they would compute a state anew."""

    def preference(self, device: torch.device) -> tuple[str, ...]:
        """As for a region, with the tiled executor as the last one."""
        names = tuple(name for name in super().preference(device) if name != executors.ORIGINAL)
        return names if TILED.name in names else (*names, TILED.name)

    def rivals(self, tensors: Tensors, call: RegionCall) -> dict[str, executors.Prepare]:
        """None."""
        return {}

    def order(self, device: torch.device, call: RegionCall) -> dict[str, tuple[str, executors.Prepare]]:
        """As for a region. Raises ExecutorError where the original calls would run."""
        order = super().order(device, call)
        if executors.ORIGINAL in order or unfit(self.found, call):
            raise ExecutorError("no plan runs the backward at these sizes")
        return order

    def _by_original_calls(self, kind: tuple, tensors: Tensors, call: RegionCall) -> list[torch.Tensor]:
        raise ExecutorError(f"no executor runs the backward: {'; '.join(self.declined)}")

    def _expected(self, tensors: Tensors, call: RegionCall) -> list[torch.Tensor]:
        return executors.EXECUTORS[TILED.name](self.found, tensors, call)(tensors)

    def _unvalidated(self, tensors: Tensors, call: RegionCall) -> list[torch.Tensor]:
        return self._expected(tensors, call)
