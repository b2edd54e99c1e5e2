"""One walk over a graph before regions are looked for: the kind of each node, and the products its value comes from.

Every node is seen after its inputs; no node changes. Example: in softmax(q @ k.mT) @ v, the first product reaches the
second one through a reduction.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from math import prod

import torch
from torch import fx

from ..egraph.forks import cached_property
from ..egraph.search.cost import NOMINAL_SIZE
from .axes import Axes, Mixture, axes_through, mixture_of_product, mixture_of_sum, product_axes, reduced_dims
from .grad_modes import recording
from .mutations import writes
from .nodes import size_of, value_of_node
from .op_kinds import (
    INTERIOR,
    Trait,
    changes_in_place,
    gives_positions,
    has_trait,
    is_aten,
    is_higher_order,
    kind_of,
    name_of,
    waits_for_exchange,
)
from .reduced_products import ReducedProduct, reduced_product

Nodes = frozenset[fx.Node]
NOTHING: Nodes = frozenset()
# Unknown operations between products and a node: on the ways without a reduction, and on those with one.
Interruptions = tuple[fx.Node | None, fx.Node | None]
UNINTERRUPTED: Interruptions = (None, None)
CALLS = ("call_function", "call_method")
ELEMENTWISE_GATHERS = ("gather", "take_along_dim")  # a position for each element, not for each row
SOURCE = "onepass_source"  # of an input of a called graph: what `source_name` calls its argument
# Parts of names by which operations without a row reduce: gumbel_softmax, a user's softmax, argmax, cumprod.
NAME_PARTS_OF_REDUCTIONS = ("softm", "argm", "cum")


@dataclass
class Survey:
    """What is known of each node of a graph.

    order, place: the nodes, and their positions. kind: that of the operation, or what the graph makes of it. scope: a
    context such as autocast, or nothing. duals: a number for the level of dual numbers that the graph has opened at the
    node, 0 for none. recorded: whether gradients are recorded at the node.
    plain, reduced: the products that the value comes from, without a reduction on the way, and with one.
    broken: the first unknown operation on such ways. axes: what the axes of such a value are made of.
    mixed: the sizes that a mixture sums over or adds.
    free: whether a region can compute the value again from coordinates or smaller tensors. numbers: whether it is made
    of no tensor that the graph is given, and never written into, so that it has no device of its own.
    in_place: the nodes that write into a tensor.
    """

    order: list[fx.Node]
    place: dict[fx.Node, int]
    kind: dict[fx.Node, str]
    plain: dict[fx.Node, Nodes]
    reduced: dict[fx.Node, Nodes]
    free: dict[fx.Node, bool]
    numbers: dict[fx.Node, bool]
    in_place: list[fx.Node]
    scope: dict[fx.Node, str]
    duals: dict[fx.Node, int]
    broken: dict[fx.Node, Interruptions]
    axes: dict[fx.Node, Axes | None]
    mixed: dict[fx.Node, tuple[int | torch.SymInt, ...]]
    recorded: dict[fx.Node, bool]

    @cached_property
    def switched(self) -> bool:
        """Whether gradients are recorded in one part of the graph and not in another."""
        return len(set(self.recorded.values())) > 1

    @cached_property
    def awaited(self) -> dict[fx.Node, Nodes]:
        """For each node what it waits for: the results of exchanges between ranks that it is made of. Empty without."""
        found: dict[fx.Node, Nodes] = {}
        if any(map(waits_for_exchange, self.order)):
            for node in self.order:
                above = frozenset().union(*(found[n] for n in node.all_input_nodes))
                found[node] = above | {node} if waits_for_exchange(node) else above
        return found


def survey(graph: fx.Graph) -> Survey:
    """What is known of every node of the graph."""
    s = _walk(graph, NOTHING)
    scores = frozenset(n for node in s.order for n in _scores_of_pairs(node, s))
    scores |= {n for n in s.order if s.kind[n] == "layer" and reduced(n, s) is not None}
    return _walk(graph, scores) if scores else s


def reduced(product: fx.Node, s: Survey) -> ReducedProduct | None:
    """The product with its reductions, if nothing else is read of it."""
    return reduced_product(product, s.kind.__getitem__, lambda n: prod(hinted(value_of_node(n))))


def _walk(graph: fx.Graph, scores: Nodes) -> Survey:
    """One walk. scores: what counts as a product: pairs point by point, layers of which only reductions are read."""
    s = Survey(list(graph.nodes), {}, {}, {}, {}, {}, {}, [], {}, {}, {}, {}, {}, recording(graph.nodes))
    open_scopes: list[tuple[str, int]] = []
    written = set().union(*(storages(target) for n in graph.nodes for target in writes(n)))
    for position, node in enumerate(s.order):
        _enter_or_leave(name_of(node), open_scopes, position)
        s.place[node] = position
        s.scope[node], s.duals[node] = _scope(open_scopes)
        s.kind[node], mixture = _kind_and_mixture(node, scores, s)
        _follow_products(node, s)
        _follow_axes(node, mixture, s)
        s.free[node] = _is_free(node, s)
        s.numbers[node] = _is_made_of_numbers(node, written, s)
        s.broken[node] = _interruptions(node, s)
        if changes_in_place(node):
            s.in_place.append(node)
    return s


SCOPES = {  # what opens a scope: its name, and what closes it
    "_enter_autocast": ("autocast", "_exit_autocast"),
    "_jvp_increment_nesting": ("jvp", "_jvp_decrement_nesting"),
    "_enter_dual_level": ("dual numbers", "_exit_dual_level"),
}
CLOSING = tuple(closes for _, closes in SCOPES.values())
FORWARD_MODE = ("jvp", "dual numbers")


def _enter_or_leave(name: str, scopes: list[tuple[str, int]], position: int) -> None:
    """Keeps the list of open scopes, each with the place where it begins."""
    if name in SCOPES or name.endswith("_increment_nesting"):
        scopes.append((SCOPES.get(name, ("a function transform", ""))[0], position))
    elif scopes and (name in CLOSING or name.endswith("_decrement_nesting")):
        scopes.pop()


def _scope(scopes: Sequence[tuple[str, int]]) -> tuple[str, int]:
    """The scope in which an operation means something else than its metadata says, and the level of dual numbers.

    One level of forward mode is no such scope: the operation of a region knows its tangents. A transform of it is one.
    """
    names = [name for name, _ in scopes]
    if names and len({*names}) == len(names) and {*names} <= {*FORWARD_MODE}:
        return "", scopes[0][1] + 1
    return ("a function transform" if names and names[-1] in FORWARD_MODE else "".join(names[-1:])), 0


# Kinds ----------------------------------------------------------------------------------------------------------------


def _kind_and_mixture(node: fx.Node, scores: Nodes, s: Survey) -> tuple[str, Mixture | None]:
    """What the node is among the products of the graph; a sum of pairs counts as a product, as scores do."""
    kind, mixture = _kind_by_inputs(node, s), None
    if kind in ("contraction", "layer"):
        mixture = mixture_of_product(node, s.axes)
        kind = "mixture" if mixture else kind
    elif kind == "reduction" and name_of(node) == "sum":
        mixture = mixture_of_sum(node, s.axes)
        kind = "contraction" if mixture is None and _made_of_pairs(node.all_input_nodes[0], s) else kind
    return "contraction" if node in scores else kind, mixture


def _kind_by_inputs(node: fx.Node, s: Survey) -> str:
    """The kind of the operation, or another one where the inputs make it something else."""
    kind, inputs = kind_of(node), node.all_input_nodes
    if changes_device(node) and not s.numbers[inputs[0]]:
        return "other"
    if has_trait(node, Trait.CUMULATIVE) and all(s.numbers[n] for n in inputs if shape(n) is not None):
        return "creation"
    if kind == "contraction" and any(not storages(n).isdisjoint(storages(node)) for n in inputs):
        return "other"  # an einsum that only moves axes, or reads a diagonal
    return "layer" if kind == "contraction" and _is_projection(node, s) else kind


def _is_projection(node: fx.Node, s: Survey) -> bool:
    """A contraction with a weight: of a batch of rows with one matrix, or with a parameter."""
    operands = [n for n in node.all_input_nodes if shape(n) is not None]
    quantised = has_trait(node, Trait.QUANTISED)
    if any(_is_parameter(root(n, s), quantised) for n in operands):
        return True
    operands = operands[:2] if quantised else operands
    if len(operands) != 2 or name_of(node) == "einsum":
        return False
    left, right = operands
    if len(shape(right)) > 2:
        return False
    return len(shape(left)) > 2 or (s.kind[left] == "view" and _merges_batch(left))


def _merges_batch(view: fx.Node) -> bool:
    """Whether a view is of a whole batch of rows: one matrix picked from a tensor of several is no batch."""
    return not has_trait(view, Trait.PICKS) and len(shape(view.all_input_nodes[0]) or ()) > 2


def _is_parameter(node: fx.Node, or_buffer: bool = False) -> bool:
    """Whether the node is a module's own tensor. or_buffer: quantised weights are often buffers."""
    names = ("parameters", "buffers") if or_buffer else ("parameters",)
    owned = node.op in ("placeholder", "get_attr") and any(name in str(node.target) for name in names)
    return owned or isinstance(value_of_node(node), torch.nn.Parameter)


