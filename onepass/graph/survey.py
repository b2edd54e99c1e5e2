"""The walk over a graph before regions are looked for: what each node is, which contractions its value comes from.

Every node is seen once, after its inputs. No node changes.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import dataclass
from math import prod

import torch
from torch import fx

from ..egraph.forks import cached_property
from ..egraph.search.cost import NOMINAL
from . import axes
from .grad_modes import recording
from .mutations import writes
from .nodes import size_of, value_of_node
from .op_kinds import INTERIOR, Trait, changes_in_place, has_trait, is_aten, is_higher_order, kind_of, name_of

Nodes = frozenset[fx.Node]
NOTHING: Nodes = frozenset()
Broken = tuple[fx.Node | None, fx.Node | None]
WHOLE: Broken = (None, None)
CALLS = ("call_function", "call_method")
# Parts of names by which operations without a row reduce: gumbel_softmax, a user's softmax, argmax, cumprod.
NAME_PARTS_OF_REDUCTIONS = ("softm", "argm", "cum")


@dataclass
class Survey:
    """One walk over the graph: kinds, positions, which contractions a value comes from, plainly or by a reduction.

    `broken` holds, for the same two ways, the first unknown operation on a way from a contraction; `axes` what the axes
    of such a value are made of, `mixed` the sizes that a mixture sums over or makes. `numbers`: made of no tensor that
    the graph is given, and never written into, so that the device is no part of what it is. `recorded`: gradients are
    where the node stands.
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
    broken: dict[fx.Node, Broken]
    axes: dict[fx.Node, axes.Axes | None]
    mixed: dict[fx.Node, tuple[int | torch.SymInt, ...]]
    recorded: dict[fx.Node, bool]

    @cached_property
    def switched(self) -> bool:
        """Whether gradients are recorded in one part of the graph and not in another."""
        return len(set(self.recorded.values())) > 1


def survey(graph: fx.Graph) -> Survey:
    """What is known of every node of the graph."""
    s = _walk(graph, NOTHING)
    scores = frozenset(n for node in s.order for n in _scores_of_pairs(node, s))
    return _walk(graph, scores) if scores else s


def _walk(graph: fx.Graph, scores: Nodes) -> Survey:
    """One walk; scores: what is made of pairs point by point and counts as a product of them, as sums always do."""
    s = Survey(list(graph.nodes), {}, {}, {}, {}, {}, {}, [], {}, {}, {}, {}, recording(graph.nodes))
    open_scopes: list[str] = []
    changed = set().union(*(storages(target) for n in graph.nodes for target in writes(n)))
    for position, node in enumerate(s.order):
        kind = "other" if moves(node) and not s.numbers[node.all_input_nodes[0]] else kind_of(node)
        tensors = [n for n in node.all_input_nodes if shape(n) is not None]
        if has_trait(node, Trait.CUMULATIVE) and all(s.numbers[n] for n in tensors):
            kind = "creation"
        if kind == "contraction" and any(not storages(n).isdisjoint(storages(node)) for n in node.all_input_nodes):
            kind = "other"  # an einsum that only moves axes, or looks at a diagonal: a view, by a name of another kind
        if kind == "contraction" and _is_projection(node, s):
            kind = "layer"
        mixed = axes.mixture(node, s.axes) if kind in ("contraction", "layer") else None
        kind = "mixture" if mixed else kind
        if kind == "reduction" and name_of(node) == "sum":
            mixed = axes.totalled(node, s.axes)
            kind = "contraction" if mixed is None and _made_of_pairs(node.all_input_nodes[0], s) else kind
        kind = "contraction" if node in scores else kind
        _enter_or_leave(name_of(node), open_scopes)
        s.place[node], s.kind[node], s.scope[node] = position, kind, open_scopes[-1] if open_scopes else ""
        inputs = node.all_input_nodes
        plain = frozenset().union(*(s.plain[i] for i in inputs)) if kind in INTERIOR else NOTHING
        reduced = frozenset().union(*(s.reduced[i] for i in inputs)) if kind in INTERIOR else NOTHING
        if kind == "reduction":
            plain, reduced = NOTHING, plain | reduced
        s.plain[node] = frozenset((node,)) if kind == "contraction" else plain
        s.reduced[node] = reduced
        if mixed is not None:
            s.axes[node], s.mixed[node] = mixed.axes, mixed.sizes
        elif kind == "contraction":
            s.axes[node] = axes.made(node, set().union(*_sides(node)) if kind_of(node) == "pointwise" else ())
        elif plain or reduced:
            s.axes[node] = axes.carried(node, s.axes)
        s.free[node] = _is_free(node, kind, s)
        made = s.free[node] and node.op in CALLS and not changes_in_place(node) and storages(node).isdisjoint(changed)
        s.numbers[node] = made and all(s.numbers[n] or shape(n) is None for n in inputs)
        s.broken[node] = _broken(node, kind, s)
        if changes_in_place(node):
            s.in_place.append(node)
    return s


