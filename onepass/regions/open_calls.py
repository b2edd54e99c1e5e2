"""Inlines library calls that Dynamo keeps whole though attention is inside: they become their ATen operations.

A call is inlined only if a region that can be replaced is found in it. Its nodes then name the user's line. Otherwise
the call stays and a refused region says why. Example: multi_head_attention_forward, which nn.MultiheadAttention calls.
An einsum of more than two tensors becomes einsums of two, in the order in which torch multiplies them.
"""

from __future__ import annotations

import operator
from collections.abc import Sequence

import torch
from torch import fx
from torch.backends import opt_einsum
from torch.utils._pytree import tree_leaves

from .. import messages
from ..errors import Refusal
from ..graph.axes import einsum_letters
from ..graph.nodes import value_of_node, where_of
from ..graph.op_kinds import Trait, has_trait, is_higher_order, name_of
from ..graph.trace import aten_graph
from .find import find_regions
from .refusals import refused_at
from .region import Region


def inline_library_calls(graph: fx.Graph) -> list[Region]:
    """Inlines what can be inlined, in place; gives a refused region for each call that stays.

    Raises what tracing a call raises, but no Refusal.
    """
    calls = [n for n in graph.nodes if n.op == "call_function"]
    for node in [n for n in calls if name_of(n) == "einsum"]:
        _multiply_in_pairs(graph, node)
    refused = [_without_parts(n) for n in calls if has_trait(n, Trait.CLOSED_LIBRARY_CALL)]
    for node in [n for n in calls if has_trait(n, Trait.LIBRARY_CALL)]:
        try:
            _inline(graph, node)
        except Refusal as refusal:
            refused.append(refused_at(node, refusal))
    return refused


def _without_parts(node: fx.Node) -> Region:
    """FlexAttention, or the fast path that torch's own modules take in eval without gradients."""
    message = messages.FLEX_ATTENTION if is_higher_order(node) else messages.FAST_PATH
    return refused_at(node, Refusal(message, where_of(node), call=name_of(node)))


def _inline(graph: fx.Graph, node: fx.Node) -> None:
    """Replaces the call by its ATen operations. Raises Refusal if nothing is gained by that."""
    inputs = node.all_input_nodes
    if not _only_items(node):
        raise _kept_whole(node, "its results are used as a whole")
    body = aten_graph(lambda *values: _called(node, dict(zip(inputs, values))), [value_of_node(n) for n in inputs])
    used = {user.args[1] for user in node.users if user.users}
    output = next(n for n in body.nodes if n.op == "output")
    output.args = (tuple(r if n in used else None for n, r in enumerate(output.args[0])),)
    if None in [output.args[0][n] for n in used]:
        raise _kept_whole(node, "a result is used that is no tensor")
    body.eliminate_dead_code()  # Averaged weights that nobody uses would be a second use of the scores.
    if any(n.op == "get_attr" for n in body.nodes):  # It names an attribute of the trace's module, not of the user's.
        raise _kept_whole(node, "it makes a constant tensor")
    _refuse_if_nothing_is_found(node, body)
    _insert_body(graph, node, body, inputs)


def _only_items(node: fx.Node) -> bool:
    return all(user.target is operator.getitem and isinstance(user.args[1], int) for user in node.users)


def _called(node: fx.Node, values: dict[fx.Node, object]):
    args, kwargs = fx.map_arg((node.args, node.kwargs), values.__getitem__)
    return node.target(*args, **kwargs)


def _refuse_if_nothing_is_found(node: fx.Node, body: fx.Graph) -> None:
    regions = find_regions(body)
    if any(region.refusal is None for region in regions):
        return
    raise _kept_whole(node, regions[0].refusal.reason if regions else "nothing in it can be fused")


def _kept_whole(node: fx.Node, reason: str) -> Refusal:
    return Refusal(messages.KEPT_WHOLE, where_of(node), call=name_of(node), reason=reason)


