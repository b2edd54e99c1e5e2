"""Rows of a layer: what picks or orders them behind the layer does so in front of it, and several axes become one.

A layer's rows are independent of each other, so the graph computes what it computed. A layer over rows of one axis is
one plain product, and so are its gradients. Example: `F.linear(h, w)[:, :-1].float().view(-1, n)`, as before the cross
entropy of the next word, is `F.linear(h[:, :-1].reshape(-1, d), w).float()`.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping, Sequence
from math import prod

import torch
from torch import fx
from torch._subclasses.fake_tensor import FakeTensor
from torch.fx.node import Argument
from torch.utils._pytree import tree_leaves

from ..graph.axes import permutation
from ..graph.nodes import size_of, value_of_node
from ..graph.op_kinds import Trait, changes_in_place, has_trait, is_aten, is_random, kind_of, name_of
from ..graph.reduced_products import ReducedProduct, reduced_product
from ..graph.survey import hinted
from .grow import axis_of

MAX_CHAIN = 40  # nodes behind a layer, one after the other
MOVED = Trait.SWAPS_AXES | Trait.PERMUTES | Trait.MOVES_AXES | Trait.TRANSPOSES
OF_TWO_AXES = ("tril", "triu")
OF_A_RANK = {torch.channels_last, torch.channels_last_3d}
COPIES = ("contiguous", "clone")
PICKS = ("gather", "take_along_dim")
Target = str | Callable  # a method's name, or a function
Call = tuple[Target, tuple]  # with arguments besides the tensor


def flatten_rows(graph: fx.Graph) -> None:
    """Rewrites the layers of a graph, and cross entropies whose classes are the second of several axes."""
    if any(map(_transforms, graph.nodes)):
        return
    for node in list(graph.nodes):
        if name_of(node) == "cross_entropy":
            _put_classes_last(node)
    for layer in list(graph.nodes):
        if _has_several_axes(layer):
            _move_in_front(layer)
        if _has_several_axes(layer) and (found := _reductions_alone(layer)) is not None:
            _Flattening(layer, found).run()


def _transforms(node: fx.Node) -> bool:
    """Whether a function transform begins at which regions end: there, a value may have an axis more than calls see,
    and the graph does not say which values have a gradient."""
    return name_of(node).endswith("_increment_nesting") and name_of(node) != "_jvp_increment_nesting"


def _has_several_axes(node: fx.Node) -> bool:
    """Whether the node multiplies rows of several axes by one matrix."""
    if name_of(node) not in ("linear", "matmul") or is_aten(node) or len(node.args) < 2 or {*node.kwargs} - {"bias"}:
        return False
    rows, matrix = (value_of_node(n) if isinstance(n, fx.Node) else None for n in node.args[:2])
    if not isinstance(rows, FakeTensor) or not isinstance(matrix, torch.Tensor):
        return False
    some = all(n != 0 for n in (rows.shape[-1], *matrix.shape) if isinstance(n, int))  # else -1 names no size
    return rows.ndim > 2 and matrix.ndim == 2 and isinstance(rows.shape[-1], int) and some


def _reductions_alone(layer: fx.Node) -> ReducedProduct | None:
    return reduced_product(layer, kind_of, lambda n: prod(hinted(value_of_node(n))))


# Nodes with values ----------------------------------------------------------------------------------------------------


def _called(before: fx.Node, target: Target, *args: Argument) -> fx.Node:
    """A call in front of a node, with its source line."""
    with before.graph.inserting_before(before):
        made = before.graph.create_node(_op_of(target), target, args)
    made.meta = dict(before.meta)
    _evaluate(made, _has_gradient(before) and any(map(_has_gradient, made.all_input_nodes)))
    return made


def _has_gradient(node: fx.Node) -> bool:
    value = value_of_node(node)
    values = value if isinstance(value, tuple | list) else (value,)
    return any(isinstance(x, torch.Tensor) and x.requires_grad for x in values)


def _evaluate(node: fx.Node, has_gradient: bool, like: object = None) -> None:
    """Gives a node the value of what it computes of its arguments' values. like: a value of its type under the autocast
    of the graph, which is not entered here."""
    args, kwargs = fx.map_arg((node.args, node.kwargs), value_of_node)
    mode = next(x.fake_mode for x in tree_leaves((args, kwargs)) if isinstance(x, FakeTensor))
    with mode, torch.no_grad():
        method = node.op == "call_method"
        value = getattr(args[0], node.target)(*args[1:], **kwargs) if method else node.target(*args, **kwargs)
        value = value.to(like.dtype) if isinstance(like, torch.Tensor) else value
    for one in value if isinstance(value, tuple | list) else (value,):
        if isinstance(one, torch.Tensor) and one.is_floating_point():
            one.requires_grad_(has_gradient)
    node.meta["val" if "val" in node.meta else "example_value"] = value


# From behind a layer to its front -------------------------------------------------------------------------------------


def _move_in_front(layer: fx.Node) -> None:
    """Moves what picks, orders or flattens rows, as far as each value between has one reader."""
    chain = _chain_behind(layer)
    rows = layer.args[0]
    for node, call in chain:
        if call is not None:
            target, args = call
            rows = _called(layer, target, rows, *args)
            node.replace_all_uses_with(node.all_input_nodes[0])
            layer.graph.erase_node(node)
    layer.args = (rows, *layer.args[1:])
    for node in (layer, *(node for node, call in chain if call is None)):
        _evaluate(node, _has_gradient(node), value_of_node(node))


def _chain_behind(layer: fx.Node) -> list[tuple[fx.Node, Call | None]]:
    """The nodes up to the last one that treats rows alone, each with the call that does so to the layer's rows; None
    for one that reads the scores element by element.

    Rows are picked or ordered only if nothing but reductions is read of the scores.
    """
    found: list[tuple[fx.Node, Call | None]] = []
    node, last, width = layer, 0, value_of_node(layer.args[0]).shape[-1]
    reduced = _reductions_alone(layer) is not None
    while len(node.users) == 1 and len(found) < MAX_CHAIN:
        source, (node,) = node, node.users
        value, before = value_of_node(node), value_of_node(source)
        if not isinstance(value, torch.Tensor) or node.all_input_nodes != [source]:
            break
        as_it_is = _is_plain(node) or _is_copy(node)
        if as_it_is and not changes_in_place(node) and value.shape == before.shape:
            found.append((node, None))
        elif (call := _of_rows(node, source, width)) is not None and (reduced or _is_flat(node)):
            found.append((node, call))
            last = len(found)
        else:
            break
    return found[:last]


def _is_copy(node: fx.Node) -> bool:
    """Whether a node copies its elements in their order, of any rank; in a format of one rank, it is a view of rows."""
    return name_of(node) in COPIES and len(node.args) == 1 and not node.kwargs


def _is_flat(node: fx.Node) -> bool:
    return has_trait(node, Trait.KEEPS_ORDER) and value_of_node(node).ndim == 2


def _of_rows(node: fx.Node, source: fx.Node, width: int) -> Call | None:
    """The call that does to rows of a width what a view does to rows of scores; None if it does more than that."""
    value, before = value_of_node(node), value_of_node(source)
    if kind_of(node) != "view" or not _moves_elements(node) or value.ndim < 2 or before.ndim < 2:
        return None
    if has_trait(node, MOVED):
        order = permutation(node, source)
        return None if order is None or order[-1] != before.ndim - 1 else ("permute", tuple(order))
    if has_trait(node, Trait.KEEPS_ORDER) and value.shape[-1] == before.shape[-1]:
        if value.ndim == 2:
            return "reshape", (-1, width)
        rows = _numbers(value.shape[:-1])
        return None if rows is None else ("reshape", (*rows, width))
    if node.target is operator.getitem and _keeps_last(node.args[1], before.ndim):
        return operator.getitem, (node.args[1],)
    return None


def _moves_elements(view: fx.Node) -> bool:
    """Whether a view does nothing else: it has the dtype of what it reads, and its gradient; so `detach` does more."""
    value, before = value_of_node(view), value_of_node(view.all_input_nodes[0])
    return value.dtype == before.dtype and name_of(view).rstrip("_") != "detach"


def _numbers(sizes: Sequence[int | torch.SymInt]) -> tuple[int, ...] | None:
    """Sizes as numbers, also where guards have fixed their symbols; None where one is a symbol."""
    found = tuple(n for n in map(size_of, sizes) if isinstance(n, int))
    return found if len(found) == len(sizes) else None


def _keeps_last(index: Argument, rank: int) -> bool:
    """Whether an index is one of integers and slices, and takes all of the last axis."""
    items = index if isinstance(index, tuple) else (index,)
    if not _is_basic(index):
        return False
    axes = sum(n is not None and n is not Ellipsis for n in items)
    return (Ellipsis not in items and axes < rank) or items[-1] in (slice(None), Ellipsis)


def _is_basic(index: Argument) -> bool:
    """Whether an index is one of integers and slices, which keep the order."""
    items = index if isinstance(index, tuple) else (index,)
    return all(n is None or n is Ellipsis or type(n) is int or _is_of_numbers(n) for n in items)


def _is_of_numbers(item: Argument) -> bool:
    return isinstance(item, slice) and all(n is None or type(n) is int for n in (item.start, item.stop, item.step))


# Several axes as one --------------------------------------------------------------------------------------------------


class _Flattening:
    """The rewriting of one layer of which nothing but reductions is read.

    Where results of it meet element by element, they meet with one axis of rows, too.

    flat: for a node whose first axes are the layer's rows, one with the same elements and one axis of rows. same: those
    of them that have one axis themselves. Nothing is replaced unless all that reads a wide node can be.
    """

    def __init__(self, layer: fx.Node, found: ReducedProduct):
        self.layer, self.found = layer, found
        self.rows = _numbers(value_of_node(layer).shape[:-1]) or ()
        self.flat: dict[fx.Node, fx.Node] = {}
        self.same: set[fx.Node] = set()
        self.made: list[fx.Node] = []

    def run(self) -> None:
        if not self.rows:
            return
        for node in list(self.layer.graph.nodes):
            if node in self.found.nodes or self._joins(node):
                self._follow(node)
        if self._can_replace():
            self._replace()
        for node in reversed(self.made):
            if not node.users:
                self.layer.graph.erase_node(node)

    def _can_replace(self) -> bool:
        """Whether what reads a wide node or several items is flat, too, and each shape is known."""
        apart = [n for n in self.flat if n not in self.same and (n in self.found.wide or _is_tuple(n))]
        if any(user not in self.flat for n in apart for user in n.users):
            return False
        return all(_is_tuple(n) or _numbers(value_of_node(n).shape) is not None for n in self.flat.values())

    def _joins(self, node: fx.Node) -> bool:
        """Whether a node reads flat ones alone, element by element, as one in which results meet."""
        known = bool(node.all_input_nodes) and self.flat.keys() >= {*node.all_input_nodes}
        return known and _is_plain(node) and not changes_in_place(node) and not is_random(node)

    def _follow(self, node: fx.Node) -> None:
        """Makes the flat node of a node, if it has one."""
        if node is not self.layer and self.flat.keys().isdisjoint(node.all_input_nodes):
            return
        if kind_of(node) == "view" and not has_trait(node, Trait.PICKS_ELEMENTS):
            self._follow_view(node)
            return
        arguments = self._arguments(node)
        if arguments is not None:
            self._add(node, node.target, *arguments)

    def _add(self, node: fx.Node, target: Target, args: tuple, kwargs: Mapping[str, Argument] | None = None) -> None:
        with node.graph.inserting_before(node):
            new = node.graph.create_node(_op_of(target), target, args, dict(kwargs or {}))
        new.meta = dict(node.meta)
        self.made.append(new)
        _evaluate(new, _has_gradient(node), value_of_node(node))
        self.flat[node] = new

    def _follow_view(self, node: fx.Node) -> None:
        read = node.all_input_nodes[0]
        source, value = self.flat.get(read), value_of_node(node)
        if source is None or read in self.same or _is_tuple(node):
            return
        if _is_tuple(read):
            self._add(node, operator.getitem, (source, node.args[1]))
        elif value.shape == value_of_node(source).shape and has_trait(node, Trait.KEEPS_ORDER):
            if _moves_elements(node):
                self.flat[node] = source
                self.same.add(node)
        elif _numbers(value.shape[: len(self.rows)]) == self.rows and _keeps_order(node):
            rest = _numbers(value.shape[len(self.rows) :])
            if rest is not None:
                self._add(node, "reshape", (source, prod(self.rows), *rest))

    def _arguments(self, node: fx.Node) -> tuple[tuple, Mapping[str, Argument]] | None:
        """The arguments of the call over flat rows; None for a call that does not treat each row alone."""
        if node is self.layer:
            return (self._reshaped(node, node.args[0]), *node.args[1:]), node.kwargs  # its width is a number
        along = kind_of(node) == "reduction" or name_of(node) in PICKS
        rank = self._rank_by_rows(node, along)
        if rank is None:
            return None
        found = {n: self._operand(node, n, rank) for n in node.all_input_nodes}
        if None in found.values():
            return None
        args, kwargs = fx.map_arg((node.args, node.kwargs), found.__getitem__)
        if along:
            kwargs = {name: -1 if name in ("dim", "axis") else value for name, value in kwargs.items()}
            args = (*args[:1], *(-1 for _ in args[1:2]), *args[2:])
        return args, kwargs

    def _rank_by_rows(self, node: fx.Node, along: bool) -> int | None:
        """The rank of what a call reads of flat nodes; None if it does not treat each row alone.

        along: whether it reduces an axis, or picks along one.
        """
        by_rows = _is_of_the_last_axis(node) if along else _is_plain(node)
        if not by_rows or not self.same.isdisjoint(node.all_input_nodes):
            return None
        rank, *others = {value_of_node(n).ndim for n in node.all_input_nodes if n in self.flat}
        if others or (along and rank <= len(self.rows)):  # of other ranks, axes meet that are not the same
            return None
        return rank if self._has_the_rows(value_of_node(node)) else None

    def _has_the_rows(self, value: object) -> bool:
        """Whether a result's first axes, or those of each of its items, are the rows."""
        items = value if isinstance(value, tuple | list) else (value,)
        return all(isinstance(x, torch.Tensor) and _numbers(x.shape[: len(self.rows)]) == self.rows for x in items)

    def _operand(self, node: fx.Node, operand: fx.Node, rank: int) -> fx.Node | None:
        """What a flat call reads in place of an operand of a call of this rank; None if there is nothing."""
        if operand in self.flat:
            return self.flat[operand]
        value, lead = value_of_node(operand), len(self.rows)
        if not isinstance(value, torch.Tensor) or value.ndim <= rank - lead:
            return operand
        if value.ndim == rank and _numbers(value.shape[:lead]) == self.rows:
            return self._reshaped(node, operand)
        rest = _numbers(value.shape[lead:])
        if value.ndim == rank and _numbers(value.shape[:lead]) == (1,) * lead and rest is not None:
            return self._made(_called(node, "reshape", operand, 1, *rest))
        return None

    def _reshaped(self, node: fx.Node, rows: fx.Node) -> fx.Node | None:
        rest = _numbers(value_of_node(rows).shape[len(self.rows) :])
        return None if rest is None else self._made(_called(node, "reshape", rows, prod(self.rows), *rest))

    def _made(self, node: fx.Node) -> fx.Node:
        self.made.append(node)
        return node

    def _replace(self) -> None:
        """Lets what reads a narrow node read the flat one with its axes again."""
        for node, flat in self.flat.items():
            outside = [user for user in node.users if user not in self.flat]
            if outside and node not in self.same and value_of_node(node).ndim >= len(self.rows):
                with node.graph.inserting_after(flat):
                    back = node.graph.call_method("reshape", (flat, *self.rows, *value_of_node(flat).shape[1:]))
                back.meta = dict(node.meta)
                flat = back
            for user in outside:
                user.replace_input_with(node, flat)
        for node in reversed(self.flat):
            node.graph.erase_node(node)