def changes_device(node: fx.Node) -> bool:
    """Whether the node copies a tensor from one device to another."""
    if kind_of(node) != "cast":
        return False
    values = [value_of_node(n) for n in (node, *node.all_input_nodes[:1])]
    return all(isinstance(x, torch.Tensor) for x in values) and values[0].device != values[-1].device


# Products behind a value ----------------------------------------------------------------------------------------------


def _follow_products(node: fx.Node, s: Survey) -> None:
    """Notes the products that the value comes from: of a product, the node itself."""
    kind, inputs = s.kind[node], node.all_input_nodes if s.kind[node] in INTERIOR else ()
    plain = NOTHING.union(*(s.plain[i] for i in inputs))
    reduced = NOTHING.union(*(s.reduced[i] for i in inputs))
    if gives_positions(node):
        plain, reduced = NOTHING, NOTHING
    elif kind == "reduction":
        plain, reduced = NOTHING, plain | reduced
    s.plain[node] = frozenset((node,)) if kind == "contraction" else plain
    s.reduced[node] = reduced


def _follow_axes(node: fx.Node, mixture: Mixture | None, s: Survey) -> None:
    """Notes what the axes are made of, where the value comes from a product."""
    if mixture is not None:
        s.axes[node], s.mixed[node] = mixture.axes, mixture.sizes
    elif s.kind[node] == "contraction":
        s.axes[node] = product_axes(node, set().union(*_sides(node)) if kind_of(node) == "pointwise" else ())
    elif s.plain[node] or s.reduced[node]:
        s.axes[node] = axes_through(node, s.axes)


