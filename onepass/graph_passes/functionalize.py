"""Replaces in-place operations on a region's own values by the functional operations.

Only memory that the graph itself made is no longer written, and only if no older view of it is read later. So the graph
computes what it did. Example: `s.masked_fill_(mask, -inf)` becomes `s = s.masked_fill(mask, -inf)`.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterable
from math import prod

import torch
from torch import fx

from ..graph import reduced_products
from ..graph.grad_modes import recording
from ..graph.mutations import use_in_place_names
from ..graph.nodes import value_of_node
from ..graph.op_kinds import Trait, changes_in_place, has_trait, is_aten, kind_of, name_of, reshapes_in_place
from ..graph.survey import Survey, hinted, shape, survey
from .index_assignment import IndexedAxis, call_with_value, index_mask, indexed_axes

MAKES_NEW_MEMORY = ("contraction", "pointwise", "creation", "layer", "reduction")
_OPERATORS = {getattr(operator, f"i{name}"): getattr(operator, name) for name in "add sub mul truediv pow".split()}


def functionalize(graph: fx.Graph) -> None:
    """Rewrites the graph. A write that may be seen elsewhere, or that would change a dtype or shape, stays."""
    use_in_place_names(graph)
    _functionalize_reshapes(graph)
    if not any(map(changes_in_place, graph.nodes)):
        return
    s = survey(graph)
    for node in s.in_place:
        if node.target is not operator.setitem or not _rewrite_assignment(node, s):
            _rewrite(node, s)


def _functionalize_reshapes(graph: fx.Graph) -> None:
    """x.unsqueeze_(0) becomes x = x.unsqueeze(0). Dynamo has one fake value for both; here each gets its own."""
    groups: dict[int, list[fx.Node]] = {}
    recorded = recording(graph.nodes)
    for node in graph.nodes:
        if isinstance(value_of_node(node), torch.Tensor):
            groups.setdefault(id(value_of_node(node)), []).append(node)
    for first, *rest in groups.values():
        if rest and len({recorded[n] for n in (first, *rest)}) == 1:
            _give_own_values(first, rest)


def _give_own_values(first: fx.Node, rest: list[fx.Node]) -> None:
    """Rewrites all calls that reshape the result of `first` in place, or none."""
    if first.op not in ("call_function", "call_method") or not all(map(reshapes_in_place, rest)):
        return
    kept = [(n, n.op, n.target, n.args, dict(n.meta)) for n in (first, *rest)]
    try:
        latest = first
        first.meta["example_value"] = _evaluated(first)
        for node in rest:
            node.op, node.target, node.args = "call_method", name_of(node).removesuffix("_"), (latest, *node.args[1:])
            node.meta["example_value"] = _evaluated(node)
            latest = node
    except Exception:  # A fake computation may raise anything. Regions with these nodes are refused later.
        for node, op, target, args, meta in kept:
            node.op, node.target, node.args, node.meta = op, target, args, meta
        return
    place = {n: k for k, n in enumerate(first.graph.nodes)}
    for old, new in zip((first, *rest), rest, strict=False):
        old.replace_all_uses_with(new, delete_user_cb=lambda user, new=new: place[user] > place[new])


def _evaluated(node: fx.Node) -> torch.Tensor:
    """The node's fake value, computed from those of its arguments."""
    args, kwargs = fx.map_arg((node.args, node.kwargs), value_of_node)
    with torch.no_grad():
        call = getattr(args[0], node.target) if node.op == "call_method" else node.target
        return call(*(args[1:] if node.op == "call_method" else args), **kwargs)


def _rewrite(node: fx.Node, s: Survey) -> None:
    """Replaces the operation by the functional one that does the same, if there is one and the write stays unseen."""
    target, function = node.args[0] if node.args else None, _functional(node)
    if function is None or not isinstance(target, fx.Node) or not _may_replace(node, target, s):
        return
    if not _is_unseen(target, node, s) or not _keeps_dtype_and_shape(node, target, function):
        return
    if node.target is operator.setitem:
        _copy_value(target, node)
    _replace(node, target, function, node.args, s)


