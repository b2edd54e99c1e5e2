"""Rewrites reductions by their dims: extrema of scores over several dims, a softmax over another than the last.

The largest score of each head is the largest of its rows' largest scores, which the kernel of the attention knows:
`s.amax((-2, -1))` is rewritten as `s.amax(-1, True).amax((-2, -1))`. In ATen graphs that are left to Inductor, the
maximum and the sum of a softmax over another dim are taken of a view in which that dim is the last: Inductor 2.13
replaces attention by its own kernel whatever dim the softmax is over (pytorch issue 196468). The numbers are the same.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping

import torch
from torch import fx
from torch._inductor import config
from torch._inductor.custom_graph_pass import CustomGraphPass
from torch._ops import OpOverload

from ..compiler import disk_cache
from ..egraph.rewrite.serialization import digest
from ..graph.nodes import value_of_node
from ..graph.op_kinds import Trait, has_trait, is_extremum, kind_of, name_of

ATEN = torch.ops.aten
TOTALS = (ATEN.amax.default, ATEN.sum.dim_IntList)  # The reductions of a softmax, as Inductor's passes see them.
MAX_NODES_OF_SCORES = 40  # between a product and an extremum
HOOK = "joint_custom_pre_pass"
log = logging.getLogger(__name__)


def split_extrema(graph: fx.Graph) -> None:
    """Rewrites the extremum over several dims, or all, of what a product makes: it reads that over the last dim.

    One that needs a gradient stays, because equal elements would share that gradient in another way.
    """
    for node in list(graph.nodes):
        if _is_over_several(node) and _comes_of_a_product(source := node.all_input_nodes[0]):
            with graph.inserting_before(node):
                target = ATEN.amax.default if "max" in name_of(node) else ATEN.amin.default
                inner = graph.call_function(target, (source, [-1], True))
            inner.meta = {**node.meta, "example_value": target(value_of_node(source), [-1], True)}
            node.replace_input_with(source, inner)


def _is_over_several(node: fx.Node) -> bool:
    """Whether the node is an extremum without a gradient over the last dim and others, or over all."""
    if not is_extremum(node) or isinstance(node.target, OpOverload) or not node.all_input_nodes:
        return False
    source, value = (value_of_node(n) for n in (node.all_input_nodes[0], node))
    if not (isinstance(source, torch.Tensor) and isinstance(value, torch.Tensor)) or value.requires_grad:
        return False
    return source.ndim > 1 and source.is_floating_point() and _has_the_last_of_several(node, source.ndim)


def _has_the_last_of_several(node: fx.Node, rank: int) -> bool:
    given = [*node.args[1:2], *(value for name, value in node.kwargs.items() if name == "dim")]
    if not given or given == [()]:
        return len(node.all_input_nodes) == 1
    (dims,) = given
    return isinstance(dims, tuple | list) and len(dims) > 1 and not {-1, rank - 1}.isdisjoint(dims)


def _comes_of_a_product(node: fx.Node) -> bool:
    """Whether the node is made of a product of matrices, element by element."""
    stack, seen = [node], {node}
    while stack and len(seen) <= MAX_NODES_OF_SCORES:
        found = stack.pop()
        if kind_of(found) == "contraction":
            return True
        if kind_of(found) in ("pointwise", "cast", "view"):
            fresh = [n for n in found.all_input_nodes if n not in seen]
            seen.update(fresh)
            stack += fresh
    return False


class OverLastDims(CustomGraphPass):
    """The pass as a hook of Inductor. `then` are the passes that were in the hook before; they run after it."""

    def __init__(self, then: tuple = ()):
        self.then = then

    def __call__(self, graph: fx.Graph) -> None:
        reduce_over_last_dims(graph)
        for after in self.then:
            after(graph)

    def uuid(self) -> str | None:
        """None, which switches Inductor's caches off, only if a pass in `then` has no name."""
        after = [getattr(one, "uuid", lambda: None)() for one in self.then]
        return None if None in after else digest(["onepass.OverLastDims", disk_cache.versions(), *map(str, after)])


def with_other_dims(gm: fx.GraphModule, patches: Mapping[str, object]) -> dict[str, object]:
    """Inductor's options for a graph of Dynamo's; with this pass if a softmax over another dim is left in the graph."""
    modules = (m for m in gm.modules() if isinstance(m, fx.GraphModule))
    if not any(_is_over_another(node) for m in modules for node in m.graph.nodes):
        return dict(patches)
    given = patches.get(HOOK, getattr(config, HOOK))
    then = tuple(given) if isinstance(given, list | tuple) else () if given is None else (given,)
    return {**patches, HOOK: OverLastDims(then)}


def _is_over_another(node: fx.Node) -> bool:
    """Whether the node may become a softmax over another dim than the last. Unknown or several dims count as such."""
    name, source = name_of(node), next(iter(node.all_input_nodes), None)
    by_hand = name == "amax" or (name == "sum" and source is not None and name_of(source) == "exp")
    if source is None or not (by_hand or has_trait(node, Trait.SOFTMAX)):
        return False
    dims = node.args[1] if len(node.args) > 1 else node.kwargs.get("dim")
    (dim,) = dims if isinstance(dims, tuple | list) and len(dims) == 1 else (dims,)
    return dim not in (-1, getattr(value_of_node(source), "ndim", 0) - 1)


def reduce_over_last_dims(graph: fx.Graph) -> None:
    """Rewrites an ATen graph in place. It does not raise: a softmax that fails stays as it is."""
    for node, dim in list(_totals(graph)):
        try:
            _move(graph, node, dim)
        except Exception as error:
            log.warning("onepass: a softmax over dim %s stays as it is: %s", dim, error, exc_info=error)


def _totals(graph: fx.Graph) -> Iterator[tuple[fx.Node, int]]:
    """The maxima and sums of a softmax over another dim than the last, each with the dim, counted from the front."""
    for node in graph.nodes:
        if _is_total(node):
            rank = value_of_node(node.args[0]).ndim
            dim = node.args[1][0] % rank
            if dim != rank - 1:
                yield node, dim


def _is_total(node: fx.Node) -> bool:
    """A maximum, or a sum of exponentials, over one dim that it keeps."""
    if node.target not in TOTALS or node.kwargs or len(node.args) < 3 or not node.args[2] or len(node.args[1]) != 1:
        return False
    value = value_of_node(node.args[0])
    of_exponentials = node.target is TOTALS[0] or node.args[0].target is ATEN.exp.default
    return isinstance(value, torch.Tensor) and value.is_floating_point() and of_exponentials


def _move(graph: fx.Graph, node: fx.Node, dim: int) -> None:
    """Replaces a reduction by that of a view in which the dim is the last, with the axes moved back."""
    source = node.args[0]
    rank = value_of_node(source).ndim
    order = [*(k for k in range(rank) if k != dim), dim]
    back = [order.index(k) for k in range(rank)]
    made: list[fx.Node] = []
    with graph.inserting_before(node):
        for target, *given in ((ATEN.permute.default, order), (node.target, [-1], True), (ATEN.permute.default, back)):
            read = made[-1] if made else source
            value = target(value_of_node(read), *given)
            made.append(graph.call_function(target, (read, *given)))
            made[-1].meta = {**node.meta, "val": value}
            made[-1].meta.pop("tensor_meta", None)
    node.replace_all_uses_with(made[-1])
    graph.erase_node(node)