def _interruptions(node: fx.Node, s: Survey) -> Interruptions:
    """The unknown operations between products and the node, which may be one itself."""
    kind = s.kind[node]
    if kind == "layer":  # of weights that a softmax made, as a convolution over them is; other layers are ordinary
        return None, _if_made_of(s.reduced, node)
    if kind not in (*INTERIOR, "other") or (kind == "other" and not _holds_tensors(value_of_node(node))):
        return UNINTERRUPTED
    plain, reduced = (_interruption(node, way, s) for way in (0, 1))
    inside = {kind_of(n) for body in bodies(node) for n in body.nodes}
    if not (plain or reduced) or inside & {"contraction", "attention", "layer"}:
        return UNINTERRUPTED
    reduces = "reduction" in (kind, *inside) or (kind == "other" and _is_named_like_a_reduction(node))
    return (None, reduced or plain) if reduces else (plain, reduced)


def _interruption(node: fx.Node, way: int, s: Survey) -> fx.Node | None:
    """The first one behind the node's inputs, on ways without a reduction (0) or with one (1); else the node itself."""
    before = next((s.broken[i][way] for i in node.all_input_nodes if s.broken[i][way]), None)
    ends = s.kind[node] == "other" or gives_positions(node)
    return before or (_if_made_of((s.plain, s.reduced)[way], node) if ends else None)


def _if_made_of(products: dict[fx.Node, Nodes], node: fx.Node) -> fx.Node | None:
    """The node, if one of its inputs comes from products."""
    return node if any(products[i] for i in node.all_input_nodes) else None


def _is_named_like_a_reduction(node: fx.Node) -> bool:
    return any(part in name_of(node) for part in NAME_PARTS_OF_REDUCTIONS)


def _holds_tensors(value) -> bool:
    if isinstance(value, tuple | list):
        return any(map(_holds_tensors, value))
    return isinstance(value, torch.Tensor)


# Questions about nodes ------------------------------------------------------------------------------------------------