def _insert_body(graph: fx.Graph, node: fx.Node, body: fx.Graph, inputs: list[fx.Node]) -> None:
    """Copies the body's nodes in front of the call, with the call's source line; then erases the call and its items."""
    copied: dict[fx.Node, fx.Node] = dict(zip([n for n in body.nodes if n.op == "placeholder"], inputs))
    with graph.inserting_before(node):
        for inner in body.nodes:
            if inner.op not in ("placeholder", "output"):
                copied[inner] = graph.node_copy(inner, copied.__getitem__)
                for name in ("stack_trace", "nn_module_stack"):
                    if name in node.meta:
                        copied[inner].meta[name] = node.meta[name]
    if any(getattr(value, "requires_grad", False) for value in tree_leaves(value_of_node(node))):
        _mark_recorded([n for n in copied.values() if n not in inputs])
    (results,) = next(n for n in body.nodes if n.op == "output").args
    for user in list(node.users):
        if user.users:
            user.replace_all_uses_with(copied[results[user.args[1]]])
        graph.erase_node(user)
    graph.erase_node(node)


def _multiply_in_pairs(graph: fx.Graph, node: fx.Node) -> None:
    """Replaces an einsum of more than two tensors. One with an ellipsis, a diagonal or no named result stays."""
    waiting, result = _factors(node)
    values = [value_of_node(x) for _, x in waiting]
    if len(waiting) < 3 or any(value is None for value in values):
        return
    made: list[fx.Node] = []
    order = _order_of_products(str(node.args[0]), values)
    with graph.inserting_before(node):
        for pair in order:
            (one, x), (other, y) = (waiting[k] for k in pair)
            waiting = [w for k, w in enumerate(waiting) if k not in pair]
            later = {*result, *(c for text, _ in waiting for c in text)}
            kept = "".join(c for c in dict.fromkeys(one + other) if c in later) if waiting else result
            made.append(_product(graph, node, f"{one},{other}->{kept}", [x, y]))
            waiting.append((kept, made[-1]))
    if getattr(value_of_node(node), "requires_grad", False):
        _mark_recorded(made)
    node.replace_all_uses_with(made[-1])
    graph.erase_node(node)


def _tensors_are_listed(node: fx.Node) -> bool:
    return len(node.args) == 2 and isinstance(node.args[1], tuple | list)


def _factors(node: fx.Node) -> tuple[list[tuple[str, fx.Node]], str]:
    """The tensors of an einsum, each with its letters, and those of the result; ([], "") where they are not known."""
    tensors = node.args[1] if _tensors_are_listed(node) else node.args[1:]
    *letters, result = einsum_letters(node.args[0]) or ("",)
    return ([*zip(letters, tensors)], result) if len(letters) == len(tensors) and all(letters) else ([], "")


def _product(graph: fx.Graph, whole: fx.Node, equation: str, tensors: list[fx.Node]) -> fx.Node:
    """A part of an einsum as a node, with its place in the source."""
    product = graph.call_function(whole.target, (equation, *([tensors] if _tensors_are_listed(whole) else tensors)))
    product.meta = dict(whole.meta)
    with torch.no_grad():
        value = torch.einsum(equation, *map(value_of_node, tensors))
    product.meta["val" if "val" in whole.meta else "example_value"] = value
    return product


def _order_of_products(equation: str, tensors: Sequence[torch.Tensor]) -> list[tuple[int, int]]:
    """Places of two among the tensors that are left, the newest product last: in the order of torch.einsum, if that
    multiplies two at a time, else from left to right."""
    found: list[tuple[int, ...]] = []
    if opt_einsum.is_available() and opt_einsum.enabled:
        found = opt_einsum.get_opt_einsum().contract_path(equation, *tensors, optimize=opt_einsum.strategy)[0]
    count = len(tensors)
    pairs = [(min(one), max(one)) for one in found if len(one) == 2]
    return pairs if len(pairs) == count - 1 else [(0, 1), *((0, count - k) for k in range(2, count))]


def _mark_recorded(nodes: list[fx.Node]) -> None:
    """Says of the nodes' values which have gradients. They were traced below autograd, which knows of none."""
    wants = lambda node: getattr(value_of_node(node), "requires_grad", False)
    for node in nodes:
        value = value_of_node(node)
        if isinstance(value, torch.Tensor) and value.is_floating_point() and any(map(wants, node.all_input_nodes)):
            value.requires_grad_()
