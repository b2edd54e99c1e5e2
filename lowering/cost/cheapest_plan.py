"""The plan that the estimates call fastest, among those that store different parts between kernels.

The law is that a stored value is the value: `read(store(x)) = x`. Read from right to left, a plan stores what it does
not have to: sets of up to three candidates are tried, but for those that could not pay by the bytes that they move.
Read from left to right, it computes what the planner's rules would store to save time: passes that are optional are
left out. A plan is only taken where its estimate is lower by more than the estimates' error. Example: 64 sequences that
share a prefix of 16384 keys read it once, by a kernel with the sequences as rows.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import combinations, islice

from ...egraph.terms.sizes import UnknownSize, symbols
from ...egraph.terms.term import Term, TermError
from ...egraph.terms.traversal import all_dims, subterms
from ..plan.device import H200
from ..plan.records import Alternative, NotPlannable, Plan, Store
from ..plan.thresholds import MAX_STORED_BYTES
from ..planning.pipeline import OPTIONAL
from ..planning.planner import plan_with, prepared
from ..planning.planning_state import Planning
from ..triton.kernel import emit
from .candidates import Candidate, candidates, in_order, stored_bytes
from .kernel_cost import TIMING
from .plan_cost import KernelEstimate, plan_estimate

LEAST_GAIN = 1.15  # of an estimate over another one; the estimates' median error is 9 %
MAX_CANDIDATES_TOGETHER = 3
MAX_PLANS = 24  # that are tried; each takes some 10 to 40 ms,
MAX_NODES = 3000  # and the larger the terms are, the fewer: of all plans together, about a second
# Seconds of a launch right behind another one, as in a captured graph; an estimate counts a launch by itself. A plan
# that stores less has to be faster either way: measured, two kernels of 29 us by the estimate took less than one of 23.
LAUNCH_IN_A_ROW = 2e-6
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
class _Choice:
    """What a plan does otherwise than by the rules: parts that it stores, names of passes that it leaves out."""

    stored: tuple[Term, ...] = ()
    without: frozenset[str] = frozenset()


@dataclass(frozen=True)
class _Sized:
    """A plan's own time in seconds with these sizes, its launches, and the bytes that each plan of its results moves at
    least."""

    sizes: Mapping[str, int]
    seconds: float
    launches: int
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
        for choice in islice(_choices(planning, own, cases), _plans_to_try(planning)):
            plan = _plan_with(planning, choice)
            if plan is None or (choice.stored and not _reads_its_parts(plan)):
                continue
            share = max(_share(plan, choice, case) for case in cases)
            tried.append(Alternative(choice.stored, share, tuple(sorted(choice.without))))
            if share < least and _has_texts(plan):
                best, least = _with_note(plan, choice, cases, share), share
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
    return _Sized(sizes, _total(found), len(found), sum(needed.values()))


def _choices(planning: Planning, own: Plan, cases: Sequence[_Sized]) -> Iterator[_Choice]:
    """What could pay: first what the rules would not have to store, then sets of candidates, small ones first."""
    rules = [name for name in own.plan_passes if name in OPTIONAL]
    for names in (*([name] for name in rules), *([rules] if len(rules) > 1 else [])):
        yield _Choice(without=frozenset(names))
    pays = lambda chosen: all(case.could_pay(chosen) for case in cases)
    if pays(()):
        single = [one for one in candidates(planning.terms, planning.held_limit) if pays((one,))]
        for count in range(1, MAX_CANDIDATES_TOGETHER + 1):
            for chosen in filter(pays, combinations(single, count)):
                yield _Choice(in_order((term for one in chosen for term in one), planning.terms))


def _plan_with(planning: Planning, choice: _Choice) -> Plan | None:
    try:
        return plan_with(planning, chosen=choice.stored, without=choice.without)
    except NotPlannable:
        return None


def _has_texts(plan: Plan) -> bool:
    """Whether each kernel of the plan has a text. One without would be left to torch."""
    try:
        return all(emit(kernel, plan).text for kernel in plan.kernels)
    except NotPlannable:
        return False


def _reads_its_parts(plan: Plan) -> bool:
    """Whether kernels read all that is stored between them. If not, one computes again what was to be stored."""
    parts = {store.output for kernel in plan.kernels for store in kernel.stores} - {*plan.outputs}
    return bool(parts) and parts <= {tensor for kernel in plan.kernels for tensor in kernel.inputs}


def _share(plan: Plan, choice: _Choice, own: _Sized) -> float:
    """The time of a plan in times of the planner's own."""
    found = plan_estimate(plan, own.sizes)
    taken = _total(found)
    if choice.stored:
        return taken / own.seconds
    less = TIMING.launch - LAUNCH_IN_A_ROW
    return max(taken / own.seconds, (taken - less * len(found)) / (own.seconds - less * own.launches))


def _total(found: Sequence[KernelEstimate]) -> float:
    return sum(one.estimate.seconds for one in found)


def _with_note(plan: Plan, choice: _Choice, cases: Sequence[_Sized], share: float) -> Plan:
    """The plan with a sentence that names both estimates."""
    own = 1e3 * cases[-1].seconds
    found = f"an estimated {own * share:.2g} ms, not {own:.2g}"
    why = "what is stored because it then takes less time" if choice.stored else "less stored than by the rules"
    return replace(plan, notes=(*plan.notes, f"with {why}: {found}"))
