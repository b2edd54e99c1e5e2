"""Cuts a traced attention where its keys are gone: what makes the state of some keys, and what follows the merge.

Invariant: the cut graphs compute what the traced graph does. Whether states of parts of the keys merge to the state of
all is not decided here but proved on terms, in merge_law.py. Example: `softmax(s, -1) @ v * gate` is cut behind the
product; its state is (softmax(s, -1) @ v, logsumexp(s, -1)), and the gate follows the merge.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from math import inf

import torch
from torch import fx
from torch.nn.functional import scaled_dot_product_attention
from torch.overrides import TorchFunctionMode

from ... import messages
from ...errors import Refusal
from ...graph.nodes import value_of_node, where_of
from ...graph.op_kinds import kind_of, name_of
from ...graph.trace import UserLines, aten_graph, without_saved_tensors
from ...regions.open_calls import inline_library_calls

# What is filled in for a mask's number, such as -1e9. In a row that keeps no key, the logarithm is that number plus
# log n, for n keys. In float32, -1e9 + log n is -1e9, and n is lost; -65504 + log n is right to 0.004. float16 has this
# number, too. In all other rows the weights of masked keys are 0 either way.
LEAST_SCORE = -65504.0
FILLS, NUMBERS = ("masked_fill", "where"), ("full", "full_like", "new_full", "scalar_tensor")
LIKE: dict[str, Callable[[fx.Node], object]] = {  # numbers of another tensor's shape: which number
    "zeros_like": lambda node: 0.0,
    "new_zeros": lambda node: 0.0,
    "ones_like": lambda node: 1.0,
    "new_ones": lambda node: 1.0,
    "full_like": lambda node: node.args[1],
    "new_full": lambda node: node.args[2],
}
PADS = {"pad": 3, "constant_pad_nd": 2}  # which argument is the number
SOFTMAXES = frozenset({"softmax", "_softmax", "_safe_softmax"})


@dataclass(frozen=True)
class Traced:
    """A function's ATen graph with one result; inputs: a placeholder for each tensor, in order.

    sinks: scores of no key, which the softmax would have beside those of keys. written: the nodes as they were with
    sinks, by those without.
    """

    graph: fx.Graph
    inputs: tuple[fx.Node, ...]
    result: fx.Node
    sinks: fx.Node | None = None
    written: Mapping[fx.Node, fx.Node] = field(default_factory=dict)


@dataclass(frozen=True)
class AttentionCut:
    """A place to cut: `mean` is the weighted values, made of the weights of `softmax`; no keys are read behind it."""

    traced: Traced
    softmax: fx.Node
    mean: fx.Node

    @property
    def dim(self) -> int:
        """The axis of the keys among those of the scores."""
        return int(self.softmax.args[1])


@without_saved_tensors()
def traced(function: Callable, fakes: Sequence[torch.Tensor]) -> Traced:
    """The function's graph on fake tensors. Raises Refusal for what has no ATen form, and for several results."""
    graph = aten_graph(_with_written_attention(function), fakes)
    inline_library_calls(graph)
    _spell_out_constants(graph)
    _bound_fills(graph)
    (result,) = next(node for node in graph.nodes if node.op == "output").args
    if isinstance(result, tuple | list) and len(result) == 1:
        (result,) = result
    if not isinstance(result, fx.Node):
        raise Refusal(messages.RANKS_ONE_RESULT)
    inputs = tuple(graph.find_nodes(op="placeholder"))
    _mark_recorded(graph, [node for node, fake in zip(inputs, fakes, strict=True) if fake.requires_grad])
    return Traced(graph, inputs, result)


def _spell_out_constants(graph: fx.Graph) -> None:
    """Numbers that take their shape from a tensor no longer read it; padding at one end of rows is `cat` with numbers.

    So sinks of one number each, such as zeros beside the scores, do not depend on keys.
    """
    for node in list(graph.nodes):
        value, name = value_of_node(node), name_of(node)
        with graph.inserting_before(node):
            if name in LIKE:
                node.replace_all_uses_with(_numbers(graph, value, value.shape, LIKE[name](node)))
            elif name in PADS and (added := _added_at_one_end(node)):
                numbers = _numbers(graph, value, [*value.shape[:-1], sum(added)], _given(node, PADS[name]) or 0.0)
                pair = [numbers, node.args[0]] if added[0] else [node.args[0], numbers]
                joined = graph.call_function(torch.ops.aten.cat.default, (pair, value.ndim - 1))
                joined.meta = dict(node.meta)
                node.replace_all_uses_with(joined)
    graph.eliminate_dead_code()


