"""Products in front of a region that are cheaper behind its sums: few rows, and keys or values raised from narrow ones.

Σ_j p · (Σ_c x · w) = Σ_c w · (Σ_j p · x) is a law that the search knows; here it is asked, with the product taken into
the region, and its answer is kept where it is estimated to take less. No node changes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from math import prod

from torch import fx

from ..compiler.compiled_region import Fused
from ..egraph.search.cost import Target, contracts, node_time
from ..egraph.search.engine import EngineError
from ..egraph.terms.traversal import subterms
from ..errors import OnepassError
from ..graph.nodes import value_of_node, where_of
from ..graph.op_kinds import changes_in_place, name_of
from ..graph.survey import Nodes, Survey, hinted, shape
from ..lowering.plan.records import NotPlannable, Plan
from ..regions.find import objection, widened
from ..regions.region import Region

PRODUCTS = ("matmul", "bmm", "mm", "einsum", "linear", "__matmul__", "linalg_matmul")
LARGER = 4  # times as many elements as the result: else nothing is saved by not making them
GAIN = 0.7  # of the estimated time, at most, to be worth another form
TARGET = Target()


@dataclass(frozen=True)
class Product:
    """A product whose result only the region reads, through the views and casts of `nodes` (the product first)."""

    nodes: tuple[fx.Node, ...]

    @property
    def source(self) -> fx.Node:
        return self.nodes[0]

    def __str__(self) -> str:
        where = where_of(self.source)
        return f"{name_of(self.source)} in front" + (f" ({where})" if where else "")


def with_products(
    region: Region, s: Survey, taken: Nodes, mode: str, make: Callable[[Region], Fused]
) -> tuple[Region, list[str]]:
    """The region with the products that are cheaper inside, and what is to be said of all that were tried."""
    found = list(products(region, s, taken))
    said = []
    for chosen in dict.fromkeys([tuple(found), *((p,) for p in found)]) if found else ():
        wide = widened(region, (n for p in chosen for n in p.nodes), s)
        before, after, reason = _compared(region, wide, chosen, s, make)
        times = f"estimated time {after:.3g} for {before:.3g}"
        if not reason:
            return wide, [f"{p}: moved behind the sum ({times})" for p in chosen]
        said = [f"{p}: outside: {reason}" for p in found]
    return region, said


def products(region: Region, s: Survey, taken: Nodes) -> Iterator[Product]:
    """Large products that nothing but the region reads."""
    inside = set(region.nodes)
    paths: dict[fx.Node, dict[fx.Node, None]] = {}
    for node in (n for n in region.inputs if shape(n) is not None):
        path = [node]
        while s.kind[path[-1]] in ("view", "cast") and path[-1].all_input_nodes:
            path.append(path[-1].all_input_nodes[0])
        if _is_product(path[-1], s) and not taken.intersection(path):
            paths.setdefault(path[-1], {}).update(dict.fromkeys(reversed(path)))
    for source, path in paths.items():
        ordered = tuple(sorted(path, key=s.place.__getitem__))
        private = all(user in path or user in inside for node in path for user in node.users)
        if private and _count(source) >= LARGER * _count(region.output):
            yield Product(ordered)


def _is_product(node: fx.Node, s: Survey) -> bool:
    if name_of(node) not in PRODUCTS or s.kind[node] not in ("contraction", "layer") or changes_in_place(node):
        return False
    operands = [n for n in node.all_input_nodes if shape(n) is not None]
    spelled = name_of(node) != "einsum" or (isinstance(node.args[0], str) and "->" in node.args[0])
    return len(operands) == 2 and shape(node) is not None and not s.scope[node] and spelled


def _compared(region: Region, wide: Region, chosen, s: Survey, make) -> tuple[float, float, str]:
    """Estimated times without and with the products inside, and why they stay outside (empty if they do not)."""
    if (objected := objection(wide, s)) is not None:
        return 0.0, 0.0, objected.reason
    try:
        after = estimate(make(wide).plan)
    except (OnepassError, NotPlannable, EngineError) as error:
        return 0.0, 0.0, getattr(error, "reason", str(error))
    before = estimate(make(region).plan) + sum(_work(p.source) for p in chosen) / TARGET.matrix
    reason = f"no form without them is cheaper (estimated time {after:.3g} for {before:.3g})"
    return before, after, "" if after <= GAIN * before else reason


def estimate(plan: Plan) -> float:
    """The time of all kernels in the units of the search's cost."""
    total = 0.0
    for kernel in plan.kernels:
        for t in {t for store in kernel.stores for t in subterms(store.term) if t.dtype != "int64"}:
            total += node_time(t, TARGET, t.op == "reduce" and contracts(t.args[0]))
    return total


def _work(node: fx.Node) -> float:
    """Multiplications of a product: elements of the result, times what is summed over."""
    operands = [n for n in node.all_input_nodes if shape(n) is not None]
    if name_of(node) != "einsum":
        return _count(node) * hinted(value_of_node(operands[0]))[-1]
    subscripts, _, result = node.args[0].replace(" ", "").partition("->")
    summed = {
        letter: size
        for letters, n in zip(subscripts.split(","), operands, strict=True)
        # Backwards, as dots stand in front.
        for letter, size in zip(reversed(letters), reversed(hinted(value_of_node(n))), strict=False)
        if letter not in result
    }
    return _count(node) * prod(summed.values())


def _count(node: fx.Node) -> int:
    return prod(hinted(value_of_node(node)))
