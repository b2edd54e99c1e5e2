"""The plan that the estimates call fastest, among those that store different parts between kernels.

The law is that a stored value is the value: `read(store(x)) = x`. So each set of candidates gives a plan of the same
results, and the planner shapes and cuts it as ever. Sets of up to three candidates are tried; those that could not pay,
by the bytes that they move, are not planned. A plan is only taken where the estimate is lower by more than its own
error. Example: 64 sequences that share a prefix of 16384 keys read it once, by a kernel with the sequences as rows.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import combinations, islice

from ...egraph.terms.sizes import UnknownSize, symbols
from ...egraph.terms.term import Term, TermError
from ...egraph.terms.traversal import all_dims, subterms
from ..analysis.chunks import keeps_numbers
from ..analysis.nested_sums import products_of_pairs, sides_of
from ..plan.device import H200
from ..plan.records import Alternative, NotPlannable, Plan, Store
from ..plan.thresholds import MAX_STORED_BYTES
from ..planning.planner import plan_with, prepared
from ..planning.planning_state import Planning
from .candidates import Candidate, candidates, in_order, stored_bytes
from .kernel_cost import TIMING
from .plan_cost import KernelEstimate, plan_estimate

LEAST_GAIN = 1.15  # of an estimate over another one; the estimates' median error is 9 %
MAX_CANDIDATES_TOGETHER = 3
MAX_PLANS = 24  # that are tried; each takes some 10 to 40 ms,
MAX_NODES = 3000  # and the larger the terms are, the fewer: of all plans together, about a second
NOMINAL_SIZES = (128, 1024, 8192)  # of every symbol; a plan has to be faster with each


def cheapest_plan(stores: Sequence[Store], derivation: Sequence[str] = (), references: Sequence[Term] = ()) -> Plan:
    """The plan that computes every store in the least estimated time. Raises NotPlannable where nothing has a plan.

    references: for each store, its term as the program has it.
    """
    planning = prepared(stores, references=references)
    own = plan_with(planning, derivation)
    found = _cheapest(planning, own)
    return own if found is None else replace(found, derivation=own.derivation)


@dataclass(frozen=True)
class _Sized:
    """A plan's own time in seconds with these sizes, and the bytes that each plan of its results moves at least."""

    sizes: Mapping[str, int]
    seconds: float
    needed: float

    def could_pay(self, chosen: Sequence[Candidate]) -> bool:
        """Whether these candidates take little memory, and two launches that move each byte once could be faster."""
        stored = sum(stored_bytes(candidate, self.sizes) for candidate in chosen)
        least = 2 * TIMING.launch + (self.needed + 2 * stored) / H200.memory_bytes
        return stored <= max(MAX_STORED_BYTES, self.needed) and least * LEAST_GAIN < self.seconds


def _cheapest(planning: Planning, own: Plan) -> Plan | None:
    """The plan that stores what pays, or its own, with the others; None where an estimate lacks a size."""
    tried: list[Alternative] = []
    try:
        cases = [_sized(own, sizes) for sizes in _nominal(planning)]
        best, least = own, 1 / LEAST_GAIN
        for chosen in islice(_combinations(planning, own, cases), _plans_to_try(planning)):
            plan = _plan_with(planning, chosen)
            if plan is None or not _reads_its_parts(plan):
                continue
            share = max(_seconds(plan, case.sizes) / case.seconds for case in cases)
            tried.append(Alternative(in_order((term for one in chosen for term in one), planning.terms), share))
            if share < least:
                best, least = _with_note(plan, cases, share), share
    except (UnknownSize, TermError, NotPlannable):
        return None
    taken = 1.0 if best is own else least
    others = (one for one in tried if best is own or one.share != taken)
    return replace(best, alternatives=tuple(replace(one, share=one.share / taken) for one in others))


def _plans_to_try(planning: Planning) -> int:
    nodes = len({node for term in planning.terms for node in subterms(term)})
    return max(1, min(MAX_PLANS, MAX_NODES // nodes))


def _nominal(planning: Planning) -> list[dict[str, int]]:
    dims = {d for store in planning.stores for d in (*store.order, *all_dims(store.term))}
    names = sorted(set().union(*(symbols(d.size) for d in dims)))
    return [dict.fromkeys(names, n) for n in NOMINAL_SIZES] if names else [{}]


def _sized(own: Plan, sizes: Mapping[str, int]) -> _Sized:
    found = plan_estimate(own, sizes)
    ends = {t.name for t in (*own.inputs, *own.outputs)}
    needed: dict[str, float] = {}
    for one in found:
        for moved in one.estimate.traffic:
            if moved.tensor in ends:
                needed[moved.tensor] = max(needed.get(moved.tensor, 0.0), moved.distinct)
    return _Sized(sizes, _total(found), sum(needed.values()))


def _combinations(planning: Planning, own: Plan, cases: Sequence[_Sized]) -> Iterator[tuple[Candidate, ...]]:
    """Sets of candidates that could pay, small ones first.

    Where loops keep numbers alone, as over one product, they keep its scores out of memory: no scores are stored.
    """
    pays = lambda chosen: all(case.could_pay(chosen) for case in cases)
    if pays(()):
        single = [one for one in candidates(planning.terms, planning.held_limit) if pays((one,))]
        numbers = all(map(keeps_numbers, own.kernels))
        single = [one for one in single if not (numbers and any(map(_has_scores, one)))]
        for count in range(1, MAX_CANDIDATES_TOGETHER + 1):
            yield from filter(pays, combinations(single, count))


def _has_scores(term: Term) -> bool:
    """Whether a term has a number for each row and column of a product."""
    return any(sides_of(product) <= term.dims for product in products_of_pairs(term))


def _plan_with(planning: Planning, chosen: Sequence[Candidate]) -> Plan | None:
    parts = in_order((term for candidate in chosen for term in candidate), planning.terms)
    try:
        return plan_with(planning, chosen=parts)
    except NotPlannable:
        return None


def _reads_its_parts(plan: Plan) -> bool:
    """Whether kernels read all that is stored between them. If not, one computes again what was to be stored."""
    parts = {store.output for kernel in plan.kernels for store in kernel.stores} - {*plan.outputs}
    return bool(parts) and parts <= {tensor for kernel in plan.kernels for tensor in kernel.inputs}


def _seconds(plan: Plan, sizes: Mapping[str, int]) -> float:
    return _total(plan_estimate(plan, sizes))


def _total(found: Sequence[KernelEstimate]) -> float:
    return sum(one.estimate.seconds for one in found)


def _with_note(plan: Plan, cases: Sequence[_Sized], share: float) -> Plan:
    """The plan with a sentence that names both estimates."""
    own = 1e3 * cases[-1].seconds
    found = f"an estimated {own * share:.2g} ms, not {own:.2g}"
    return replace(plan, notes=(*plan.notes, f"with what is stored because it then takes less time: {found}"))
