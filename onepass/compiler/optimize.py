"""The optimiser as one function of named steps: normalise, search, certify, plan.

A form is planned only if its derivation from the captured term was found again by an engine that is not egglog, and
checked.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Iterable, Mapping, Sequence
from functools import cache as once
from typing import Any

from ..egraph.derivation import ledger
from ..egraph.derivation.certificate import Derivation, check
from ..egraph.derivation.derive import derive, replay
from ..egraph.derivation.normalize import Normaliser
from ..egraph.rewrite.pattern_rule import PatternRule
from ..egraph.rewrite.rule import Rule
from ..egraph.search.cost import Target
from ..egraph.search.engine import EngineError, SearchLimits, rule_text
from ..egraph.search.pattern_grounding import Grounded, ground, readable
from ..egraph.search.search import search
from ..egraph.terms.term import Dim, Tensor, Term
from ..lowering.plan.device import H200
from ..lowering.plan.records import NotPlannable, Store
from ..lowering.stage_times import stage
from ..rules import ADDED, ALL, PHASES
from .assumptions import simplifying
from .optimized import Optimized, plan_of, planned

log = logging.getLogger(__name__)
KEPT_AS_DATA = "kept as data, as NaN is told from numbers"
TARGET = Target(special=H200.special_rate, matrix=H200.matrix_rate)  # a plan does not depend on which GPU is at hand


def optimize(term: Term, output: Tensor, order: tuple[Dim, ...], *args: Any, **kwargs: Any) -> Optimized:
    """The cheapest certified form of one term and its plan; see optimize_all."""
    return optimize_all((Store(term, output, order),), *args, **kwargs)


def optimize_all(
    results: Sequence[Store],
    rules: Sequence[Rule | PatternRule] = (),
    limits: SearchLimits | None = None,
    phases: Mapping[str, Sequence[Rule]] | None = None,
    target: Target = TARGET,
    invariant: bool = False,
    without: Sequence[str] = (),
) -> Optimized:
    """The cheapest certified forms of all results, in one plan; `rules` are the user's, `phases` replaces ours.

    invariant: the plan is one of lowering/cost/invariant_plans.py. without: names of our laws that are not used.

    Of our laws only those are used that the ledger calls proved as they stand.
    Raises NotPlannable, or EngineError if the search fails.
    """
    _say_unproved()
    given = resolve([result.term for result in results], rules)
    directed, searched = divide(given.rules)
    laws = _left(simplifying([result.term for result in results]), without)
    normaliser = Normaliser((*laws, *directed))
    captured = tuple(normaliser.normal(result.term) for result in results)
    ours = {name: ledger.proved(group) for name, group in PHASES.items()} if phases is None else phases
    ours = {name: _left(group, without) for name, group in ours.items()}
    with stage("search"):
        found = search(captured, with_rules(ours, searched), limits, target)
    started = time.perf_counter()
    every = (*(ledger.proved(ALL) if phases is None else ALL), *given.rules)
    pairs = zip(results, found.terms, strict=True)
    with stage("certificates"):
        derivations = tuple(certify(r.term, normaliser, term, found.fired, every) for r, term in pairs)
    statistics = {**found.statistics, "certificate seconds": time.perf_counter() - started}
    statistics |= {"declined": given.declined} if given.declined else {}
    statistics |= {} if set(ledger.proved(ADDED)) <= {*laws} else {"added masks": KEPT_AS_DATA}
    plan_made = plan_of(results, derivations, invariant)
    return planned(captured, derivations, plan_made, statistics, (found.passes_before, found.passes_after))


def _left(laws: Iterable[Rule], without: Sequence[str]) -> tuple[Rule, ...]:
    """The laws without those of these names."""
    return tuple(law for law in laws if law.name not in without)


@once
def _say_unproved() -> None:
    """One warning for laws that were edited since they were proved: without them little is fused."""
    if names := ledger.unproved(ALL):
        said = "the ledger does not call them proved as they stand; `python -m onepass prove` decides them"
        log.warning("onepass: %s of %s laws are not used: %s", len(names), len(ALL), said)


def resolve(terms: Sequence[Term], rules: Sequence[Rule | PatternRule], device: str | None = None) -> Grounded:
    """The user's rules as ordinary rules for one region: pattern rules are read, or matched on its normal forms."""
    if all(isinstance(r, Rule) or readable(r) for r in rules):
        return ground(rules, (), device)
    directed, _ = divide([r for r in rules if isinstance(r, Rule)])
    normaliser = Normaliser((*simplifying(terms), *directed))
    return ground(rules, [normaliser.normal(term) for term in terms], device)


def divide(rules: Sequence[Rule]) -> tuple[tuple[Rule, ...], tuple[Rule, ...]]:
    """A user's rules: those that only simplify (a guard has no form in the e-graph), and those that are searched."""
    searched = tuple(r for r in rules if _searchable(r))
    return tuple(r for r in rules if r not in searched), searched


def _searchable(rule: Rule) -> bool:
    try:
        rule_text(rule, "user")
    except EngineError:
        return False
    return True


def with_rules(phases: Mapping[str, Sequence[Rule]], rules: Sequence[Rule]) -> dict[str, tuple[Rule, ...]]:
    """The user's rules join the first phase, and saturate together with onepass's algebra."""
    first = next(iter(phases), "algebra")
    return {first: (*phases.get(first, ()), *rules)} | {name: tuple(r) for name, r in phases.items() if name != first}


def certify(
    term: Term, normaliser: Normaliser, extracted: Term, fired: Sequence[str], rules: Sequence[Rule]
) -> Derivation:
    """The checked derivation of the extracted form from the captured one, through its normal form.

    Raises NotPlannable if there is none: nothing is then replaced.
    """
    first = replay(term, normaliser)
    further = derive(first.goal, extracted, [rule for rule in dict.fromkeys(rules) if rule.name in fired])
    if further is None:
        raise NotPlannable("no certificate: the extracted form could not be derived again from the captured one")
    derivation = first.then(further)
    check(derivation, rules)
    return derivation
