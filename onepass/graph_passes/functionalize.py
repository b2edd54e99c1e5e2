"""In-place operations on a region's own intermediates become the functional ones that they abbreviate.

Invariant: the graph computes what it did; only memory that the graph made itself, and that no view is looked at through
later, stops being overwritten.
"""

from __future__ import annotations

import operator
from collections.abc import Iterable

import torch
from torch import fx

from ..graph.grad_modes import recording
from ..graph.mutations import respell
from ..graph.nodes import value_of_node
from ..graph.op_kinds import Trait, changes_in_place, has_trait, is_aten, kind_of, name_of, reshapes_in_place
from ..graph.survey import Survey, shape, survey
from .index_assignment import called, mask_of, parts_of

MAKES_NEW_MEMORY = ("contraction", "pointwise", "creation", "layer", "reduction")
_OPERATORS = {getattr(operator, f"i{name}"): getattr(operator, name) for name in "add sub mul truediv pow".split()}


def make_functional(graph: fx.Graph) -> int:
    """How many operations were rewritten. What might be seen elsewhere, or would change a dtype or shape, stays."""
    respell(graph)
    reshaped = _views_made(graph)
    known = survey(graph)
    return reshaped + sum(_rewritten(node, known) for node in known.in_place)


def _views_made(graph: fx.Graph) -> int:
    """x.unsqueeze_(0) as x = x.unsqueeze(0). The graph knows one value for both, that of the end: each gets its own."""
    groups: dict[int, list[fx.Node]] = {}
    on = recording(graph.nodes)
    for node in graph.nodes:
        if isinstance(value_of_node(node), torch.Tensor):
            groups.setdefault(id(value_of_node(node)), []).append(node)
    alike = [group for group in groups.values() if len(group) > 1 and len({on[n] for n in group}) == 1]
    return sum(_apart(first, rest) for first, *rest in alike)


def _apart(first: fx.Node, rest: list[fx.Node]) -> int:
    """How many calls that reshape what `first` gave have been rewritten: all, or none."""
    if first.op not in ("call_function", "call_method") or not all(map(reshapes_in_place, rest)):
        return 0
    kept = [(n, n.op, n.target, n.args, dict(n.meta)) for n in (first, *rest)]
    try:
        latest = first
        first.meta["example_value"] = _made(first)
        for node in rest:
            node.op, node.target, node.args = "call_method", name_of(node).removesuffix("_"), (latest, *node.args[1:])
            node.meta["example_value"] = _made(node)
            latest = node
    except Exception:  # whatever a meta computation may raise: regions that meet these are refused
        for node, op, target, args, meta in kept:
            node.op, node.target, node.args, node.meta = op, target, args, meta
        return 0
    place = {n: k for k, n in enumerate(first.graph.nodes)}
    for old, new in zip((first, *rest), rest, strict=False):
        old.replace_all_uses_with(new, delete_user_cb=lambda user, new=new: place[user] > place[new])
    return len(rest)


def _made(node: fx.Node) -> torch.Tensor:
    """What the node gives for the values of its arguments."""
    args, kwargs = fx.map_arg((node.args, node.kwargs), value_of_node)
    with torch.no_grad():
        call = getattr(args[0], node.target) if node.op == "call_method" else node.target
        return call(*(args[1:] if node.op == "call_method" else args), **kwargs)


def _rewritten(node: fx.Node, known: Survey) -> bool:
    target = node.args[0] if node.args else None
    if node.target is operator.setitem and _is_choice(node, known):
        return True
    function = _functional(node)
    if function is None or not isinstance(target, fx.Node) or not _is_ours(target, known):
        return False
    if known.recorded[target] != known.recorded[node]:  # of a write that is not recorded no derivative knows
        return False
    if not _own_memory(target, known) or not _unseen(target, node, known) or not _same_kind(node, target, function):
        return False
    if node.target is operator.setitem:
        node.meta = {**node.meta, **{key: target.meta[key] for key in ("example_value", "val") if key in target.meta}}
    _replace(node, target, function, node.args, known)
    return True


def _is_ours(target: fx.Node, known: Survey) -> bool:
    """Comes from a contraction, or is made of numbers, as masks are."""
    return bool(known.plain[target] or known.reduced[target] or known.free[target])


def _replace(node: fx.Node, target: fx.Node, function, args: tuple, known: Survey) -> None:
    """The node gives what its target holds behind it."""
    later = lambda user: user is not node and known.place[user] > known.place[node]
    node.target, node.args = function, args
    target.replace_all_uses_with(node, delete_user_cb=later)
    known.kind[node], known.plain[node], known.reduced[node] = "pointwise", known.plain[target], known.reduced[target]


