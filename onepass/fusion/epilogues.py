"""What a kernel computes before it stores: pointwise code and maps of values behind a region's only result.

A tail is a chain of nodes, each the only user of the one before; nothing that moves elements is in it. No node changes.
"""

from __future__ import annotations

from collections.abc import Iterator

from torch import fx

from ..graph.nodes import value_of_node
from ..graph.op_kinds import changes_in_place, name_of
from ..graph.survey import Nodes, Survey, shape
from ..lowering.plan.thresholds import HELD
from ..regions.find import widened
from ..regions.region import Region

MAPS = ("matmul", "bmm", "mm", "einsum", "__matmul__", "linalg_matmul")


def tails(region: Region, s: Survey, taken: Nodes) -> list[Region]:
    """Longer regions, the longest first: with all of the tail, and up to the first map of values."""
    if region.refusal is not None or len(region.outputs) != 1:
        return []
    chain = list(_chain(region, s, taken))
    ends = [len(chain), next((k for k, n in enumerate(chain) if name_of(n) in MAPS), 0)]
    return [_longer(region, chain[:end], s) for end in dict.fromkeys(ends) if end]


def _chain(region: Region, s: Survey, taken: Nodes) -> Iterator[fx.Node]:
    node = region.output
    while len(node.users) == 1:
        (user,) = node.users
        if user in taken or user.op not in ("call_function", "call_method") or not _keeps(node, user, s):
            return
        yield user
        node = user


def _keeps(node: fx.Node, user: fx.Node, s: Survey) -> bool:
    """The user computes the same elements further, or maps the last, short axis to another one."""
    old, new = shape(node), shape(user)
    if new is None or changes_in_place(user) or s.scope[user] or not value_of_node(user).is_floating_point():
        return False
    if s.kind[user] in ("pointwise", "cast"):
        return new == old
    others = [n for n in user.all_input_nodes if n is not node and shape(n) is not None]
    if not (old and new):
        return False
    short = all(isinstance(sizes[-1], int) and sizes[-1] <= HELD for sizes in (old, new))
    same = new[:-1] == old[:-1] and len(others) == 1 and len(shape(others[0])) <= len(old)
    return name_of(user) in MAPS and s.kind[user] in ("contraction", "layer") and short and same


def _longer(region: Region, chain: list[fx.Node], s: Survey) -> Region:
    return widened(region, chain, s, outputs=(chain[-1],), owned=region.owned.union(chain))
