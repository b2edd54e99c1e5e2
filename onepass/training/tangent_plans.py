"""The plans of a region in forward mode, by its text and the inputs that have tangents: results and tangents at once.

A plan is made at its first use, for each set of given tangents. Invariant: what is not derived, or has no kernel where
kernels run, is a sentence that says why; then the original calls carry the tangents. Example: `tangent_plan(text,
(True, False, False))` computes softmax(q · k) · v and its tangent, where q alone has one.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass, replace

from ..compiler import compiled_region
from ..compiler.compiled_region import Fused
from ..egraph.calculus.certified import Certified
from ..egraph.derivation.certificate import Derivation
from ..egraph.forks import lock
from ..egraph.rewrite.serialization import digest
from ..egraph.search.engine import EngineError
from ..errors import Refusal
from ..garbage import rare_collections
from ..lowering.plan.records import NotPlannable, Plan, Store
from ..process_state import keep_latest, registered
from ..translate.translate import Captured
from .derive_tangents import TangentStores, certified_tangents, tangent_stores
from .not_derived import NotDerived, why_not
from .plans import MAX_TRAININGS_KEPT, Flags, of_first_reading, with_free_names
from .searched_forms import is_kept_as_derived, keep_as_derived, optimized_together, plan_as_derived
from .tangent_programs import TangentProgram
from .torch_derivatives import readings

_LOCK = lock()
_KNOWN: OrderedDict[tuple[str, Flags], TangentPlan | str] = registered(OrderedDict(), "regions", _LOCK)


@dataclass(frozen=True)
class TangentPlan:
    """Forward mode of a region: its plan as a region of its own, whose inputs are those of TangentProgram.

    given: whether each input has a tangent. of: the numbers of the results with one; these come behind the results.
    """

    region: Fused
    given: Flags
    of: tuple[int, ...]


def tangent_plan(text: str, given: Sequence[bool]) -> TangentPlan | str:
    """The plan of the region with this text, where these inputs have tangents; or why there is none."""
    key = text, tuple(given)
    with _LOCK:
        if key in _KNOWN:
            return _KNOWN[key]
        return keep_latest(_KNOWN, key, _derived(*key), MAX_TRAININGS_KEPT)


@rare_collections()
def _derived(text: str, given: Flags) -> TangentPlan | str:
    try:
        found = with_free_names(compiled_region.read(text))
        stores_of = lambda _, captured, without: tangent_stores(found.program, captured, given, without)
        _, captured, _, stores = of_first_reading(readings(found.program), stores_of)
        return _planned(found, captured, stores)
    except (NotDerived, NotPlannable, Refusal, EngineError) as error:
        return why_not(error, compiled_region.carried(text).program)


def certified(text: str, made: TangentPlan) -> tuple[Certified, dict[str, Derivation]]:
    """The tangents of a plan with their certificate, and the chain from each to what the plan computes.

    A tangent that is computed as it was derived has no chain. Raises NotDerived, NotPlannable.
    """
    found = with_free_names(compiled_region.read(text))
    certified_of = lambda _, captured, without: certified_tangents(found.program, captured, made.given, without)
    stores_of = lambda _, captured, without: tangent_stores(found.program, captured, made.given, without)
    shown = of_first_reading(readings(found.program), certified_of)[-1]
    _, captured, _, stores = of_first_reading(readings(found.program), stores_of)
    if is_kept_as_derived(made.region.key):
        return shown, {}
    results = (*captured.results, *stores.tangents.values())
    optimized = optimized_together(made.region.key, found, made.region.names, results)
    names = [store.output.name for store in stores.tangents.values()]
    return shown, dict(zip(names, optimized.derivations[len(captured.results) :], strict=True))


def _planned(found: Fused, captured: Captured, stores: TangentStores) -> TangentPlan:
    """The plan of the results with their tangents. Raises NotPlannable."""
    given = tuple(tensor is not None for tensor in stores.given)
    key = digest([found.key, "tangents", list(given)])[:40]
    named = tuple(tensor.name for tensor in stores.given if tensor is not None)
    plan = _plan(key, found, (*found.names, *named), captured, tuple(stores.tangents.values()))
    program = TangentProgram.of_region(found.program, named, given, tuple(stores.tangents))
    compiled_region.require_kernels(plan, program, found.options, {})
    strides = found.strides or (None,) * len(captured.results)
    strides = (*strides, *(strides[k] for k in stores.tangents))
    region = replace(
        found, key=key, program=program, names=(*found.names, *named), plan=plan, strides=strides, form=None
    )
    return TangentPlan(region, given, tuple(stores.tangents))


def _plan(key: str, found: Fused, names: Sequence[str], captured: Captured, tangents: Sequence[Store]) -> Plan:
    """The results and the tangents in one plan. Raises NotPlannable.

    Where the search has no certificate of another form, the tangents stay as they were derived, which is certified.
    """
    if not is_kept_as_derived(key):
        try:
            return optimized_together(key, found, names, (*captured.results, *tangents)).plan
        except NotPlannable:
            keep_as_derived(key)
    ours = optimized_together(digest([key, "results"])[:40], found, found.names, captured.results)
    forms = [replace(result, term=term) for result, term in zip(captured.results, ours.terms, strict=True)]
    return plan_as_derived(key, [*forms, *tangents], ours.fired)
