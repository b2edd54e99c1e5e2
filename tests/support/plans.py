"""Plans that tests ask for by what they are, whatever an estimate would choose."""

from collections.abc import Sequence
from dataclasses import replace

from onepass.compiler.optimize import optimize_all
from onepass.lowering.plan.records import Plan, Store
from onepass.lowering.planning.planner import plan_stores


def own_plan(results: Sequence[Store]) -> Plan:
    """The planner's own plan of what the results become: it stores between kernels only what it has to."""
    found = optimize_all(results)
    stores = [replace(result, term=term) for result, term in zip(results, found.terms, strict=True)]
    return plan_stores(stores, found.fired, references=[result.term for result in results])
