"""Plans whose results have the same bits for a row of queries and its keys, whatever else is in the call.

Nothing is chosen by sizes: the planner's own plan is taken, and executors read the loops in pieces of a fixed number of
keys, counted from key 0. What cannot be held is refused, with the reason. Example: dropout is refused, since its
numbers go by the place in the batch.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from ...egraph.terms.term import Dim, Term
from ...egraph.terms.traversal import reduces, subterms
from ..analysis.nested_sums import reductions
from ..plan.queries import roots
from ..plan.records import Kernel, NotPlannable, Plan, Store
from ..plan.thresholds import KEYS_OF_A_PIECE
from ..planning.planner import plan_stores


def invariant_plan(stores: Sequence[Store], derivation: Sequence[str], references: Sequence[Term]) -> Plan:
    """The plan of these stores in pieces; arguments as for plan_stores. Raises NotPlannable for what has none."""
    plan = plan_stores(stores, derivation, references=references)
    if reason := next(filter(None, map(_variation, plan.kernels)), ""):
        raise NotPlannable(f"no invariant result: {reason}")
    return replace(plan, piece=KEYS_OF_A_PIECE)


def _variation(kernel: Kernel) -> str:
    """What makes bits of a row depend on more than the row and its keys; "" if nothing does."""
    if any(node.op == "uniform" for root in roots(kernel) for node in subterms(root)):
        return "random numbers go by the place in the batch"
    if any(store.adds or store.places for store in kernel.stores):
        return f"{kernel.name} adds up elements of several rows"
    if any(state.monoid == "prod" for loop in kernel.loops for state in loop.accumulators):
        return f"{kernel.name} multiplies up elements of a loop, and a product of many has no exact form"
    if not kernel.loops and (short := next(filter(None, map(_sum_without_pieces, roots(kernel))), None)):
        why = "which is short enough for one tile and so has no pieces: let its size be dynamic"
        return f"{kernel.name} sums scores over {short}, {why}"
    return ""


def _sum_without_pieces(root: Term) -> Dim | None:
    """A dim over which scores are summed where a kernel has no loop at all: a longer call would have pieces of it.

    A softmax is a loop however short it is. Example: Σ_j sigmoid(Σ_d q · k) · v over 50 keys.
    """
    sums = (node for node in reductions([root]) if node.attrs[0] == "sum" and node.dtype != "int64")
    held = (node for node in sums if any(node.attrs[1] in inner.dims for inner in reduces(node.args[0])))
    return next((node.attrs[1] for node in held), None)


def described(piece: int) -> str:
    """What a report says of an invariant plan."""
    return f"pieces of {piece} keys from key 0, merged in order; nothing is chosen by sizes or by timing"
