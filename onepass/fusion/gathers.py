"""Gathers in training: a learned table that is read at positions of rows and columns joins the kernel that uses it.

Outside, the gradient of what is read would be a tensor of rows x columns, which torch adds to the table by atomics in
the table's precision. Inside, the table's gradient is derived, a sum in float32. What stands between the gather and
the region comes with it; the table and the positions are read. A table of many entries stays outside. Example: scores
+ table[index]. No node changes.
"""

from __future__ import annotations

from collections.abc import Iterator
from math import prod

from torch import fx

from ..graph.nodes import value_of_node, where_of
from ..graph.op_kinds import changes_in_place, name_of
from ..graph.survey import Survey, hinted, is_smaller, shape, table_and_positions
from ..lowering.plan.thresholds import MAX_ENTRIES_OF_A_TABLE
from ..regions.copies import with_copies
from ..regions.region import Region
from .compare_plans import FusionContext, reason_against
from .epilogues import fused_note

BETWEEN = ("pointwise", "cast", "view")


def fuse_gathers(region: Region, context: FusionContext) -> tuple[Region, list[str]]:
    """The region with the gathers in front of its inputs, and a note on each."""
    notes: list[str] = []
    for source in [n for n in region.inputs if shape(n) is not None]:
        nodes = list(_from_gathers(source, context.survey))
        if not nodes:
            continue
        wide = with_copies(region, nodes, context.survey)
        failed = _of_many_entries(nodes) or _used_outside(nodes, wide, context)
        failed = failed or reason_against(wide, region, context, 0.0)
        region = region if failed else wide
        names = ", ".join(dict.fromkeys(name_of(n) for n in sorted(nodes, key=context.survey.place.__getitem__)))
        where = f" ({where_of(source)})" if where_of(source) else ""
        notes.append(f"{names}{where}: " + (f"outside: {failed}" if failed else fused_note(source)))
    return region, notes


def _from_gathers(source: fx.Node, s: Survey) -> Iterator[fx.Node]:
    """The gathers that the source is made of point by point, and the nodes between; none if there is no gather."""
    found: dict[fx.Node, bool] = {}

    def visit(node: fx.Node) -> bool:
        """Whether the node is a gather of a learned table, or made of one by nodes that a kernel can compute."""
        if node not in found:
            found[node] = _is_learned(node) or (_is_between(node, s) and any([visit(n) for n in node.all_input_nodes]))
        return found[node]

    visit(source)
    yield from (node for node, is_made_of_one in found.items() if is_made_of_one)


def _is_learned(node: fx.Node) -> bool:
    """Whether the node reads more elements than a table has, and the table needs a gradient."""
    table, _ = table_and_positions(node)
    return table is not None and is_smaller(table, node) and value_of_node(node).requires_grad


def _is_between(node: fx.Node, s: Survey) -> bool:
    known = node.op in ("call_function", "call_method") and s.kind[node] in BETWEEN
    return known and not changes_in_place(node) and not s.scope[node]


def _of_many_entries(nodes: list[fx.Node]) -> str:
    """Why the gradient of a table costs too much; "" if it does not."""
    tables = [(table, positions) for table, positions in map(table_and_positions, nodes) if table is not None]
    most = max(prod(hinted(value_of_node(table))[axis] for axis in positions) for table, positions in tables)
    reason = f"the gradient of a table of {most} entries would compare each pair with all of them"
    return reason if most > MAX_ENTRIES_OF_A_TABLE else ""


def _used_outside(nodes: list[fx.Node], wide: Region, context: FusionContext) -> str:
    """Who else uses what the nodes make, so that it is made anyway; "" if nobody but regions does."""
    inside = {*wide.nodes, *context.computed}
    user = next((user for node in nodes for user in node.users if user not in inside), None)
    return f"the result is also used by {name_of(user) or user.op}, so it is written anyway" if user else ""
