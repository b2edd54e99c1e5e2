"""An attention of one kind of tensors on several ranks: its graphs, forward, and backward.

Invariant: forward gives a rank's queries their attention to the keys of all ranks; backward gives the whole gradients
of this rank's queries and keys. Example: `SharedAttention(function, sides, options, proved(function, tensors, sides))`
is one for the tensors' shapes, and a `Run` is a call of it.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import fx
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.autograd.function import once_differentiable

from .. import messages
from ..compiler.options import Options
from ..egraph.derivation.certificate import Derivation
from ..egraph.terms.traversal import all_dims, reduces, subterms
from ..errors import Refusal
from ..graph.nodes import where_of
from ..graph.trace import from_aten_graph
from ..states import State
from ..translate.translate import Captured, translate
from .exchange import Remembered, Steps, keep_newest
from .laws.attention_cut import (
    AttentionCut,
    Traced,
    apart_from_sinks,
    cuts,
    may_hide,
    reads_weights_once,
    rest_graph,
    sinks_graph,
    traced,
)
from .laws.head_law import Heads, independent_heads, same_at_other_sizes
from .laws.merge_law import require_merge, require_rows
from .part_state import PartState, sink_gradients, sink_state
from .pieces import Found, JoinedGradients, JoinedHeads, Pieces, interleaved
from .schedules import Gradients, Keys, Shards, Sum, backward, forward, hidden

# For the proof, of queries and keys: long, and no other size is likely to be one of them. Terms that are the same at
# both are those of any length.
LENGTHS, OTHER_LENGTHS = (509, 641), (521, 653)
MOST_GRAPHS = 64  # that are kept of one function: each length of a part has its own
OUTSIDE = "allow_non_fake_inputs"  # in torch's error for a tensor that is no argument
CANNOT_RUN = (RuntimeError, AssertionError, ValueError, IndexError, ZeroDivisionError)  # at sizes it was not made for


@dataclass(frozen=True)
class Sides:
    """Which tensors are shared out, by their numbers, and along which axis, from 0."""

    queries: Mapping[int, int]
    keys: Mapping[int, int]

    def lengths(self, tensors: Sequence[torch.Tensor]) -> tuple[int, int]:
        """The numbers of queries and keys."""
        queries, keys = (next(tensors[k].shape[a] for k, a in axes.items()) for axes in (self.queries, self.keys))
        return queries, keys

    def with_keys(self, tensors: Sequence[torch.Tensor], keys: Keys) -> list[torch.Tensor]:
        """The tensors with other keys."""
        found = list(tensors)
        for number, x in zip(self.keys, keys, strict=True):
            found[number] = x
        return found

    def with_lengths(
        self, tensors: Sequence[torch.Tensor], lengths: tuple[int, int] = LENGTHS
    ) -> list[torch.Tensor]:
        """Empty tensors with the lengths of the proof, of queries and keys."""
        found = list(tensors)
        for axes, length in zip((self.queries, self.keys), lengths, strict=True):
            for number, axis in axes.items():
                x = tensors[number]
                shape = [*x.shape[:axis], length, *x.shape[axis + 1 :]]
                found[number] = x.new_empty(shape).requires_grad_(x.requires_grad)
        return found


Call = Callable[..., torch.Tensor]  # of tensors


@dataclass(frozen=True)
class Proved:
    """A function for which the merge law is proved. place: that of the cut, among the places to cut.

    axis: of the queries in the result. form: what was proved, the result as terms, with the lengths of the proof.
    chain: from the weighted values to the same over ranks, by laws. names: of the tensors.
    """

    place: int
    axis: int
    form: Captured
    chain: Derivation
    names: Sequence[str] = ()


def proved(function: Call, tensors: Sequence[torch.Tensor], sides: Sides, names: Sequence[str] = ()) -> Proved:
    """Where the function may be cut. names: of the tensors. Raises Refusal if the law is not proved for it."""
    given, hint = _fakes(tensors), _unnamed(tensors, sides, names)
    found = _of_lengths(function, sides.with_lengths(given), hint)
    refused: Refusal | None = None
    apart = apart_from_sinks(found, [*sides.keys])
    for place, cut in enumerate(cuts(apart, [*sides.keys])):
        try:
            chain = require_merge(*_terms(apart, cut.mean, sides.keys, names), where_of(cut.mean))
            require_once(cut)
            require_layout(cut)  # under autocast, a product of matrices comes before that of all axes
        except Refusal as reason:
            refused = refused or reason
            continue
        rows, queries = _terms(found, found.result, sides.queries, names)
        axis = require_rows(rows, queries)
        _require_no_count(rows, sides, where_of(found.result))
        other = _of_lengths(function, sides.with_lengths(given, OTHER_LENGTHS), hint)
        _require_form(rows, _terms(other, other.result, {}, names)[0], OTHER_LENGTHS, where_of(found.result))
        return Proved(place, axis, rows, chain, names)
    raise refused or Refusal(messages.RANKS_NO_LAW, where_of(found.result), reason="keys are read behind the softmax")


def _first_line(error: Exception) -> str:
    return (str(error).splitlines() or [type(error).__name__])[0]


def _unnamed(tensors: Sequence[torch.Tensor], sides: Sides, names: Sequence[str]) -> str:
    """Which arguments have an axis as long as that of queries or keys, and are not named for it."""
    axes = {**sides.queries, **sides.keys}
    lengths = {tensors[number].shape[axis] for number, axis in axes.items()} - {1}
    found = [n for k, n in enumerate(names) if k not in axes and lengths.intersection(tensors[k].shape)]
    told = f"{', '.join(found)} {'has' if len(found) == 1 else 'have'} an axis of that length"
    return f"; {told}: name it in queries= or keys= if it belongs to them" if found else ""


def _of_lengths(function: Call, fakes: Sequence[torch.Tensor], hint: str) -> Traced:
    """The graph. Raises Refusal where it cannot run: for a bias of one length, or a tensor that is no argument."""
    try:
        return _trace(function, fakes)
    except CANNOT_RUN as error:
        reason = f"it does not run on its arguments with other numbers of queries and keys ({_first_line(error)}){hint}"
        if OUTSIDE in str(error):
            reason = "it reads a tensor from outside: make it an argument, or a buffer of a module"
        raise Refusal(messages.RANKS_NO_LAW, reason=reason) from error


def _require_no_count(captured: Captured, sides: Sides, where: str) -> None:
    """Raises Refusal for a reduction over queries or keys that reads none of them: it counts those of a part.

    Example: torch.arange(k.shape[-2]).max().
    """
    axes = {captured.inputs[number].name: axis for number, axis in {**sides.queries, **sides.keys}.items()}
    for total in reduces(captured.term):
        dim = total.attrs[1]
        loads = (n for n in subterms(total.args[0]) if n.op == "load" and n.attrs[0].name in axes)
        if int(dim.size) in LENGTHS and not any(dim in n.args[axes[n.attrs[0].name]].dims for n in loads):
            raise Refusal(messages.RANKS_NO_LAW, where, reason="it counts queries or keys, and a part has fewer")


def _require_form(one: Captured, other: Captured, others: tuple[int, ...], where: str) -> None:
    """Raises Refusal unless the terms are the same with other numbers of queries and keys."""
    lengths = dict(zip(LENGTHS, others, strict=True))
    sizes = {dim: lengths[n] for dim in all_dims(one.term) if (n := int(dim.size)) in lengths}
    if not same_at_other_sizes(one, other, sizes):
        reason = "it is another function for another number of queries or keys, and a part has fewer"
        raise Refusal(messages.RANKS_NO_LAW, where, reason=reason)


def proved_heads(
    function: Call, tensors: Sequence[torch.Tensor], sides: Sides, names: Sequence[str], parts: int, place: int
) -> Heads:
    """The axes along which the attention may be cut into equal parts. place: of the cut, as it was proved.

    Raises Refusal if it is proved of no axis that it is computed element by element.
    """
    given = sides.with_lengths(_fakes(tensors))
    try:
        whole, queries = _weighted_values(function, given, sides, names, place)
        rows = require_rows(whole, queries)
        for heads in independent_heads(whole, sides.queries, sides.keys, parts):
            fewer, _ = _weighted_values(function, heads.cut(given, 0, parts), sides, names, place)
            dim = whole.order[heads.axis]
            if same_at_other_sizes(whole, fewer, {dim: int(dim.size) // parts}):
                return replace(heads, rows=rows, form=fewer)
    except CANNOT_RUN as error:
        reason = f"the function does not run at other sizes ({_first_line(error)})"
        raise Refusal(messages.RANKS_NO_HEADS, reason=reason) from error
    raise Refusal(messages.RANKS_NO_HEADS, reason="with fewer of them it is another function")


def _weighted_values(
    function: Call, fakes: Sequence[torch.Tensor], sides: Sides, names: Sequence[str], place: int
) -> tuple[Captured, dict[str, int]]:
    """What is merged, as terms, with its sinks; and the axes of queries. place: of the cut."""
    found, _, mean = _cut_at(function, fakes, sides, place)
    return _terms(found, mean, sides.queries, names)


def _cut_at(
    function: Call, fakes: Sequence[torch.Tensor], sides: Sides, place: int
) -> tuple[Traced, AttentionCut, fx.Node]:
    """The graph; its cut, apart from sinks; and the weighted values in the graph, where sinks are beside the keys.

    place: of the cut, or the last one if there are fewer: that of another function, which is refused by its terms.
    """
    found = _trace(function, fakes)
    apart = apart_from_sinks(found, [*sides.keys])
    places = list(cuts(apart, [*sides.keys]))
    cut = places[min(place, len(places) - 1)]
    return found, cut, apart.written.get(cut.mean, cut.mean)


def require_once(cut: AttentionCut) -> None:
    """Raises Refusal unless the weighted values are a sum of weights of the softmax, each times a value."""
    if not reads_weights_once(cut):
        reason = "what is made of the softmax's weights is no sum of them, each times a value"
        raise Refusal(messages.RANKS_NO_LAW, where_of(cut.mean), reason=reason)


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
    """An attention for tensors of one kind. form: for a piece, the terms of its weighted values, as they were proved;
    None for the whole, whose result was proved. parts: for each number of keys, who computes their state. ends: the
    graphs of `beside_keys`, from its first call on. hides: whether scores may be as low as a mask's number.

    Lengths of keys may differ from rank to rank, so parts are made as they come.
    """

    function: Call
    sides: Sides
    options: Options
    law: Proved
    form: Captured | None = None
    parts: OrderedDict[tuple[int, ...], PartState] = field(default_factory=OrderedDict)
    ends: tuple[Call, Call | None] | None = None
    hides: bool = False

    def part(self, tensors: Sequence[torch.Tensor]) -> PartState:
        """Who computes the state of these keys."""
        kind = tuple(tensors[number].shape[axis] for number, axis in self.sides.keys.items())
        if kind not in self.parts:
            with torch.enable_grad():
                self.parts[kind] = PartState(self._cut(_fakes(tensors)), self.options)
        self.parts.move_to_end(kind)
        keep_newest(self.parts, MOST_GRAPHS)
        return self.parts[kind]

    def beside_keys(self, tensors: Sequence[torch.Tensor]) -> tuple[Call, Call | None]:
        """From tensors and merged values the result; from tensors the scores of sinks, if there are any."""
        if self.ends is None:
            cut = self._cut(_fakes(tensors))
            self.ends, self.hides = (rest_graph(cut), sinks_graph(cut)), may_hide(cut)
        return self.ends

    def require_form(self, tensors: Sequence[torch.Tensor], keys: Collection[int]) -> None:
        """Raises Refusal unless the graphs for these numbers of keys, too, are the one that was proved."""
        self.beside_keys(tensors)
        given, (queries, own) = _fakes(tensors), self.sides.lengths(tensors)
        for count in {*keys} - {own}:
            self._cut(self.sides.with_lengths(given, (queries, count)))

    def _cut(self, fakes: Sequence[torch.Tensor]) -> AttentionCut:
        """The graph for such tensors. Raises Refusal if it is not the one that was proved, as by `if` of a length."""
        found, cut, mean = _cut_at(self.function, fakes, self.sides, self.law.place)
        form, result = (self.law.form, found.result) if self.form is None else (self.form, mean)
        lengths = self.sides.lengths(fakes)
        if min(lengths) > 1 and all(x.numel() for x in fakes):  # a sum over one key or none has other terms
            terms, _ = _terms(found, result, {}, self.law.names)
            _require_form(form, terms, lengths, where_of(result))
        return cut


@dataclass(frozen=True)
class Run:
    """One call. attention: for the tensors that this rank gives. of_a_piece: for those of one piece, after the exchange
    of heads; the same one if all is one piece. shards: how keys come by. integers: numbers of the tensors that ranks
    compared, which are sent once."""

    attention: SharedAttention
    of_a_piece: SharedAttention
    shards: Shards
    pieces: Pieces
    integers: Collection[int] = ()

    def __call__(self, tensors: Sequence[torch.Tensor]) -> torch.Tensor:
        """The rank's share of the result."""
        rest, _ = self.attention.beside_keys(tensors)
        merged = _Merged.apply(self, *tensors)
        with torch._C._DisableAutocast():  # a graph that was traced under autocast has its casts
            return rest(*tensors, merged)

    def forward(self, tensors: Sequence[torch.Tensor]) -> State:
        """The state of all keys and of sinks. Its output has the dtype that the attention gives."""
        axis = 0 if self.pieces.heads is None else self.pieces.heads.axis
        joined = JoinedHeads(axis), JoinedHeads(axis)

        def join(piece: int, found: Found) -> None:
            for part, each in zip(found, joined, strict=True):
                assert part is not None
                each.put(part, piece, self.pieces.count, part.dtype)

        interleaved((self._state(tensors, piece) for piece in range(self.pieces.count)), join)
        output, total = (each.whole for each in joined)
        assert output is not None and total is not None
        return State(output, total)

    def _state(self, tensors: Sequence[torch.Tensor], piece: int) -> Steps[Found]:
        """The state of all keys and sinks, of a piece."""
        given, exchange = self.pieces.of_tensors(tensors, piece), self.pieces.exchange
        if exchange is not None:
            given, _ = yield from exchange.there(given, self._remembered(piece))
        given = _with_gradients_of(tensors, given)

        def state_of(keys: Keys) -> State:
            own = self._sides.with_keys(given, keys)
            return self.of_a_piece.part(own).state(own)

        _, sinks = self.of_a_piece.beside_keys(given)
        first = None if sinks is None else sink_state(sinks, given)
        dtype = self.of_a_piece.part(given).dtype
        found: Sequence[torch.Tensor] = forward(self._shards(piece), self._own(given), state_of, first, dtype)
        return found if exchange is None else (yield from exchange.home(found))

    def backward(
        self, tensors: Sequence[torch.Tensor], needed: Sequence[bool], whole: State, grad: torch.Tensor
    ) -> Gradients:
        """The gradients of the needed tensors."""
        joined, outputs = JoinedGradients(self.pieces, tensors), (*whole, grad)
        pieces = (self._gradients(tensors, needed, outputs, piece) for piece in range(self.pieces.count))
        interleaved(pieces, joined.put)
        return joined.all()

    def _gradients(
        self, tensors: Sequence[torch.Tensor], needed: Sequence[bool], outputs: Sequence[torch.Tensor], piece: int
    ) -> Steps[Found]:
        """The gradients of a piece. outputs: the state of all keys, and the cotangent."""
        given, exchange = self.pieces.of_tensors(tensors, piece), self.pieces.exchange
        beside = [self.pieces.of_output(x, piece) for x in outputs]
        if exchange is not None:
            given, beside = yield from exchange.there(given, self._remembered(piece), beside)
        given = _with_gradients_of(tensors, given)
        output, total, grad = beside
        whole = State(output, total)
        if self.of_a_piece.hides:  # a weight of exp(s - L) is 1 there instead of one over the number of keys
            count = sum(map(sum, self.shards.lengths))
            grad = torch.where(hidden(total), (grad / max(1, count)).to(grad.dtype), grad)

        def gradients_of(keys: Keys) -> tuple[Gradients, Gradients]:
            own = self._sides.with_keys(given, keys)
            found = self.of_a_piece.part(own).gradients(own, needed, whole, grad)
            found = _filled(found, own, needed, self._sides.keys)
            others = [None if k in self._sides.keys else x for k, x in enumerate(found)]
            return others, [found[k] for k in self._sides.keys]

        rest, (_, sinks) = Sum(), self.of_a_piece.beside_keys(given)
        if sinks is not None:
            rest.add(sink_gradients(sinks, given, needed, whole, grad))
        of_keys = yield from backward(self._shards(piece), self._own(given), gradients_of, rest)
        found: Gradients = self._sides.with_keys(rest.total, of_keys)
        if exchange is None:
            return found
        found = _filled(found, given, needed, exchange.moves)
        rounded = [None if g is None else g.to(t.dtype) for g, t in zip(found, tensors, strict=True)]
        return (yield from exchange.gradients_home(rounded))

    @property
    def _sides(self) -> Sides:
        return self.attention.sides

    def _own(self, tensors: Sequence[torch.Tensor]) -> Keys:
        """What is sent. A tensor without gradients stays the same object: maps of tiles are kept by objects."""
        own = (tensors[number] for number in self._sides.keys)
        return [(x.detach() if x.requires_grad else x).contiguous() for x in own]

    def _remembered(self, piece: int) -> Remembered:
        return self.shards.remembered.of(self.integers, self.pieces.axes, piece)

    def _shards(self, piece: int) -> Shards:
        """Those of a piece, whose tensors are numbered among those of keys."""
        of_keys = lambda numbers: [k for k, number in enumerate(self._sides.keys) if number in numbers]
        return self.shards.of_piece(of_keys(self.integers), of_keys(self.pieces.axes), piece)


