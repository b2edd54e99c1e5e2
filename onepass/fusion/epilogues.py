"""Epilogues: what a kernel computes before it stores, namely pointwise code and a product behind a region's one result.

An epilogue is a chain of nodes; each is the only user of the one before. Nothing in it moves elements. Example: a gate,
or the output projection of one head, behind attention. No node changes.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from torch import fx

from ..graph.nodes import value_of_node, where_of
from ..graph.op_kinds import Trait, changes_in_place, has_trait, name_of
from ..graph.random_calls import draws
from ..graph.survey import Nodes, Survey, shape
from ..lowering.plan.thresholds import MAX_RESIDENT_ELEMENTS
from ..regions.copies import with_copies
from ..regions.region import Region
from .compare_plans import FusionContext, reason_against
from .estimates import byte_count, device_of, write_and_read_seconds


def fuse_epilogue(region: Region, context: FusionContext) -> tuple[Region, list[str]]:
    """The region with the longest epilogue that pays, and notes on every epilogue that was tried."""
    notes: list[str] = []
    for longer in epilogues(region, context.survey, context.computed):
        names = ", ".join(dict.fromkeys(name_of(n) for n in longer.nodes if n not in set(region.nodes)))
        behind = f"{names} behind the result" + (f" ({where_of(longer.output)})" if where_of(longer.output) else "")
        saved = write_and_read_seconds(region.output, device_of(region))
        reason = reason_against(longer, region, context, saved)
        if not reason:
            return longer, [f"{behind}: {fused_note(region.output)}"]
        notes.append(f"{behind}: outside: {reason}")
    return region, notes


def fused_note(node: fx.Node) -> str:
    """What a report says of a tensor that is neither written nor read any more."""
    return f"computed in the kernel, which saves writing and reading {2 * byte_count(node)} bytes"


def epilogues(region: Region, s: Survey, taken: Nodes) -> list[Region]:
    """Longer regions, the longest first: with the whole epilogue, and with the part in front of its first product."""
    if region.refusal is not None or len(region.outputs) != 1:
        return []
    chain = list(_chain(region, s, taken))
    ends = [len(chain), next((k for k, n in enumerate(chain) if has_trait(n, Trait.PRODUCT)), 0)]
    return [_longer(region, chain[:end], s) for end in dict.fromkeys(ends) if end]


def _chain(region: Region, s: Survey, taken: Nodes) -> Iterator[fx.Node]:
    node = region.output
    while len(node.users) == 1:
        (user,) = node.users
        if user in taken or user.op not in ("call_function", "call_method") or not _is_fusible(node, user, s):
            return
        yield user
        node = user


def _is_fusible(node: fx.Node, user: fx.Node, s: Survey) -> bool:
    """Whether the user computes on with the same elements, or maps the node's last axis to another one."""
    if shape(user) is None or changes_in_place(user) or draws(user) or s.scope[user]:
        return False
    if not value_of_node(user).is_floating_point():
        return False
    if s.kind[user] in ("pointwise", "cast"):
        return shape(user) == shape(node)
    is_product = has_trait(user, Trait.PRODUCT) and s.kind[user] in ("contraction", "layer")
    return is_product and _maps_the_last_axis(node, user)


def _maps_the_last_axis(node: fx.Node, product: fx.Node) -> bool:
    """A product with one other tensor that keeps all axes but the last; both last axes fit into a tile."""
    old, new = shape(node), shape(product)
    others = [n for n in product.all_input_nodes if n is not node and shape(n) is not None]
    if not old or not new or old[:-1] != new[:-1] or len(others) != 1 or len(shape(others[0])) > len(old):
        return False
    return all(isinstance(sizes[-1], int) and sizes[-1] <= MAX_RESIDENT_ELEMENTS for sizes in (old, new))


def _longer(region: Region, chain: list[fx.Node], s: Survey) -> Region:
    return replace(with_copies(region, chain, s), outputs=(chain[-1],), owned=region.owned.union(chain))