def _may_replace(node: fx.Node, target: fx.Node, s: Survey) -> bool:
    """Whether the target's memory was made in the graph, and gradients are recorded at both nodes or at neither.

    If gradients are recorded at one of them only, autograd does not see the write.
    """
    return _is_of_a_region(target, s) and s.recorded[target] == s.recorded[node] and _is_own_memory(target, s)


def _is_of_a_region(target: fx.Node, s: Survey) -> bool:
    """Whether the value comes from a contraction, or from numbers alone, as masks do; or from a large layer."""
    return bool(s.plain[target] or s.reduced[target] or s.free[target]) or _is_of_a_large_layer(target, s)


def _is_of_a_large_layer(target: fx.Node, s: Survey) -> bool:
    """Whether the value is a layer's, element by element, that is a product if nothing but reductions is read of it.
    Example: scores that are divided by a temperature in place."""
    while s.kind[target] in ("view", "cast", "pointwise") and len(target.all_input_nodes) == 1:
        (target,) = target.all_input_nodes
    return s.kind[target] == "layer" and prod(hinted(value_of_node(target))) >= reduced_products.LEAST_ELEMENTS


def _copy_value(target: fx.Node, node: fx.Node) -> None:
    """An assignment to items has no value in fx; the functional operation gives one like the target's."""
    node.meta = {**node.meta, **{key: target.meta[key] for key in ("example_value", "val") if key in target.meta}}


def _replace(node: fx.Node, target: fx.Node, function: Callable | str, args: tuple, s: Survey) -> None:
    """Makes the node functional. Later users of the target read the node instead."""
    later = lambda user: user is not node and s.place[user] > s.place[node]
    node.target, node.args = function, args
    target.replace_all_uses_with(node, delete_user_cb=later)
    s.kind[node], s.plain[node], s.reduced[node] = "pointwise", s.plain[target], s.reduced[target]


def _rewrite_assignment(node: fx.Node, s: Survey) -> bool:
    """Rewrites t[index] = number and t[index] += number by a mask of the index; False if that is not possible.

    These become masked_fill(t, mask, number) and where(mask, t + number, t).
    """
    target, index, value = node.args
    axes = indexed_axes(target, index) if isinstance(target, fx.Node) else None
    if axes is None or not _is_of_a_region(target, s) or not _is_own_memory(target, s):
        return False
    if not value_of_node(target).is_floating_point():
        return False
    updated = _updated(node)
    if not (updated or isinstance(value, int | float)) or not _is_unseen(target, node, s, updated):
        return False
    if updated:
        _update(node, axes, updated, s)
    else:
        _fill(node, axes, s)
    return True


def _fill(node: fx.Node, axes: list[IndexedAxis], s: Survey) -> None:
    """t[index] = number becomes masked_fill."""
    target, _, number = node.args
    with node.graph.inserting_before(node):
        mask = index_mask(target, axes)
    _copy_value(target, node)
    _replace(node, target, torch.masked_fill, (target, mask, number), s)


def _update(node: fx.Node, axes: list[IndexedAxis], updated: tuple[fx.Node, ...], s: Survey) -> None:
    """t[index] += number becomes where(mask, t + number, t)."""
    target, number = node.args[0], updated[0].args[1]
    with node.graph.inserting_before(node):
        mask = index_mask(target, axes)
        changed = call_with_value(target, _OPERATORS[updated[0].target], target, number)
    _copy_value(target, node)
    s.place[changed] = s.place[node]
    _replace(node, target, torch.where, (mask, changed, target), s)
    for old in updated:
        node.graph.erase_node(old)


def _updated(node: fx.Node) -> tuple[fx.Node, ...]:
    """Of t[index] += number the addition in place and the view t[index], if nothing else reads them; else nothing."""
    target, index, value = node.args
    if not isinstance(value, fx.Node) or value.target not in _OPERATORS:
        return ()
    if set(value.users) != {node} or not isinstance(value.args[1], int | float):
        return ()
    view = value.args[0]
    same = view.target is operator.getitem and view.args == (target, index) and set(view.users) == {value}
    return (value, view) if same else ()


