"""Products of which nothing but reductions is read: their elements never have to be in memory.

A value is wide if it has the product's elements, or as many of its own. Invariant: nothing but what is found here reads
a wide value. Examples: log-sum-exps over x @ w.T in both directions, cross entropy of a linear layer.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

import torch
from torch import fx

from .nodes import value_of_node
from .op_kinds import Trait, changes_in_place, has_trait, name_of
from .random_calls import draws

LEAST_ELEMENTS = 2**21  # of such a product: a smaller one is not worth a kernel, caches hold it
MAX_NODES = 200  # behind a product
KEPT = ("pointwise", "cast", "view", "reduction")  # kinds of nodes behind a product
Kinds = Callable[[fx.Node], str]


@dataclass(frozen=True)
class ReducedProduct:
    """A product with the nodes up to its reductions, and the nodes of them that still have its elements."""

    product: fx.Node
    nodes: frozenset[fx.Node]
    wide: frozenset[fx.Node]


def narrows(node: fx.Node, kind: str) -> bool:
    """Whether the node has one element, or a few, for each row of what it reads: reductions, elements at positions."""
    return (kind == "reduction" and not has_trait(node, Trait.KEEPS_SHAPE)) or has_trait(node, Trait.PICKS_ELEMENTS)


def reduced_product(product: fx.Node, kind: Kinds, elements: Callable[[fx.Node], int]) -> ReducedProduct | None:
    """What is read of the product's elements, if that is reductions alone; None otherwise. elements: of a tensor.

    kind: what each node is in its graph.
    """
    if not _is_matrix_product(product) or elements(product) < LEAST_ELEMENTS:
        return None
    wide, reached = {product}, [product]
    for node in _behind(product):
        reads_wide = not wide.isdisjoint(node.all_input_nodes)
        if not reads_wide and {*reached}.isdisjoint(node.all_input_nodes):
            continue
        if _can_be_inside(node, kind(node)):
            reached.append(node)
            if reads_wide and not _is_narrow(node, kind(node), elements(product), elements):
                wide.add(node)
        elif reads_wide:
            return None
    inside = _needed(reached, wide)
    inside |= _dropped_axes(inside - wide, kind)
    escapes = any(user not in inside for n in wide for user in n.users)
    return None if escapes or inside == wide else ReducedProduct(product, frozenset(inside), frozenset(wide))


def _is_matrix_product(node: fx.Node) -> bool:
    products = Trait.MATRIX_PRODUCT | Trait.TAKES_BIAS | Trait.PRODUCT | Trait.OF_PAIRS
    return has_trait(node, products) and not has_trait(node, Trait.CONVOLUTION)


def _behind(product: fx.Node) -> Iterable[fx.Node]:
    """The nodes that follow in the graph, in order, as far as they may matter."""
    node, count = product.next, 0
    while node.op not in ("root", "output") and count < MAX_NODES:
        yield node
        node, count = node.next, count + 1


def _can_be_inside(node: fx.Node, kind: str) -> bool:
    if changes_in_place(node) or draws(node) or node.op not in ("call_function", "call_method"):
        return False
    return kind in KEPT or has_trait(node, Trait.PICKS_ELEMENTS)


def _is_narrow(node: fx.Node, kind: str, whole: int, elements: Callable[[fx.Node], int]) -> bool:
    """Whether the node makes far fewer elements than the product has."""
    if not narrows(node, kind):
        return False
    return not isinstance(value_of_node(node), torch.Tensor) or 4 * elements(node) <= whole


def _needed(reached: list[fx.Node], wide: set[fx.Node]) -> set[fx.Node]:
    """The wide nodes, what they read of what was reached, and the reductions of wide nodes with their items."""
    inside, known = set(wide), {*reached}
    inside |= {n for n in reached if wide.intersection(n.all_input_nodes)}
    waiting = list(inside)
    while waiting:
        new = [n for n in waiting.pop().all_input_nodes if n in known and n not in inside]
        inside.update(new)
        waiting += new
    return inside | {user for n in inside if _has_items(n) for user in n.users}


def _dropped_axes(narrow: Iterable[fx.Node], kind: Kinds) -> set[fx.Node]:
    """The views that have all elements of a narrow node without its last axis, of one place, if nothing else reads it.
    """
    only = ((next(iter(n.users)), n) for n in narrow if len(n.users) == 1)
    return {user for user, n in only if kind(user) == "view" and _drops_an_axis(user, n)}


def _drops_an_axis(node: fx.Node, narrow: fx.Node) -> bool:
    made, read = value_of_node(node), value_of_node(narrow)
    if not isinstance(made, torch.Tensor) or not isinstance(read, torch.Tensor):
        return False
    return made.ndim == read.ndim - 1 and read.shape[-1] == 1 and made.shape == read.shape[:-1]


def _has_items(node: fx.Node) -> bool:
    return isinstance(value_of_node(node), tuple | list) and all(name_of(user) == "getitem" for user in node.users)