def bodies(node: fx.Node) -> Iterator[fx.Graph]:
    """The graphs that a higher-order operation calls."""
    if is_higher_order(node):
        for argument in node.all_input_nodes:
            if argument.op == "get_attr":
                body = getattr(node.graph.owning_module, argument.target, None)
                if isinstance(body, fx.GraphModule):
                    yield body.graph


def shape(node: fx.Node) -> tuple | None:
    """The sizes, symbols as text; None for what is no tensor."""
    value = value_of_node(node)
    if not isinstance(value, torch.Tensor):
        return None
    return tuple(map(size_of, value.shape))


def hinted(value: torch.Tensor) -> list[int]:
    """The sizes; of a symbolic one what it was when the graph was made, or a nominal number."""
    return [n if isinstance(n, int) else n.node.hint if n.node.has_hint() else NOMINAL_SIZE for n in value.shape]


def storages(node: fx.Node) -> set[int]:
    """The memory of the node's tensors: nodes that share memory have members in common."""
    value = value_of_node(node)
    values = value if isinstance(value, tuple | list) else (value,)
    strided = [t for t in values if isinstance(t, torch.Tensor) and t.layout == torch.strided]
    return {t.untyped_storage()._cdata for t in strided}


def source_name(node: fx.Node, inside: str) -> str:
    """The name of the graph's input or attribute that the node is a view of, or its own.

    It is one of a kind in what is compiled together. inside: what the names of the graph's own values begin with.
    """
    base = node
    while base.all_input_nodes and storages(base) == storages(base.all_input_nodes[0]):
        base = base.all_input_nodes[0]
    if base.op in ("placeholder", "get_attr"):
        return base.meta.get(SOURCE, f"{inside}{base.name}")
    return f"{inside}{node.name}"


def root(node: fx.Node, s: Survey) -> fx.Node:
    """The value whose memory the node may share."""
    while s.kind.get(node) in ("view", "cast") and node.all_input_nodes:
        node = node.all_input_nodes[0]
    return node


def in_order(nodes: Collection[fx.Node], s: Survey) -> tuple[tuple[fx.Node, ...], tuple[fx.Node, ...]]:
    """The nodes in the order of the graph, and the tensors that they read of others.

    An item of a tuple that another node makes is read as a tensor, so it is left out of the nodes.
    """
    nodes = {n for n in nodes if not _is_item_of_another(n, nodes)}
    ordered = tuple(sorted(nodes, key=s.place.__getitem__))
    return ordered, tuple(dict.fromkeys(i for n in ordered for i in n.all_input_nodes if i not in nodes))


def _is_item_of_another(node: fx.Node, nodes: Collection[fx.Node]) -> bool:
    source = node.args[0] if name_of(node) == "getitem" else None
    return isinstance(source, fx.Node) and source not in nodes and isinstance(value_of_node(source), tuple | list)


def first_unknown_call(node: fx.Node, owned: Nodes, s: Survey) -> fx.Node:
    """Of the calls that make a node outside of a region's values, the first that is unknown; else the first one."""
    reached = _ancestors_outside(node, owned)
    readers: dict[fx.Node, None] = {}
    for n in sorted(reached, key=s.place.__getitem__):
        if any(m in owned or m in readers for m in n.all_input_nodes):
            readers[n] = None
    return next((n for n in readers if s.kind[n] not in INTERIOR), next(iter(readers), node))


def _ancestors_outside(node: fx.Node, owned: Nodes) -> list[fx.Node]:
    """The node and what it is made from, as far as the region's nodes."""
    waiting, seen = [node], {node}
    for n in waiting:
        fresh = [m for m in n.all_input_nodes if m not in seen and m not in owned]
        seen.update(fresh)
        waiting += fresh
    return waiting


# Pairs: what is computed point by point for each row and column -------------------------------------------------------


def _scores_of_pairs(node: fx.Node, s: Survey) -> Iterator[fx.Node]:
    """What a softmax or a step of one reads that is made of pairs point by point, where no product is behind it."""
    if s.kind[node] != "reduction" or s.plain[node.all_input_nodes[0]] or _scores_pairs(node, s):
        return
    waiting, seen = [node.all_input_nodes[0]], set()
    while waiting:
        inner = waiting.pop()
        if inner in seen or shape(inner) is None:
            continue
        seen.add(inner)
        if _scores_pairs(inner, s) and (s.kind[inner] != "pointwise" or has_trait(node, Trait.SOFTMAX_STEP)):
            yield inner
        else:
            waiting += _same_elements(inner, s)


