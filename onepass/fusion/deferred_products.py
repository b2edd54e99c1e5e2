"""Products in front of a region that are cheaper behind its sum, as the projections of keys in a decoding step of MLA.

Σ_j p · (Σ_c x · w) = Σ_c w · (Σ_j p · x) is a law that the search knows. Here the search gets the product as a part of
the region, and its answer is kept if it is estimated to be faster. No node changes.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from torch import fx

from ..graph.nodes import where_of
from ..graph.op_kinds import Trait, changes_in_place, has_trait, is_call_of, name_of
from ..graph.survey import Nodes, Survey, shape
from ..regions.copies import with_copies
from ..regions.refusals import refusal_to_move
from ..regions.region import Region
from .compare_plans import CANNOT_BE_COMPILED, FusionContext, reason_of
from .estimates import element_count, plan_cost, product_cost

MIN_SIZE_OVER_THE_RESULT = 4  # A smaller product saves nothing if it is not made.
MAX_COST_OVER_THE_OWN = 0.7  # Estimates are rough: another form must be clearly cheaper.


@dataclass(frozen=True)
class DeferrableProduct:
    """A product whose result only the region reads, through the views and casts of `nodes` (the product first)."""

    nodes: tuple[fx.Node, ...]

    @property
    def source(self) -> fx.Node:
        """The product itself."""
        return self.nodes[0]

    def __str__(self) -> str:
        where = where_of(self.source)
        return f"{name_of(self.source)} in front" + (f" ({where})" if where else "")


def defer_products(region: Region, context: FusionContext) -> tuple[Region, list[str]]:
    """The region with the products that are cheaper inside, and a note on each product that was tried."""
    found = list(products(region, context.survey, context.owned))
    notes = []
    for chosen in dict.fromkeys([tuple(found), *((p,) for p in found)]) if found else ():
        wide = with_copies(region, (n for p in chosen for n in p.nodes), context.survey)
        before, after, reason = _compared(region, wide, chosen, context)
        costs = f"estimated time {after:.3g} for {before:.3g}"
        if not reason:
            return wide, [f"{p}: moved behind the sum ({costs})" for p in chosen]
        notes = [f"{p}: outside: {reason}" for p in found]
    return region, notes


def products(region: Region, s: Survey, taken: Nodes) -> Iterator[DeferrableProduct]:
    """Large products that only the region reads."""
    inside = set(region.nodes)
    for source, path in _paths_to_products(region, s, taken).items():
        private = all(user in path or user in inside for node in path for user in node.users)
        if private and element_count(source) >= MIN_SIZE_OVER_THE_RESULT * element_count(region.output):
            yield DeferrableProduct(tuple(sorted(path, key=s.place.__getitem__)))


def _paths_to_products(region: Region, s: Survey, taken: Nodes) -> dict[fx.Node, set[fx.Node]]:
    """Products behind the region's inputs, each with the views and casts up to the inputs, and with itself."""
    paths: dict[fx.Node, set[fx.Node]] = {}
    for node in (n for n in region.inputs if shape(n) is not None):
        path = [node]
        while s.kind[path[-1]] in ("view", "cast") and path[-1].all_input_nodes:
            path.append(path[-1].all_input_nodes[0])
        if _is_product(path[-1], s) and not taken.intersection(path):
            paths.setdefault(path[-1], set()).update(path)
    return paths


def _is_product(node: fx.Node, s: Survey) -> bool:
    """A product of two tensors; of einsum only a spelling that names the result."""
    product = has_trait(node, Trait.PRODUCT) or is_call_of(node, "linear")
    if not product or s.kind[node] not in ("contraction", "layer") or changes_in_place(node):
        return False
    operands = [n for n in node.all_input_nodes if shape(n) is not None]
    spelled = name_of(node) != "einsum" or (isinstance(node.args[0], str) and "->" in node.args[0])
    return len(operands) == 2 and shape(node) is not None and not s.scope[node] and spelled


def _compared(
    region: Region, wide: Region, chosen: Sequence[DeferrableProduct], context: FusionContext
) -> tuple[float, float, str]:
    """Estimated times with the products outside and inside, and why they stay outside (empty if they do not)."""
    if (refusal := refusal_to_move(wide, context.survey)) is not None:
        return 0.0, 0.0, refusal.reason
    try:
        after = plan_cost(context.make(wide).plan)
    except CANNOT_BE_COMPILED as error:
        return 0.0, 0.0, reason_of(error)
    before = plan_cost(context.make(region).plan) + sum(product_cost(p.source) for p in chosen)
    reason = f"no form without them is cheaper (estimated time {after:.3g} for {before:.3g})"
    return before, after, "" if after <= MAX_COST_OVER_THE_OWN * before else reason