def _is_choice(node: fx.Node, known: Survey) -> bool:
    """t[index] = number, and t[index] += number, as a choice by a mask, where they could be rewritten."""
    target, index, value = node.args
    parts = parts_of(target, index) if isinstance(target, fx.Node) else None
    if parts is None or not _is_ours(target, known) or not _own_memory(target, known):
        return False
    updated = _updated(node) if isinstance(value, fx.Node) else ()
    number = value if isinstance(value, int | float) else updated[0].args[1] if updated else None
    if number is None or not value_of_node(target).is_floating_point() or not _unseen(target, node, known, updated):
        return False
    with node.graph.inserting_before(node):
        mask = mask_of(target, parts)
        made = called(target, _OPERATORS[value.target], target, number) if updated else None
    node.meta = {**node.meta, **{key: target.meta[key] for key in ("example_value", "val") if key in target.meta}}
    if made is None:
        _replace(node, target, torch.masked_fill, (target, mask, number), known)
    else:
        known.place[made] = known.place[node]
        _replace(node, target, torch.where, (mask, made, target), known)
    for old in updated:
        node.graph.erase_node(old)
    return True


def _updated(node: fx.Node) -> tuple[fx.Node, ...]:
    """Of t[index] += number the sum in place and the view that it writes, if nobody else reads them."""
    target, index, value = node.args
    if value.target not in _OPERATORS or set(value.users) != {node} or not isinstance(value.args[1], int | float):
        return ()
    view = value.args[0]
    same = view.target is operator.getitem and view.args == (target, index) and set(view.users) == {value}
    return (value, view) if same else ()


def _functional(node: fx.Node):
    """What the node would call if it returned a new tensor; None if that is not known to exist."""
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


def _of_torch(node: fx.Node):
    """torch.relu for torch.relu_, and the like."""
    name = name_of(node)
    spaces = (s for s in (torch, torch.nn.functional) if name and getattr(s, name, None) is node.target)
    found = (getattr(s, name.removesuffix("_"), None) for s in spaces if kind_of(node) == "pointwise")
    return next(filter(None, found), None)


def _is_filling(target, mask, value) -> bool:
    """A number at every place of a mask of the tensor's own shape: t[mask] = number."""
    known = [value_of_node(n) if isinstance(n, fx.Node) else None for n in (target, mask)]
    if not all(isinstance(t, torch.Tensor) for t in known) or not isinstance(value, int | float):
        return False
    return known[1].dtype == torch.bool and known[0].dim() == known[1].dim()


def _own_memory(target: fx.Node, known: Survey) -> bool:
    """What the graph made, or a view of it, if nobody else reads what is looked at."""
    while known.kind[target] == "view" and not changes_in_place(target) and _looks_alone(target):
        target = target.args[0]
    made = target.op in ("call_function", "call_method") and known.kind[target] in MAKES_NEW_MEMORY
    return made and not changes_in_place(target) and not has_trait(target, Trait.MAY_ALIAS)


def _looks_alone(view: fx.Node) -> bool:
    looked_at = view.args[0] if view.args else None
    return isinstance(looked_at, fx.Node) and len(looked_at.users) == 1 and shape(looked_at) is not None


def _unseen(target: fx.Node, node: fx.Node, known: Survey, apart: Iterable[fx.Node] = ()) -> bool:
    """No view of the target's memory from before the write is used after it, besides those `apart`."""
    seen, stack = set(apart), [(u, target) for u in target.users if u is not node]
    while stack:
        user, read = stack.pop()
        if user in seen or known.place[user] > known.place[node] or _only_measured(read, user, known):
            continue  # what is made after the write reads the new value
        seen.add(user)
        if known.kind[user] in ("view", "cast", "other") or changes_in_place(user) or has_trait(user, Trait.MAY_ALIAS):
            if any(known.place[u] > known.place[node] for u in user.users) or node in user.users:
                return False
            stack.extend((u, user) for u in user.users)
    return True


def _only_measured(read: fx.Node, user: fx.Node, known: Survey) -> bool:
    """A view of another tensor that takes no more than its shape or dtype from what is read, as expand_as does."""
    first = user.args[0] if user.args else None
    return known.kind[user] in ("view", "cast") and isinstance(first, fx.Node) and first is not read


def _same_kind(node: fx.Node, target: fx.Node, function) -> bool:
    """The functional operation gives the dtype and shape of the memory that was written."""
    try:
        args, kwargs = fx.map_arg((node.args, node.kwargs), value_of_node)
        made = (
            getattr(args[0], function)(*args[1:], **kwargs) if isinstance(function, str) else function(*args, **kwargs)
        )
    except Exception:  # whatever a meta computation may raise: the operation then stays as it was
        return False
    old = value_of_node(target)
    return isinstance(made, torch.Tensor) and (made.dtype, made.shape) == (old.dtype, old.shape)