def _enter_or_leave(name: str, scopes: list[str]) -> None:
    """Scopes in which an operation means something else than its metadata says."""
    if name == "_enter_autocast" or name.endswith("_increment_nesting"):
        scopes.append("autocast" if "autocast" in name else "a function transform")
    elif scopes and (name == "_exit_autocast" or name.endswith("_decrement_nesting")):
        scopes.pop()


def _broken(node: fx.Node, kind: str, s: Survey) -> Broken:
    """The unknown operations that stand between contractions and the node: with no reduction on the way, with one."""
    inputs = node.all_input_nodes
    if kind == "layer":  # of weights that a softmax made, as a convolution over them is; other layers are ordinary
        return None, node if any(s.reduced[i] for i in inputs) else None
    if not inputs or (kind != "other" and kind not in INTERIOR):
        return WHOLE
    plain = next((s.broken[i][0] for i in inputs if s.broken[i][0]), None)
    reduced = next((s.broken[i][1] for i in inputs if s.broken[i][1]), None)
    if kind == "other":
        if not _holds_tensors(value_of_node(node)):  # a size, an assertion
            return WHOLE
        plain = plain or (node if any(s.plain[i] for i in inputs) else None)
        reduced = reduced or (node if any(s.reduced[i] for i in inputs) else None)
    if not (plain or reduced):
        return WHOLE
    inside = {kind_of(n) for body in bodies(node) for n in body.nodes}
    if inside & {"contraction", "attention", "layer"}:
        return WHOLE
    named = kind == "other" and any(part in name_of(node) for part in NAME_PARTS_OF_REDUCTIONS)
    reduces = kind == "reduction" or "reduction" in inside or named
    return (None, reduced or plain) if reduces else (plain, reduced)


def _holds_tensors(value) -> bool:
    if isinstance(value, tuple | list):
        return any(map(_holds_tensors, value))
    return isinstance(value, torch.Tensor)


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
    return [n if isinstance(n, int) else n.node.hint if n.node.has_hint() else NOMINAL for n in value.shape]


def in_order(nodes: Collection[fx.Node], s: Survey) -> tuple[tuple[fx.Node, ...], tuple[fx.Node, ...]]:
    """The nodes as they stand in the graph, and what they read of others: tensors, so no item of another's tuple."""
    nodes = {n for n in nodes if not _is_item_of_another(n, nodes)}
    ordered = tuple(sorted(nodes, key=s.place.__getitem__))
    return ordered, tuple(dict.fromkeys(i for n in ordered for i in n.all_input_nodes if i not in nodes))


def _is_item_of_another(node: fx.Node, nodes: Collection[fx.Node]) -> bool:
    source = node.args[0] if name_of(node) == "getitem" else None
    return isinstance(source, fx.Node) and source not in nodes and isinstance(value_of_node(source), tuple | list)


