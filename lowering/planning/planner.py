"""Terms to a plan: the entry of planning.

Invariant: a plan is decided by the structure of terms and by what it is told to store; no reduction is known by what it
is for. Example: `build_plan(term, output, order)` is a plan whose last kernel stores the term in `output`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from ...egraph.terms.term import Dim, Tensor, Term, TermError
from ...egraph.terms.traversal import subterms, tensors
from ..plan.plan_choice import FIRST_GUESS, PlanChoice, as_searched, choice_of, rows_of
from ..plan.records import NotPlannable, Plan, Store
from ..plan.thresholds import MAX_RESIDENT_ELEMENTS
from .pipeline import FROM_CUTS, SHAPE, TERMS, run_passes
from .planning_state import Planning
from .verify import WrongPlanning


def build_plan(
    term: Term,
    output: Tensor,
    order: tuple[Dim, ...],
    derivation: Sequence[str] = (),
    held: int = MAX_RESIDENT_ELEMENTS,
) -> Plan:
    """The plan that computes `term` into `output`, whose axes run over `order` (dims the term lacks are broadcast).

    Raises NotPlannable with the reason.
    """
    return plan_stores((Store(term, output, order),), derivation, held)


def plan_stores(
    stores: Sequence[Store],
    derivation: Sequence[str] = (),
    held: int = MAX_RESIDENT_ELEMENTS,
    references: Sequence[Term] = (),
) -> Plan:
    """The plan that computes every store; stores whose loops have work in common share a kernel. Raises NotPlannable.

    held: the most elements of one dim that a tile holds whole. references: for each store, its term as the program has
    it, with the program's roundings; left out where the stores' terms are these.
    """
    return plan_with(prepared(normalised(stores, held, references)), derivation)


def normalised(
    stores: Sequence[Store], held: int = MAX_RESIDENT_ELEMENTS, references: Sequence[Term] = ()
) -> Planning:
    """The terms as planning has them, whatever is chosen by cost. Raises NotPlannable."""
    for store in stores:
        _refuse(store.term, store.output, store.order)
    return run_passes(Planning.of(stores, references or [store.term for store in stores], held), TERMS)


def prepared(planning: Planning, choice: PlanChoice = FIRST_GUESS) -> Planning:
    """What planning knows of normalised terms before anything is cut: their shapes. Raises NotPlannable."""
    return run_passes(replace(planning, choice=choice), SHAPE)


def plan_with(planning: Planning, derivation: Sequence[str] = (), choice: PlanChoice | None = None) -> Plan:
    """The plan of what is prepared. choice: with the rows that it was prepared for. Raises NotPlannable."""
    done = run_passes(planning if choice is None else replace(planning, choice=choice), FROM_CUTS)
    return Plan(
        kernels=done.kernels,
        inputs=tuple(dict.fromkeys(t for store in done.given for t in tensors(store.term))),
        outputs=tuple(store.output for store in done.given),
        derivation=tuple(derivation),
        notes=done.notes,
        plan_passes=done.plan_passes,
        shape_reasons=done.shape_reasons,
        saving=done.saving,
    )


def chosen_plan(
    stores: Sequence[Store], derivation: Sequence[str], references: Sequence[Term], chosen: Mapping
) -> Plan | None:
    """The plan that a search by cost has chosen before, by its `Plan.chosen`; None where that is of another plan.

    Arguments as for `plan_stores`. Raises NotPlannable.
    """
    terms = normalised(stores, references=references)
    try:
        planning = prepared(terms, PlanChoice(rows=rows_of(chosen)))
        every = (*terms.terms, *planning.terms)
        plan = plan_with(planning, derivation, choice_of(chosen, every))
        return as_searched(chosen, plan, every)
    except (TermError, WrongPlanning, NotPlannable, ArithmeticError, LookupError, TypeError, ValueError):
        return None


def _refuse(term: Term, output: Tensor, order: tuple[Dim, ...]) -> None:
    """Raises NotPlannable for a store that no kernel can have."""
    if stray := sorted(term.dims - set(order)):
        raise NotPlannable(f"the result depends on {', '.join(map(str, stray))}, which the output has no axis for")
    if len(order) != len(output.shape) or len(set(order)) != len(order):
        raise NotPlannable(
            f"the output {output.name} has {len(output.shape)} axes, its dims are {', '.join(map(str, order))}"
        )
    if any(t.op == "var" for t in subterms(term)):
        raise NotPlannable("the term has free variables")
    if any(t.op == "stored" for t in subterms(term)):
        raise NotPlannable("the term says what is stored, which the plan decides")
    if term.dtype.startswith("pair"):
        raise NotPlannable("the result is a pair of scale and mantissa; only its parts can be stored")
