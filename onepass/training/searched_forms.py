"""Plans of derivatives in another form than the one they were derived in, where a search finds one.

Invariant: a form comes with a chain of laws from the derived one. What the disk keeps of a search are these chains,
which are checked again, or that the derived form stays, and what cost chose for the plan. Example: the gradients of
linear attention multiply keys by values first, as its result does.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress

from ..compiler import disk_cache
from ..compiler.compiled_region import Fused
from ..compiler.optimize import optimize_all
from ..compiler.optimized import CHOSEN, Optimized, chosen_in, keep_chosen, plan_by_cost
from ..egraph.derivation import ledger
from ..egraph.derivation.certificate import Derivation
from ..egraph.rewrite.rule import Rule
from ..egraph.search.engine import EngineError
from ..egraph.terms.term import FLOATS, Term, TermError
from ..egraph.terms.traversal import subterms
from ..graph.program import Program
from ..lowering.executors import triton_missing
from ..lowering.plan.dtypes import HALVES
from ..lowering.plan.records import NotPlannable, Plan, Store
from ..lowering.readback.check_plan import checked
from ..rules import PHASES, WEIGHTED

SUMS_AND_PRODUCTS = ("add", "sub", "mul", "div", "neg", "cast", "reduce", "load", "iota", "const")
AS_DERIVED = "as derived"  # in what the disk keeps: the form stays


def is_kept_as_derived(key: str) -> bool:
    """Whether it is kept that the derivatives of this key stay as they were derived."""
    return bool((disk_cache.read(key) or {}).get(AS_DERIVED))


def keep_as_derived(key: str, plan: Plan | None = None) -> None:
    """Keeps on disk that the derivatives of this key stay as they were derived. plan: theirs, if they have one."""
    disk_cache.write(key, {AS_DERIVED: True, CHOSEN: {} if plan is None else dict(plan.chosen)})


def plan_as_derived(key: str, stores: Sequence[Store], fired: Sequence[str] = ()) -> Plan:
    """The plan of derivatives as they are, chosen as it is kept for this key, where that is. Raises NotPlannable."""
    body = disk_cache.read(key) or {}
    kept = body if body.get(AS_DERIVED) else {}
    plan = checked(plan_by_cost(stores, fired, chosen=chosen_in(kept)), stores)
    if kept:
        keep_chosen(key, kept, plan)
    return plan


def optimized_together(key: str, found: Fused, names: Sequence[str], results: Sequence[Store]) -> Optimized:
    """One plan of a region's own results and of what is derived from it; from the disk where it was searched before.

    names: of the inputs. Raises NotPlannable, EngineError.
    """
    optimized = _restored(key, names, found, results)
    if optimized is None:
        optimized = optimize_all(results, found.options.rules, without=found.options.without)
        _keep(key, names, optimized)
    return optimized


def _keep(key: str, names: Sequence[str], optimized: Optimized) -> None:
    disk_cache.write(key, {"names": list(names), **optimized.to_data()})


def _restored(key: str, names: Sequence[str], found: Fused, results: Sequence[Store]) -> Optimized | None:
    """The plan from the disk, its derivations checked again; None if there is none that fits."""
    body = disk_cache.read(key)
    if body is None or body.get("names") != list(names):
        return None
    try:
        optimized = Optimized.from_data(body, results, found.options.ordinary_rules)
    except (TermError, ValueError, TypeError, KeyError, IndexError, NotPlannable):
        return None
    keep_chosen(key, body, optimized.plan)
    return optimized


def plan_of_gradients(
    key: str, found: Fused, names: Sequence[str], wanted: Sequence[Store]
) -> tuple[Plan, Mapping[str, Derivation]]:
    """The plan of gradients, and the chain from each to what the plan computes; no chains where they stay as derived.

    They are searched where estimates say that another form could pay. The form that is found is taken where its plan
    takes less time. Arguments as for `optimized_together`. Raises NotPlannable.
    """
    as_derived = is_kept_as_derived(key)
    if not as_derived and (known := _restored(key, names, found, wanted)) is not None:
        return known.plan, _chains(known, wanted)
    own = _planned(key, wanted)
    if not as_derived:
        with suppress(EngineError):  # which may be of this process alone
            worth = _is_worth_a_search(own, wanted)
            other = _searched(found, wanted) if worth else None
            if other is not None and (isinstance(own, NotPlannable) or _takes_less_time(other.plan, own, wanted)):
                _keep(key, names, other)
                return other.plan, _chains(other, wanted)
            if worth or not triton_missing():  # else nothing was estimated
                keep_as_derived(key, own if isinstance(own, Plan) else None)
    if isinstance(own, NotPlannable):
        raise own
    return own, {}


def _planned(key: str, wanted: Sequence[Store]) -> Plan | NotPlannable:
    """The plan of gradients as they were derived, or why there is none."""
    try:
        return plan_as_derived(key, wanted)
    except NotPlannable as reason:
        return reason


def _is_worth_a_search(own: Plan | NotPlannable, wanted: Sequence[Store]) -> bool:
    """Whether the derived form has no plan, or another one could take less time by estimates, which need Triton."""
    if isinstance(own, NotPlannable) or triton_missing():
        return isinstance(own, NotPlannable)
    from ..lowering.cost.estimated_plan import another_form_could_pay

    return another_form_could_pay(own, wanted)


def _takes_less_time(one: Plan, other: Plan, wanted: Sequence[Store]) -> bool:
    """Whether the first plan takes less time by estimates. They need Triton."""
    from ..lowering.cost.estimated_plan import takes_less_time

    return takes_less_time(one, other, wanted)


def _laws(program: Program, wanted: Sequence[Store]) -> tuple[Rule, ...]:
    """The laws of a search. Differences are multiplied out only where what float32 loses is less than the rounding of
    the inputs: all of these are of half precision, gradients are sums and products alone, and no difference is
    multiplied by itself. In gradients of a softmax a product rounds the weights, and that error would be relative to
    each of the parts, not to their difference.
    """
    dtypes = {entry.meta.dtype for entry in program.inputs if entry.meta.dtype in FLOATS}
    plain = all(node.op in SUMS_AND_PRODUCTS for store in wanted for node in subterms(store.term))
    safe = plain and dtypes <= {*HALVES} and not any(map(_multiplies_difference_by_itself, wanted))
    return (*PHASES["algebra"], *WEIGHTED) if safe else PHASES["algebra"]


def _multiplies_difference_by_itself(store: Store) -> bool:
    """Example: a squared distance, whose parts may be much larger than it is."""
    products = (node for node in subterms(store.term) if node.op == "mul")
    return any(_added(node.args[0]) & _added(node.args[1]) for node in products)


def _added(term: Term) -> set[Term]:
    """The sums and differences that a term is made of by arithmetic."""
    inside = subterms(term, lambda node: node.op not in ("add", "sub", "mul", "div", "neg", "cast"))
    return {node for node in inside if node.op in ("add", "sub")}


def _searched(found: Fused, wanted: Sequence[Store]) -> Optimized | None:
    """Another form of the gradients; None if none has a plan and a certificate. Raises EngineError."""
    phases = {"algebra": ledger.proved(_laws(found.program, wanted))}
    try:
        return optimize_all(wanted, found.options.rules, phases=phases, without=found.options.without)
    except NotPlannable:
        return None


def _chains(found: Optimized, wanted: Sequence[Store]) -> dict[str, Derivation]:
    pairs = zip(wanted, found.derivations, strict=True)
    return {store.output.name: chain for store, chain in pairs if chain.steps}