def _op_of(target: Target) -> str:
    return "call_method" if isinstance(target, str) else "call_function"


def _is_tuple(node: fx.Node) -> bool:
    return isinstance(value_of_node(node), tuple | list)


def _keeps_order(node: fx.Node) -> bool:
    """Whether a view has the elements of what it reads, in their order: one that adds or drops axes of one place."""
    made, read = value_of_node(node), value_of_node(node.all_input_nodes[0])
    in_order = has_trait(node, Trait.KEEPS_ORDER) or name_of(node) == "select"
    in_order = in_order or (node.target is operator.getitem and _is_basic(node.args[1]))
    return in_order and made.numel() == read.numel() and made.ndim != read.ndim


def _is_plain(node: fx.Node) -> bool:
    """Whether a call treats each element alone, wherever it is."""
    plain = kind_of(node) in ("cast", "pointwise") and not has_trait(node, Trait.AT_POSITIONS)
    of_a_rank = OF_A_RANK.isdisjoint(n for n in (*node.args, *node.kwargs.values()) if type(n) is torch.memory_format)
    return plain and of_a_rank and name_of(node) not in OF_TWO_AXES


def _is_of_the_last_axis(node: fx.Node) -> bool:
    """Whether a call reduces the last axis, or picks elements along it."""
    if kind_of(node) == "reduction":
        return axis_of(node) == -1
    dim = node.kwargs.get("dim", node.args[1] if len(node.args) > 1 else None)
    return dim in (-1, value_of_node(node.all_input_nodes[0]).ndim - 1)