def _same_elements(node: fx.Node, s: Survey) -> list[fx.Node]:
    """The inputs that have the elements of a view, or those of a pointwise operation that have its shape."""
    if s.kind[node] == "view":
        return node.all_input_nodes[:1]
    pointwise = s.kind[node] in ("pointwise", "cast")
    return [n for n in node.all_input_nodes if shape(n) == shape(node)] if pointwise else []


def _scores_pairs(node: fx.Node, s: Survey) -> bool:
    """Whether the node makes a number of each pair: point by point, with weights, or as a distance."""
    if s.kind[node] == "pointwise":
        return _is_outer(node) and all(_sides(node)) and value_of_node(node).is_floating_point()
    if s.kind[node] == "layer":
        return has_trait(node, Trait.ANY_RANK) and _weighs_pairs(node, s)
    return has_trait(node, Trait.MAKES_DISTANCES) and _leaves_pairs(node, s)


def _leaves_pairs(node: fx.Node, s: Survey) -> bool:
    """A reduction of what is made of pairs that leaves pairs: that of a distance does, and that of scores does not."""
    source = node.all_input_nodes[0]
    dims = [d for d in reduced_dims(node, 2 if has_trait(node, Trait.VECTOR_NORM) else 1) if isinstance(d, int)]
    found = _made_of_pairs(source, s) if dims else []
    return bool(found) and all(side - {d % len(shape(source)) for d in dims} for n in found for side in _sides(n))


def _weighs_pairs(node: fx.Node, s: Survey) -> bool:
    """A product with weights of what is made of pairs, that makes fewer numbers of each, as of tanh(q + k)."""
    pairs = next(n for n in node.all_input_nodes if shape(n) is not None)
    fewer = shape(node) is not None and prod(hinted(value_of_node(node))) < prod(hinted(value_of_node(pairs)))
    return fewer and bool(_made_of_pairs(pairs, s))


def _made_of_pairs(node: fx.Node, s: Survey) -> list[fx.Node]:
    """The pointwise operations larger than both of their operands that the node is made of, point by point.

    Empty where the node is made of anything else too.
    """
    own, waiting, seen, found = shape(node), [node], {node}, []
    while waiting:
        inner = waiting.pop()
        inputs = [n for n in inner.all_input_nodes if shape(n) is not None]
        alike = [n for n in inputs if _unexpanded(n) == own]
        if s.kind.get(inner) not in ("pointwise", "cast") or not inputs:
            return []
        if not alike and len(inputs) == 2:
            found.append(inner)
            continue
        fresh = [n for n in alike or inputs if n not in seen]
        seen.update(fresh)
        waiting += fresh
    return found


def _unexpanded(node: fx.Node) -> tuple:
    """The node's shape, with axes of one element where it only repeats them."""
    own = shape(node)
    while has_trait(node, Trait.REPEATS) and node.all_input_nodes:
        node = node.all_input_nodes[0]
    smallest = (1,) * (len(own) - len(shape(node))) + tuple(shape(node))
    return tuple(1 if old == 1 else new for old, new in zip(smallest, own, strict=True))


def _is_outer(node: fx.Node) -> bool:
    """Whether a pointwise operation is of two operands, both smaller than its result."""
    inputs = [_unexpanded(n) for n in node.all_input_nodes if shape(n) is not None]
    return len(inputs) == 2 and shape(node) not in inputs


def _sides(node: fx.Node) -> list[set[int]]:
    """The axes that only the first operand has, and those that only the second one has."""
    own = shape(node)
    shapes = [_unexpanded(n) for n in node.all_input_nodes if shape(n) is not None]
    one, other = ((1,) * (len(own) - len(x)) + x for x in shapes)
    return [{k for k, (a, b) in enumerate(zip(*pair)) if a != 1 and b == 1} for pair in ((one, other), (other, one))]


# What can be computed again -------------------------------------------------------------------------------------------