def first_stranger(node: fx.Node, owned: Nodes, s: Survey) -> fx.Node:
    """Back from a node outside to the call that is not understood, of those that make it of a region's values.

    Where all are, the first of them.
    """
    waiting, seen = [node], {node}
    for n in waiting:
        fresh = [m for m in n.all_input_nodes if m not in seen and m not in owned]
        seen.update(fresh)
        waiting += fresh
    readers: dict[fx.Node, None] = {}
    for n in sorted(waiting, key=s.place.__getitem__):
        if any(m in owned or m in readers for m in n.all_input_nodes):
            readers[n] = None
    return next((n for n in readers if s.kind[n] not in INTERIOR), next(iter(readers), node))


def root(node: fx.Node, s: Survey) -> fx.Node:
    """The value whose memory the node may share."""
    while s.kind.get(node) in ("view", "cast") and node.all_input_nodes:
        node = node.all_input_nodes[0]
    return node


def _is_projection(node: fx.Node, s: Survey) -> bool:
    """A contraction with a weight: of a batch of rows with one matrix, or with a parameter."""
    operands = [n for n in node.all_input_nodes if shape(n) is not None]
    if any(_is_parameter(root(n, s)) for n in operands):
        return True
    if len(operands) != 2 or name_of(node) == "einsum":
        return False
    left, right = operands
    if len(shape(right)) > 2:
        return False
    return len(shape(left)) > 2 or (s.kind[left] == "view" and _merges(left))


def _merges(view: fx.Node) -> bool:
    """Whether a view is of a whole batch of rows: one matrix picked from a tensor of several is no batch."""
    return not has_trait(view, Trait.PICKS) and len(shape(view.all_input_nodes[0]) or ()) > 2


def _leaves_pairs(node: fx.Node, s: Survey) -> bool:
    """A fold of what is made of pairs that leaves pairs, as that of a distance does and that of scores does not."""
    source = node.all_input_nodes[0]
    dims = [d for d in axes.folded(node, 2 if has_trait(node, Trait.VECTOR_NORM) else 1) if isinstance(d, int)]
    found = _made_of_pairs(source, s) if dims else []
    return bool(found) and all(side - {d % len(shape(source)) for d in dims} for n in found for side in _sides(n))


def _weighs_pairs(node: fx.Node, s: Survey) -> bool:
    """A product with weights of what is made of pairs, that makes fewer numbers of each, as of tanh(q + k)."""
    pairs = next(n for n in node.all_input_nodes if shape(n) is not None)
    fewer = shape(node) is not None and prod(hinted(value_of_node(node))) < prod(hinted(value_of_node(pairs)))
    return fewer and bool(_made_of_pairs(pairs, s))


def _made_of_pairs(node: fx.Node, s: Survey) -> list[fx.Node]:
    """What the node is computed from, point by point and by nothing else, that is larger than both of its operands."""
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
    least = (1,) * (len(own) - len(shape(node))) + tuple(shape(node))
    return tuple(1 if old == 1 else new for old, new in zip(least, own, strict=True))


def _is_outer(node: fx.Node) -> bool:
    """Whether a pointwise operation is of two operands, both smaller than its result."""
    inputs = [_unexpanded(n) for n in node.all_input_nodes if shape(n) is not None]
    return len(inputs) == 2 and shape(node) not in inputs


def _sides(node: fx.Node) -> list[set[int]]:
    """The axes that only the one operand of such an operation has, and those of the other."""
    own = shape(node)
    shapes = [_unexpanded(n) for n in node.all_input_nodes if shape(n) is not None]
    one, other = ((1,) * (len(own) - len(x)) + x for x in shapes)
    return [{k for k, (a, b) in enumerate(zip(*pair)) if a != 1 and b == 1} for pair in ((one, other), (other, one))]


