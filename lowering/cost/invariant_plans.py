"""Plans whose results have the same bits for a row of queries and its keys, whatever else is in the call.

Nothing is chosen by sizes: the planner's own plan is taken, and executors read the loops in pieces of a fixed number of
keys, counted from key 0. What cannot be held is refused, with the reason. Example: dropout is refused, since its
numbers go by the place in the batch.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from ...egraph.terms.term import Term
from ...egraph.terms.traversal import subterms
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
    return ""


def described(piece: int) -> str:
    """What a report says of an invariant plan."""
    return f"pieces of {piece} keys from key 0, merged in order; nothing is chosen by sizes or by timing"