def _functional(node: fx.Node) -> Callable | str | None:
    """The function that returns as a new tensor what the node writes; None if there is none that is known."""
    if node.kwargs.get("out") is not None:
        return None
    if node.op == "call_method":
        name = node.target.removesuffix("_")
        return name if kind_of(node) == "pointwise" and hasattr(torch.Tensor, name) else None
    if is_aten(node):
        packet = getattr(torch.ops.aten, name_of(node).removesuffix("_"), None)
        return getattr(packet, node.target._overloadname, None) if kind_of(node) == "pointwise" else None
    if node.target is operator.setitem:
        return torch.masked_fill if _is_filling(*node.args) else None
    return _OPERATORS.get(node.target) or _of_torch(node)


def _of_torch(node: fx.Node) -> Callable | None:
    """The function without an underscore: torch.relu for torch.relu_."""
    name = name_of(node)
    spaces = (s for s in (torch, torch.nn.functional) if name and getattr(s, name, None) is node.target)
    found = (getattr(s, name.removesuffix("_"), None) for s in spaces if kind_of(node) == "pointwise")
    return next(filter(None, found), None)


def _is_filling(target, mask, value) -> bool:
    """Whether the assignment is t[mask] = number, with a mask of as many axes as the tensor."""
    known = [value_of_node(n) if isinstance(n, fx.Node) else None for n in (target, mask)]
    if not all(isinstance(t, torch.Tensor) for t in known) or not isinstance(value, int | float):
        return False
    return known[1].dtype == torch.bool and known[0].dim() == known[1].dim()


def _is_own_memory(target: fx.Node, s: Survey) -> bool:
    """Whether the graph made the memory. The target may be a view of it if nothing else reads what is viewed."""
    while s.kind[target] == "view" and not changes_in_place(target) and _is_only_reader(target):
        target = target.args[0]
    made = target.op in ("call_function", "call_method") and s.kind[target] in MAKES_NEW_MEMORY
    return made and not changes_in_place(target) and not has_trait(target, Trait.MAY_ALIAS)


def _is_only_reader(view: fx.Node) -> bool:
    viewed = view.args[0] if view.args else None
    return isinstance(viewed, fx.Node) and len(viewed.users) == 1 and shape(viewed) is not None


def _is_unseen(target: fx.Node, node: fx.Node, s: Survey, ignored: Iterable[fx.Node] = ()) -> bool:
    """Whether no view of the target's memory from before the write is used after it, besides the ignored ones."""
    seen, stack = set(ignored), [(u, target) for u in target.users if u is not node]
    while stack:
        user, read = stack.pop()
        if user in seen or s.place[user] > s.place[node] or _reads_only_metadata(read, user, s):
            continue  # What is made after the write reads the new value.
        seen.add(user)
        if _may_share_memory(user, s):
            if any(s.place[u] > s.place[node] for u in user.users) or node in user.users:
                return False
            stack.extend((u, user) for u in user.users)
    return True


def _may_share_memory(user: fx.Node, s: Survey) -> bool:
    """Whether the result may share memory with an operand."""
    return s.kind[user] in ("view", "cast", "other") or changes_in_place(user) or has_trait(user, Trait.MAY_ALIAS)


def _reads_only_metadata(read: fx.Node, user: fx.Node, s: Survey) -> bool:
    """A view of another tensor that takes only the shape or dtype of what is read, as expand_as does."""
    first = user.args[0] if user.args else None
    return s.kind[user] in ("view", "cast") and isinstance(first, fx.Node) and first is not read


def _keeps_dtype_and_shape(node: fx.Node, target: fx.Node, function: Callable | str) -> bool:
    """Whether the functional operation gives the dtype and shape of the memory that was written."""
    try:
        args, kwargs = fx.map_arg((node.args, node.kwargs), value_of_node)
        call = getattr(args[0], function) if isinstance(function, str) else function
        made = call(*(args[1:] if isinstance(function, str) else args), **kwargs)
    except Exception:  # A fake computation may raise anything. The operation then stays as it is.
        return False
    old = value_of_node(target)
    return isinstance(made, torch.Tensor) and (made.dtype, made.shape) == (old.dtype, old.shape)
