"""The outcome of a search as a record, and as the data that the disk cache keeps of it.

Of that data only the derivations lead to a result, and they count only once they are checked again, from the terms that
the program at hand is translated to. Results and rules used follow from them, and so does the plan, among plans of the
same results by what was chosen before. Figures of the search go into reports, and nowhere else.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from ..egraph.derivation import ledger
from ..egraph.derivation.certificate import Derivation, check
from ..egraph.rewrite.rule import Rule
from ..egraph.terms.term import Term, TermError
from ..lowering.cost.invariant_plans import invariant_plan
from ..lowering.executors import triton_missing
from ..lowering.plan.records import Plan, Store
from ..lowering.planning.planner import chosen_plan, plan_stores
from ..lowering.readback.check_plan import checked
from ..lowering.stage_times import stage
from ..rules import ALL
from . import disk_cache

CHOSEN = "chosen"  # in what the disk keeps: `Plan.chosen`


@dataclass(frozen=True)
class Optimized:
    """Per result: what was `captured`, normalised, the extracted `terms`, and the derivation from as it was captured.

    `fired` names the rules of all derivations, in order.
    """

    captured: tuple[Term, ...]
    terms: tuple[Term, ...]
    plan: Plan
    fired: tuple[str, ...]
    statistics: dict
    passes_before: int
    passes_after: int
    derivations: tuple[Derivation, ...]

    @property
    def term(self) -> Term:
        """The first result's extracted form."""
        return self.terms[0]

    @property
    def derivation(self) -> Derivation:
        """The first result's derivation."""
        return self.derivations[0]

    def to_data(self) -> dict:
        """Plain data. normal: after how many steps each derivation is at the normalised term."""
        pairs = zip(self.captured, self.derivations, strict=True)
        return {
            "derivations": [derivation.to_json() for derivation in self.derivations],
            "normal": [_chain(derivation).index(term) for term, derivation in pairs],
            "passes": [self.passes_before, self.passes_after],
            "statistics": self.statistics,
            CHOSEN: dict(self.plan.chosen),
        }

    @classmethod
    def from_data(
        cls, data: Mapping, results: Sequence[Store], rules: Sequence[Rule], invariant: bool = False
    ) -> Optimized:
        """What `to_data` wrote for these results under these rules, whoever wrote it. invariant: as for optimize_all.

        Raises TermError for a derivation that does not start at its result's term or has a step that no rule allows,
        ValueError, TypeError, KeyError or IndexError for other data, NotPlannable where the form has no plan.
        """
        derivations = tuple(map(Derivation.from_json, data["derivations"]))
        with stage("certificates"):
            for result, derivation in zip(results, derivations, strict=True):
                if derivation.start is not result.term:
                    raise TermError("a derivation starts from another term than this program's")
                check(derivation, (*ledger.proved(ALL), *rules))
        places = zip(derivations, map(_count, data["normal"]), strict=True)
        captured = tuple(_chain(derivation)[place] for derivation, place in places)
        before, after = map(_count, data["passes"])
        plan = plan_of(results, derivations, invariant, chosen_in(data))
        return planned(captured, derivations, plan, _statistics(data["statistics"]), (before, after))


def planned(
    captured: tuple[Term, ...],
    derivations: tuple[Derivation, ...],
    plan: Plan,
    statistics: dict,
    passes: tuple[int, int],
) -> Optimized:
    """The record of checked derivations with the plan of what they lead to."""
    terms = tuple(derivation.goal for derivation in derivations)
    return Optimized(captured, terms, plan, _fired(derivations), statistics, *passes, derivations)


@stage("plan")
def plan_of(
    results: Sequence[Store], derivations: Sequence[Derivation], invariant: bool, chosen: Mapping | None = None
) -> Plan:
    """The plan of what derivations from the results' terms lead to, read back. chosen: as for plan_by_cost.

    Raises NotPlannable.
    """
    stores = [replace(result, term=d.goal) for result, d in zip(results, derivations, strict=True)]
    given = stores, _fired(derivations), [result.term for result in results]
    return checked(invariant_plan(*given) if invariant else plan_by_cost(*given, chosen), stores)


def _fired(derivations: Sequence[Derivation]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(rule for derivation in derivations for rule in derivation.rules))


def plan_by_cost(
    stores: Sequence[Store],
    fired: Sequence[str] = (),
    references: Sequence[Term] = (),
    chosen: Mapping | None = None,
) -> Plan:
    """The plan of the least estimated time; without Triton, whose settings the estimates are of, the planner's own.

    fired, references: as for `plan_stores`. chosen: the `Plan.chosen` of an earlier search, which is then not repeated
    if it was of these stores. Raises NotPlannable.
    """
    if triton_missing():
        return plan_stores(stores, fired, references=references)
    if chosen and (known := chosen_plan(stores, fired, references, chosen)) is not None:
        return known
    from ..lowering.cost.cheapest_plan import cheapest_plan

    return cheapest_plan(stores, fired, references)


def chosen_in(data: Mapping) -> Mapping | None:
    """What an entry of the disk cache says of a plan that was searched; None if it says nothing, or nothing usable."""
    found = data.get(CHOSEN)
    return found if isinstance(found, dict) else None


def keep_chosen(key: str, entry: Mapping, plan: Plan) -> None:
    """Writes what was chosen for a plan into its entry, where that says something else."""
    if plan.chosen and plan.chosen != entry.get(CHOSEN):
        disk_cache.update(key, **{CHOSEN: dict(plan.chosen)})


def _chain(derivation: Derivation) -> list[Term]:
    return [derivation.start, *(step.after for step in derivation.steps)]


def _count(value) -> int:
    if not isinstance(value, int) or value < 0:
        raise ValueError(f"{value!r} is no count")
    return value


def _statistics(data) -> dict:
    """Names with numbers or words, or with several by name: what a report prints. Raises ValueError for other data."""
    words = (str, int, float)
    by_name = lambda value, kinds: isinstance(value, dict) and all(isinstance(v, kinds) for v in value.values())
    for value in data.values() if isinstance(data, dict) else [None]:
        inner = value.values() if isinstance(value, dict) else ()
        several = all(isinstance(v, words) or by_name(v, int) for v in inner) and isinstance(value, dict)
        if not (isinstance(value, words) or several):
            raise ValueError("no statistics of a search")
    if not by_name(data.get("matches", {}), int):
        raise ValueError("no numbers of matches")
    return data