def _with_gradients_of(tensors: Sequence[torch.Tensor], parts: Sequence[torch.Tensor]) -> list[torch.Tensor]:
    """The parts, said to have gradients as the tensors have; those that have none stay the same objects."""
    return [p.detach().requires_grad_() if t.requires_grad else p for t, p in zip(tensors, parts, strict=True)]


def _filled(
    found: Gradients, tensors: Sequence[torch.Tensor], needed: Sequence[bool], sent: Collection[int]
) -> Gradients:
    """The gradients, with zeros for those that are sent and that a rank did not find: others wait for them.

    Without elements, for example, a rank finds none of what is only compared with a number, where others find zeros.
    """
    none = {k for k in sent if needed[k] and found[k] is None}
    return [torch.zeros_like(t) if k in none else g for k, (g, t) in enumerate(zip(found, tensors, strict=True))]


class _Merged(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, run: Run, *tensors: torch.Tensor) -> torch.Tensor:
        whole = run.forward(tensors)
        if any(ctx.needs_input_grad):
            ctx.run = run
            ctx.save_for_backward(*whole, *tensors)
        return whole.output

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        output, total, *tensors = ctx.saved_tensors
        needed = ctx.needs_input_grad[1:]
        return None, *ctx.run.backward(tensors, needed, State(output, total), grad.contiguous())