def _is_free(node: fx.Node, s: Survey) -> bool:
    """Can be computed from coordinates or from smaller tensors: masks, position biases."""
    kind = s.kind[node]
    if kind == "creation" or _is_lookup_of_numbers(node, s):
        return True
    if kind not in ("pointwise", "view", "cast"):
        return False
    own = shape(node)
    inputs = [n for n in node.all_input_nodes if shape(n) is not None]
    if own is None or not inputs:
        return own is not None and kind != "view"
    smaller = lambda n: kind == "pointwise" and shape(n) != own
    return all(s.free[n] or smaller(n) for n in inputs)


def _is_made_of_numbers(node: fx.Node, written: set[int], s: Survey) -> bool:
    """A call that makes a tensor of no tensor that the graph is given, into which nothing is ever written."""
    if not s.free[node] or node.op not in CALLS or changes_in_place(node) or storages(node) & written:
        return False
    return all(s.numbers[n] or shape(n) is None for n in node.all_input_nodes)


def is_lookup(node: fx.Node, s: Survey) -> bool:
    """A table read at positions that can be computed again, such as random blocks or biases by distance.

    The table is smaller than the result, or holds integers and is read in the order of coordinates: then no more of it
    is read than the result has.
    """
    table, positions = table_and_positions(node)
    if table is None or not all(s.free[n] for n in positions.values()):
        return False
    in_order = not value_of_node(table).is_floating_point() and all(s.numbers[n] for n in positions.values())
    return in_order or is_smaller(table, node)


def table_and_positions(node: fx.Node) -> tuple[fx.Node | None, dict[int, fx.Node]]:
    """What a gather reads, and by axis the integer tensors that say where; (None, {}) of any other node."""
    table, index = _table_and_index(node)
    positions = {axis: n for axis, n in enumerate(index) if _is_tensor(n)}
    plain = len(positions) + index.count(slice(None)) == len(index)
    integers = all(value_of_node(n).dtype in (torch.int32, torch.int64) for n in positions.values())
    if _is_tensor(node) and _is_tensor(table) and positions and plain and integers:
        return table, positions
    return None, {}


def gathered(node: fx.Node) -> tuple[fx.Node, ...]:
    """Of a call that reads a tensor at positions that are data: that tensor, then the positions; () of any other node.

    Example: (cache, table) of cache[table], where the table holds the numbers of pages.
    """
    if name_of(node) in ELEMENTWISE_GATHERS:
        read = tuple(n for n in node.all_input_nodes if _is_tensor(n))
        return read if _is_tensor(node) and len(read) == 2 else ()
    table, positions = table_and_positions(node)
    return () if table is None else (table, *positions.values())


def _is_tensor(argument) -> bool:
    return isinstance(argument, fx.Node) and shape(argument) is not None


def _table_and_index(node: fx.Node) -> tuple:
    """What is read and the index into it: table[index], index_select, an embedding that leaves its table as it is."""
    if name_of(node) == "index":  # ATen's table[index]: None leaves an axis as it is
        table, index = node.args[:2]
        return table, tuple(slice(None) if n is None else n for n in index)
    if name_of(node) == "index_select":
        given = dict(zip(("input", "dim", "index"), node.args)) | node.kwargs
        table = given.get("input")
        before = given["dim"] % len(shape(table)) if _is_tensor(table) and shape(table) else 0
        return table, (*(slice(None) for _ in range(before)), given.get("index"))
    if name_of(node) == "getitem":
        table, index = node.args[:2]
        return table, index if isinstance(index, tuple) else (index,)
    if name_of(node) != "embedding" or node.kwargs.get("max_norm", (*node.args, None, None, None, None)[3]) is not None:
        return None, ()
    first, second = (*node.args, *(node.kwargs.get(name) for name in ("input", "weight", "indices")))[:2]
    return (first, (second,)) if is_aten(node) else (second, (first,))


def _is_lookup_of_numbers(node: fx.Node, s: Survey) -> bool:
    table, index = _table_and_index(node)
    read = [n for n in (table, *index) if isinstance(n, fx.Node)]
    return len(read) > 1 and all(s.numbers[n] for n in read)


def is_smaller(table: fx.Node, node: fx.Node) -> bool:
    """Whether a table has fewer elements than what is read from it; of unknown sizes, fewer axes."""
    known = [prod(sizes) if all(isinstance(n, int) for n in sizes) else None for sizes in map(shape, (table, node))]
    if None in known:
        return len(shape(table)) < len(shape(node))
    return known[0] < known[1]