# Classes as the last axis ---------------------------------------------------------------------------------------------


def _put_classes_last(node: fx.Node) -> None:
    """F.cross_entropy(s.transpose(1, 2), y) is F.cross_entropy(s.reshape(-1, n), y.reshape(-1)), unless it gives the
    losses of all rows."""
    given = {**dict(zip(("input", "target", "weight"), node.args, strict=False)), **node.kwargs}
    by_rows = given.get("reduction", "mean") == "none" or not {"size_average", "reduce"}.isdisjoint(given)
    view, target = given.get("input"), given.get("target")
    if len(node.args) > 3 or by_rows or not isinstance(view, fx.Node) or not isinstance(target, fx.Node):
        return
    source = _with_classes_last(view)
    classes = None if source is None else size_of(value_of_node(source).shape[-1])
    if source is None or not isinstance(classes, int) or classes == 0:
        return
    if value_of_node(target).ndim == value_of_node(view).ndim:  # probabilities
        target = _called(node, "reshape", _called(node, "movedim", target, 1, -1), -1, classes)
    else:
        target = _called(node, "reshape", target, -1)
    rest = {name: value for name, value in given.items() if name not in ("input", "target")}
    node.args, node.kwargs = (_called(node, "reshape", source, -1, classes), target), rest
    if not view.users:
        node.graph.erase_node(view)


def _with_classes_last(view: fx.Node) -> fx.Node | None:
    """What a view of a product's scores has put the classes second of; None of any other node."""
    if not has_trait(view, MOVED) or not _is_of_a_product(source := view.all_input_nodes[0]):
        return None
    rank = value_of_node(view).ndim
    return source if rank > 2 and permutation(view, source) == [0, rank - 1, *range(1, rank - 1)] else None


def _is_of_a_product(node: fx.Node) -> bool:
    """Whether a node is made of a product element by element, or of picked rows of one."""
    while kind_of(node) not in ("contraction", "layer"):
        if kind_of(node) not in ("cast", "pointwise", "view") or len(node.all_input_nodes) != 1:
            return False
        (node,) = node.all_input_nodes
    return True