def _scores_of_pairs(node: fx.Node, s: Survey) -> Iterator[fx.Node]:
    """What a softmax or a part of one reads that is made of pairs point by point, where no product is behind it."""
    if s.kind[node] != "reduction" or s.plain[node.all_input_nodes[0]] or _scores_pairs(node, s):
        return
    waiting, seen = [node.all_input_nodes[0]], set()
    while waiting:
        inner = waiting.pop()
        if inner in seen or shape(inner) is None:
            continue
        seen.add(inner)
        if _scores_pairs(inner, s) and (s.kind[inner] != "pointwise" or has_trait(node, Trait.SOFTMAX_STEP)):
            yield inner  # a sum of pairs as they are counts as a product itself
        elif s.kind[inner] == "view":
            waiting += inner.all_input_nodes[:1]
        elif s.kind[inner] in ("pointwise", "cast"):
            waiting += [n for n in inner.all_input_nodes if shape(n) == shape(inner)]


def _scores_pairs(node: fx.Node, s: Survey) -> bool:
    if s.kind[node] == "pointwise":
        return _is_outer(node) and all(_sides(node)) and value_of_node(node).is_floating_point()
    if s.kind[node] == "layer":
        return has_trait(node, Trait.ANY_RANK) and _weighs_pairs(node, s)
    return has_trait(node, Trait.MAKES_DISTANCES) and _leaves_pairs(node, s)


def is_lookup(node: fx.Node, s: Survey) -> bool:
    """A table read at places that can be made anew, as blocks drawn at random and biases by distance are.

    A smaller one, or one of integers that is read in the order of coordinates, which reads no more than its result.
    """
    tensor = lambda n: isinstance(n, fx.Node) and shape(n) is not None
    table, index = _table_and_index(node)
    if not tensor(node) or not tensor(table):
        return False
    places = list(filter(tensor, index))
    if len(places) + index.count(slice(None)) != len(index) or not places:
        return False
    in_order = not value_of_node(table).is_floating_point() and all(s.numbers[n] for n in places)
    if not (in_order or _is_smaller(table, node)):
        return False
    return all(s.free[n] and value_of_node(n).dtype in (torch.int32, torch.int64) for n in places)


def _table_and_index(node: fx.Node) -> tuple:
    """What is read and the index into it, of table[index] and of an embedding that leaves its table as it is."""
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


def _is_smaller(table: fx.Node, node: fx.Node) -> bool:
    """Whether a table has fewer elements than what is read from it; of unknown sizes, fewer axes say so."""
    known = [prod(sizes) if all(isinstance(n, int) for n in sizes) else None for sizes in map(shape, (table, node))]
    if None in known:
        return len(shape(table)) < len(shape(node))
    return known[0] < known[1]


def _is_parameter(node: fx.Node) -> bool:
    return isinstance(value_of_node(node), torch.nn.Parameter) or (
        node.op in ("placeholder", "get_attr") and "parameters" in str(node.target)
    )


def storages(node: fx.Node) -> set:
    """The memory of the node's tensors, as equal members of the sets of nodes that share it."""
    value = value_of_node(node)
    values = value if isinstance(value, tuple | list) else (value,)
    strided = [t for t in values if isinstance(t, torch.Tensor) and t.layout == torch.strided]
    return {t.untyped_storage()._cdata for t in strided if not torch._C._functorch.is_functorch_wrapped_tensor(t)}


def moves(node: fx.Node) -> bool:
    """A copy from one device to another."""
    here, given = (value_of_node(n) for n in (node, *node.all_input_nodes[:1])) if kind_of(node) == "cast" else (0, 0)
    return all(isinstance(x, torch.Tensor) for x in (here, given)) and here.device != given.device


def _is_free(node: fx.Node, kind: str, s: Survey) -> bool:
    """Can be made anew from coordinates or from smaller tensors: masks, position biases."""
    if kind == "creation" or _is_lookup_of_numbers(node, s):
        return True
    if kind not in ("pointwise", "view", "cast"):
        return False
    own = shape(node)
    inputs = [n for n in node.all_input_nodes if shape(n) is not None]
    if own is None or not inputs:
        return own is not None and kind != "view"
    if kind == "pointwise":
        return all(s.free[n] or shape(n) != own for n in inputs)
    return all(s.free[n] for n in inputs)