def _numbers(graph: fx.Graph, like: torch.Tensor, shape: Sequence[int], number: object) -> fx.Node:
    kinds = {"dtype": like.dtype, "device": like.device}
    made = graph.call_function(torch.ops.aten.full.default, (list(shape), number), kinds)
    made.meta["val"] = like.new_empty(shape)
    return made


def _added_at_one_end(padding: fx.Node) -> tuple[int, int] | None:
    """How many numbers are added before and behind each row, if it is at one end, and nothing else is padded."""
    first, last, *others = padding.args[1]
    if name_of(padding) == "pad" and _given(padding, 2) not in (None, "constant"):
        return None
    return (first, last) if min(first, last) == 0 < max(first, last) and not any(others) else None


def _given(node: fx.Node, place: int) -> object:
    return node.args[place] if len(node.args) > place else None


def _with_written_attention(function: Callable) -> Callable:
    """The function with each call of scaled_dot_product_attention written out, so that its scores can be cut."""

    def written(*tensors: torch.Tensor) -> torch.Tensor:
        with _WrittenAttention(), UserLines():  # the line of a call is noted before the call is written out
            return function(*tensors)

    return written


class _WrittenAttention(TorchFunctionMode):
    def __torch_function__(self, function, types, args=(), kwargs=None):
        if function is scaled_dot_product_attention:
            return _attention(*args, **(kwargs or {}))
        return function(*args, **(kwargs or {}))


