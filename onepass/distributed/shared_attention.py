"""An attention of one kind of tensors on several ranks: its graphs, forward, and backward.

Invariant: forward gives a rank's queries their attention to the keys of all ranks; backward gives the whole gradients
of this rank's queries and keys. Example: `SharedAttention.of(function, kinds, sides, options)` for one set of shapes.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import fx
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.autograd.function import once_differentiable

from .. import messages
from ..compiler.options import Options
from ..errors import Refusal
from ..graph.nodes import where_of
from ..graph.trace import from_aten_graph
from ..states import State
from ..translate.translate import Captured, translate
from .attention_cut import AttentionCut, Traced, cuts, rest_graph, traced
from .merge_law import require_merge, require_rows
from .part_state import PartState
from .schedules import AllGatherSchedule, Gradients, Keys, RingSchedule, Shards

LENGTHS = {"queries": 509, "keys": 641}  # for the proof: long, and no other size is likely to be one of them


@dataclass(frozen=True)
class Sides:
    """Which tensors are shared out, by their numbers, and along which axis, from 0."""

    queries: Mapping[int, int]
    keys: Mapping[int, int]

    def with_keys(self, tensors: Sequence[torch.Tensor], keys: Keys) -> list[torch.Tensor]:
        """The tensors with other keys."""
        found = list(tensors)
        for number, x in zip(self.keys, keys, strict=True):
            found[number] = x
        return found

    def with_lengths(self, tensors: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        """Empty tensors with the lengths of the proof."""
        found = list(tensors)
        for axes, length in ((self.queries, LENGTHS["queries"]), (self.keys, LENGTHS["keys"])):
            for number, axis in axes.items():
                x = tensors[number]
                shape = [*x.shape[:axis], length, *x.shape[axis + 1 :]]
                found[number] = x.new_empty(shape).requires_grad_(x.requires_grad)
        return found


Call = Callable[..., torch.Tensor]  # of tensors


@dataclass(frozen=True)
class Proved:
    """A function for which the merge law is proved. place: that of the cut, among the places to cut.

    axis: of the queries in the result.
    """

    place: int
    axis: int


def proved(function: Call, tensors: Sequence[torch.Tensor], sides: Sides, names: Sequence[str] = ()) -> Proved:
    """Where the function may be cut. names: of the tensors. Raises Refusal if the law is not proved for it."""
    try:
        found = _trace(function, sides.with_lengths(_fakes(tensors)))
    except (RuntimeError, AssertionError) as error:  # such as a bias of one length, or a tensor that is no argument
        reason = f"it does not run on its arguments with other numbers of queries and keys ({_first_line(error)})"
        raise Refusal(messages.RANKS_NO_LAW, reason=reason) from error
    refused: Refusal | None = None
    for place, cut in enumerate(cuts(found, [*sides.keys])):
        try:
            require_merge(*_terms(found, cut.mean, sides.keys, names), where_of(cut.mean))
        except Refusal as reason:
            refused = refused or reason
            continue
        require_layout(cut)
        return Proved(place, require_rows(*_terms(found, found.result, sides.queries, names)))
    raise refused or Refusal(messages.RANKS_NO_LAW, where_of(found.result), reason="keys are read behind the softmax")


def _first_line(error: Exception) -> str:
    return (str(error).splitlines() or [type(error).__name__])[0]


def require_layout(cut: AttentionCut) -> None:
    """Raises Refusal unless the values' rows are the scores' rows. Lengths differ from all other sizes here."""
    scores, mean = cut.softmax.meta["val"].shape, cut.mean.meta["val"].shape
    if cut.dim % len(scores) != len(scores) - 1 or scores[:-1] != mean[:-1]:
        raise Refusal(messages.RANKS_LAYOUT, where_of(cut.mean))


def _terms(
    found: Traced, result: fx.Node, axes: Mapping[int, int], names: Sequence[str]
) -> tuple[Captured, dict[str, int]]:
    """A result as terms, and the axes by the names that tensors have there."""
    calls = [node for node in found.graph.nodes if node.op not in ("placeholder", "output")]
    program = from_aten_graph(calls, found.inputs, [result], names or None)
    return translate(program), {program.inputs[number].name: axis for number, axis in axes.items()}


def _fakes(tensors: Sequence[torch.Tensor]) -> list[torch.Tensor]:
    mode = FakeTensorMode()
    with torch.no_grad():
        return [mode.from_tensor(x.detach()).requires_grad_(x.requires_grad) for x in tensors]


def _trace(function: Call, fakes: Sequence[torch.Tensor]) -> Traced:
    with torch.enable_grad():
        return traced(function, fakes)


@dataclass
class SharedAttention:
    """An attention for tensors of one kind. parts: for each number of keys that are there at once, who computes them.

    Lengths of keys may differ from rank to rank, so parts are made as they come.
    """

    function: Call
    sides: Sides
    options: Options
    law: Proved
    parts: dict[tuple[int, ...], PartState] = field(default_factory=dict)
    rest: Call | None = None

    def part(self, tensors: Sequence[torch.Tensor]) -> PartState:
        """Who computes the state of these keys."""
        kind = tuple(tensors[number].shape[axis] for number, axis in self.sides.keys.items())
        if kind not in self.parts:
            with torch.enable_grad():
                self.parts[kind] = PartState(self._cut(tensors), self.options)
        return self.parts[kind]

    def after(self, tensors: Sequence[torch.Tensor], merged: torch.Tensor) -> torch.Tensor:
        """The result, from the merged values."""
        if self.rest is None:
            self.rest = rest_graph(self._cut(tensors))
        return self.rest(*tensors, merged)

    def _cut(self, tensors: Sequence[torch.Tensor]) -> AttentionCut:
        found = _trace(self.function, _fakes(tensors))
        return list(cuts(found, [*self.sides.keys]))[self.law.place]


@dataclass(frozen=True)
class Run:
    """One call: the attention, how keys come by, and the lengths of their shards."""

    attention: SharedAttention
    schedule: RingSchedule | AllGatherSchedule
    shards: Shards

    def __call__(self, tensors: Sequence[torch.Tensor]) -> torch.Tensor:
        """The rank's share of the result."""
        return self.attention.after(tensors, _Merged.apply(self, *tensors))

    def forward(self, tensors: Sequence[torch.Tensor]) -> State:
        """The state of all keys, in the precision of its logarithms."""

        def state_of(keys: Keys) -> State:
            given = self.attention.sides.with_keys(tensors, keys)
            return self.attention.part(given).state(given)

        return self.schedule.forward(self.shards, self._own(tensors), state_of)

    def backward(
        self, tensors: Sequence[torch.Tensor], needed: Sequence[bool], whole: State, grad: torch.Tensor
    ) -> Gradients:
        """The gradients of the needed tensors."""
        numbers = [*self.attention.sides.keys]

        def gradients_of(keys: Keys) -> tuple[Gradients, Gradients]:
            given = self.attention.sides.with_keys(tensors, keys)
            found = self.attention.part(given).gradients(given, needed, whole, grad)
            return [None if k in numbers else x for k, x in enumerate(found)], [found[k] for k in numbers]

        others, own = self.schedule.backward(self.shards, self._own(tensors), gradients_of)
        found = self.attention.sides.with_keys(others, own)
        return [None if g is None else g.to(t.dtype) for g, t in zip(found, tensors, strict=True)]

    def _own(self, tensors: Sequence[torch.Tensor]) -> Keys:
        """What is sent. A tensor without gradients stays the same object: maps of tiles are kept by objects."""
        own = (tensors[number] for number in self.attention.sides.keys)
        return [(x.detach() if x.requires_grad else x).contiguous() for x in own]


class _Merged(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, run: Run, *tensors: torch.Tensor) -> torch.Tensor:
        whole = run.forward(tensors)
        output = whole.output.to(run.attention.part(tensors).dtype)
        if any(ctx.needs_input_grad):
            ctx.run = run
            ctx.save_for_backward(output, whole.logsumexp, *tensors)
        return output

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        output, total, *tensors = ctx.saved_tensors
        needed = ctx.needs_input_grad[1:]
        return None, *ctx.run.backward(tensors, needed, State(output, total), grad.contiguous())