def _attention(query, key, value, attn_mask=None, dropout_p=0.0, is_causal=False, **more):
    scale, enable_gqa = more.get("scale"), more.get("enable_gqa")
    if dropout_p:
        raise Refusal(messages.RANKS_RANDOM)
    if enable_gqa:
        key, value = (x.repeat_interleave(query.shape[-3] // x.shape[-3], -3) for x in (key, value))
    scores = query @ key.mT * (query.shape[-1] ** -0.5 if scale is None else scale)
    if is_causal:
        rows, columns = (torch.arange(n, device=query.device) for n in scores.shape[-2:])
        scores = scores.masked_fill(columns > rows[:, None], -inf)
    if attn_mask is not None:
        scores = scores.masked_fill(~attn_mask, -inf) if attn_mask.dtype == torch.bool else scores + attn_mask
    return torch.softmax(scores, -1).to(value.dtype) @ value


def _mark_recorded(graph: fx.Graph, inputs: Collection[fx.Node]) -> None:
    """Says of the nodes' values which have gradients: they were traced below autograd, which knows of none."""
    for node in _behind(list(graph.nodes), set(inputs)):
        value = value_of_node(node)
        if isinstance(value, torch.Tensor) and value.is_floating_point():
            value.requires_grad_()


def apart_from_sinks(traced: Traced, keys: Collection[int]) -> Traced:
    """The graph with a softmax over the keys alone, where it had other scores, too, whose weights nothing reads.

    softmax(cat(s, t))[..., :n] is softmax(s) · exp(L(s) - L(cat(s, t))), with the logarithms L of sums of exponentials:
    sinks are one more state, of output 0.
    """
    graph, copies = _copied(traced, {})
    order = list(graph.nodes)
    inputs, result = tuple(copies[x] for x in traced.inputs), copies[traced.result]
    of_keys = _behind(order, {inputs[k] for k in keys})
    for softmax in [node for node in order if node in of_keys and name_of(node) in SOFTMAXES]:
        found = _scores_and_sinks(softmax, of_keys)
        if found is not None:
            slices = list(softmax.users)
            softmax.meta = {**softmax.meta, "val": value_of_node(slices[0])}
            softmax.args = (found[0], *softmax.args[1:])
            for node in slices:
                node.replace_all_uses_with(softmax)
            written = {copy: node for node, copy in copies.items()}
            return Traced(graph, inputs, softmax if result in slices else result, found[1], written)
    return traced


def _scores_and_sinks(softmax: fx.Node, of_keys: Collection[fx.Node]) -> tuple[fx.Node, fx.Node] | None:
    """What a softmax's scores are joined of, if it is scores of keys and others, and only weights of keys are read."""
    pieces = _joined_scores(softmax)
    places = [place for place, piece in enumerate(pieces) if piece in of_keys]
    if len(pieces) != 2 or len(places) != 1:
        return None
    first, second = (int(value_of_node(piece).shape[softmax.args[1]]) for piece in pieces)
    (place,) = places
    read = range(first) if place == 0 else range(first, first + second)
    if not softmax.users or any(_slice_of(node, softmax) != read for node in softmax.users):
        return None
    return pieces[place], pieces[1 - place]


def _joined_scores(softmax: fx.Node) -> list[fx.Node]:
    """What the softmax's scores are joined of, along its own axis, before a number was taken away from each row."""
    scores, axis = softmax.args[0], int(softmax.args[1])
    rank = value_of_node(scores).ndim
    if name_of(scores) == "sub" and _is_of_rows(scores.args[1:], rank, axis) and not scores.kwargs:
        scores = scores.args[0] if value_of_node(scores.args[0]).ndim == rank else scores
    joins = name_of(scores) == "cat" and len(scores.args) > 1 and not (scores.args[1] - axis) % rank
    return list(scores.args[0]) if joins else []


def _is_of_rows(operands: Sequence[object], rank: int, axis: int) -> bool:
    """Whether it is one tensor with one number for each row along the axis."""
    value = value_of_node(operands[0]) if len(operands) == 1 and isinstance(operands[0], fx.Node) else None
    return value is not None and value.ndim == rank and value.shape[axis] == 1


def _slice_of(node: fx.Node, source: fx.Node) -> range | None:
    """Which places of a softmax's axis a slice reads; None if it is no slice along that axis."""
    value = value_of_node(source)
    given = (*node.args, *(0, 0, None, None, 1)[len(node.args) :])
    if name_of(node) != "slice" or node.kwargs or (given[1] - source.args[1]) % value.ndim:
        return None
    return range(*slice(*given[2:]).indices(value.shape[given[1]]))


def cuts(traced: Traced, keys: Collection[int]) -> Iterator[AttentionCut]:
    """Places to cut, the earliest first. keys: numbers of the inputs that belong to keys. Raises Refusal."""
    order = list(traced.graph.nodes)
    of_keys = _behind(order, {traced.inputs[k] for k in keys})
    softmaxes = [node for node in order if node in of_keys and name_of(node) in SOFTMAXES]
    if len(softmaxes) != 1:
        raise Refusal(messages.RANKS_ONE_SOFTMAX, where_of(traced.result), count=len(softmaxes))
    (softmax,) = softmaxes
    for node in order:
        if node in _behind(order, {softmax}) and node is not softmax and node.op == "call_function":
            read = _read_without(traced.result, node)
            if read.isdisjoint(of_keys - _behind(order, {node})):
                yield AttentionCut(traced, softmax, node)


def _behind(order: Sequence[fx.Node], start: Collection[fx.Node]) -> set[fx.Node]:
    """The nodes that depend on one of these, these included."""
    found = set(start)
    for node in order:
        if not found.isdisjoint(node.all_input_nodes):
            found.add(node)
    return found


def _read_without(result: fx.Node, cut: fx.Node) -> set[fx.Node]:
    """What the result depends on, if the cut is given."""
    found, open_ = set(), [result]
    while open_:
        node = open_.pop()
        if node is not cut and node not in found:
            found.add(node)
            open_ += node.all_input_nodes
    return found


def reads_weights_once(cut: AttentionCut) -> bool:
    """Whether each call between the softmax and the weighted values reads one operand that is made of its weights.

    A mean is then a sum of the weights themselves, each times a value, and sinks, which make all weights smaller by one
    factor, are one more state. Weights that are divided by their own sum are read twice: softmax(cat([s,
    sink]))[..., :-1] made so does not depend on the sink, which would be a state nevertheless.
    """
    order = list(cut.traced.graph.nodes)
    read, of_weights = _read_without(cut.mean, cut.softmax), _behind(order, {cut.softmax})
    return all(_operands_among(node, of_weights) == 1 for node in order if node in read and node in of_weights)


def _operands_among(node: fx.Node, some: Collection[fx.Node]) -> int:
    operands = [x for arg in node.args for x in (arg if isinstance(arg, list | tuple) else [arg])]
    return sum(isinstance(x, fx.Node) and x in some for x in operands)


def may_hide(cut: AttentionCut) -> bool:
    """Whether scores may be as low as -1e9: such a number is in the graph, or a tensor that is given may hold one.

    The tensor is added to scores, or stands in for some.
    """
    order = list(cut.traced.graph.nodes)
    scores, given = _behind(order, _products(order)), _behind(order, cut.traced.inputs)
    for node in order:
        if any(_is_low(x) for x in (*node.args, *node.kwargs.values())):
            return True
        operands = node.all_input_nodes if name_of(node) in ("add", "sub", "where") else []
        others = [n for n in operands if n in given and n not in scores and value_of_node(n).is_floating_point()]
        if others and not scores.isdisjoint(operands):
            return True
    return False


def _products(order: Sequence[fx.Node]) -> list[fx.Node]:
    return [n for n in order if kind_of(n) == "contraction"]


def _is_low(number: object) -> bool:
    return isinstance(number, int | float) and -inf < number < LEAST_SCORE


def _bound_fills(graph: fx.Graph) -> None:
    """Replaces the large negative numbers that stand in for scores by LEAST_SCORE; those that are added stay."""
    order = list(graph.nodes)
    scores = _behind(order, _products(order))
    fills = {n for n in order if name_of(n) in FILLS and not scores.isdisjoint(n.all_input_nodes)}
    for node in order:
        if node in fills or (name_of(node) in NUMBERS and fills.issuperset(node.users)):
            node.args = tuple(LEAST_SCORE if _is_low(x) else x for x in node.args)


def state_graph(cut: AttentionCut) -> fx.GraphModule:
    """From the inputs: the weighted values, and the logarithms of the sums of exponentials of the scores."""
    graph, copies = _copied(cut.traced, {})
    scores = copies[cut.softmax.args[0]]
    with graph.inserting_before(_output(graph)):
        wide = _call(graph, torch.ops.aten.to.dtype, scores, _wide(cut.softmax.args[0]))
        total = _call(graph, torch.ops.aten.logsumexp.default, wide, [cut.dim], True)
    return _finished(graph, (copies[cut.mean], total))


def weighted_graph(cut: AttentionCut) -> fx.GraphModule:
    """From the inputs and the logarithms of the sums over all keys: the share of some keys in the weighted values, and
    in the sum of the weights.

    It is linear in the weights exp(s - L), so its gradients are those of all keys where these are given the cotangents
    g and -g · o: an attention's backward with a given logarithm.
    """
    graph, copies = _copied(cut.traced, {})
    softmax = copies[cut.softmax]
    scores, dtype = softmax.args[0], value_of_node(cut.softmax).dtype
    with graph.inserting_before(next(n for n in graph.nodes if n.op != "placeholder")):
        total = graph.placeholder("onepass_total")
    with graph.inserting_before(softmax):
        wide = _call(graph, torch.ops.aten.to.dtype, scores, _wide(cut.softmax.args[0]))
        weights = _call(graph, torch.ops.aten.exp.default, _call(graph, torch.ops.aten.sub.Tensor, wide, total))
        share = _call(graph, torch.ops.aten.sum.dim_IntList, weights, [cut.dim], True)
        narrow = _call(graph, torch.ops.aten.to.dtype, weights, dtype)
    softmax.replace_all_uses_with(narrow)
    return _finished(graph, (copies[cut.mean], share))


def sinks_graph(cut: AttentionCut) -> fx.GraphModule | None:
    """From the inputs: the scores of sinks; None without any."""
    if cut.traced.sinks is None:
        return None
    graph, copies = _copied(cut.traced, {})
    return _finished(graph, copies[cut.traced.sinks])


def rest_graph(cut: AttentionCut) -> fx.GraphModule:
    """From the inputs and the merged values: the function's result."""
    graph, copies = _copied(cut.traced, {})
    mean = copies[cut.mean]
    with graph.inserting_before(next(n for n in graph.nodes if n.op != "placeholder")):
        merged = graph.placeholder("onepass_merged")
    merged.meta = dict(cut.mean.meta)
    mean.replace_all_uses_with(merged)
    result = merged if cut.traced.result is cut.mean else copies[cut.traced.result]
    return _finished(graph, result)


def _copied(traced: Traced, copies: dict[fx.Node, fx.Node]) -> tuple[fx.Graph, dict[fx.Node, fx.Node]]:
    graph = fx.Graph()
    graph.output(graph.graph_copy(traced.graph, copies))
    return graph, copies


def _finished(graph: fx.Graph, result: object) -> fx.GraphModule:
    _output(graph).args = (result,)
    graph.eliminate_dead_code()
    graph.lint()
    return fx.GraphModule(torch.nn.Module(), graph)


def _output(graph: fx.Graph) -> fx.Node:
    return next(iter(graph.find_nodes(op="output")))


@without_saved_tensors()
def _call(graph: fx.Graph, target: Callable, operand: fx.Node, *more: object) -> fx.Node:
    """A call with what is known of its value."""
    node = graph.call_function(target, (operand, *more))
    values = [value_of_node(m) if isinstance(m, fx.Node) else m for m in node.args]
    if all(v is not None for v in values):
        first = values[0]
        with first.fake_mode:
            node.meta["val"] = target(*values)
    return node


def _wide(scores: fx.Node) -> torch.dtype:
    return torch.promote_types(value_of_node(scores).dtype, torch.float32)
