"""A derivation step by step for a page: the whole term before and after, with the subterm that changed marked.

Each step names its law and what the ledger says of it. Nothing is checked here: `python -m onepass verify` does that.
Example: the step multiply_by_one shows `[x · 1] + y` and `[x] + y`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from ..egraph.derivation import ledger
from ..egraph.derivation.certificate import (
    BACKWARD,
    NOT_RULES,
    Derivation,
    DerivationStep,
    Stretch,
    subterm_at,
)
from ..egraph.terms.printing import show, show_marked
from ..egraph.terms.term import Term
from ..egraph.terms.traversal import substitute

Step = Any  # a record, which prints itself by this module
CASES = "cells"  # the ledger's name of the method
EXACT = ("bitwise", "reassociates")
MAX_STEPS = 400
MARKS = ("\ue000", "\ue001")  # of Unicode's private use: no name of a program has them


@dataclass(frozen=True)
class LawView:
    """A law with its verdict. anchor: its place on the page. status: "proved", "trusted" or "checked"."""

    name: str
    text: str
    status: str
    verdict: str
    assuming: tuple[str, ...] = ()

    @property
    def anchor(self) -> str:
        return f"law-{self.name}"


@dataclass(frozen=True)
class StepView:
    """One step: `before` and `after` are texts with MARKS around what changes."""

    number: int
    rule: str
    law: str
    reversed: bool
    place: str
    before: str
    after: str


@dataclass(frozen=True)
class StretchView:
    """Steps that share names for what none of them changes."""

    names: tuple[tuple[str, str], ...]
    steps: tuple[StepView, ...]


@dataclass(frozen=True)
class DerivationView:
    """A chain of steps: the first MAX_STEPS of them, and how many there are."""

    stretches: tuple[StretchView, ...]
    steps: int


def derivation_view(data: Mapping, laws: Mapping[str, str]) -> DerivationView:
    """The chain that `Derivation.to_json` wrote. laws: the texts by name."""
    derivation = Derivation.from_json(data)
    shown, number = [], 0
    for stretch in derivation.stretches():
        taken = stretch.steps[: MAX_STEPS - number]
        steps = tuple(_step(number + k, step, laws, stretch) for k, step in enumerate(taken, 1))
        names = tuple((show(name), show(term)) for term, name in stretch.names.items())
        shown.append(StretchView(names, steps))
        number += len(steps)
    return DerivationView(tuple(found for found in shown if found.steps), len(derivation.steps))


def _step(number: int, step: DerivationStep, laws: Mapping[str, str], stretch: Stretch) -> StepView:
    names = stretch.names
    before, after = _whole(step, names) or (_marked(substitute(step.old, names)), _marked(substitute(step.new, names)))
    law = laws.get(step.rule) or NOT_RULES.get(step.rule, "")
    return StepView(number, step.rule, law, step.direction == BACKWARD, step.place, before, after)


def _marked(term: Term) -> str:
    return f"{MARKS[0]}{show(term)}{MARKS[1]}"


def _whole(step: DerivationStep, names: dict[Term, Term]) -> tuple[str, str] | None:
    """Both whole terms, with the subterm marked; None where a line would be too long, or a name hides the place."""
    texts = []
    for whole, part in ((step.before, step.old), (step.after, step.new)):
        term = substitute(whole, names)
        try:
            if subterm_at(term, step.position) is not substitute(part, names):
                return None
        except IndexError:
            return None
        texts.append(show_marked(term, step.position, MARKS, step.everywhere))
    return (texts[0], texts[1]) if all(texts) else None


def law_views(steps: Iterable[Step]) -> tuple[LawView, ...]:
    """The laws of derivations, each once, with what the ledger of proofs says of each."""
    proofs = ledger.entries()
    return tuple({step.rule: _law(step, proofs.get(step.rule)) for step in steps}.values())


def _law(step: Step, entry: Mapping | None) -> LawView:
    if step.trusted:
        return LawView(step.rule, step.law, "trusted", "not proved: used on its author's word")
    if entry is None:
        return LawView(step.rule, step.law, "checked", "not one of onepass's laws: it was checked when it was given")
    method = entry["method"]
    said = f"{entry['verdict']} by {'analysis of cases' if method == CASES else f'the theorem {method}'}"
    assuming = (step.exact, *entry["assuming"]) if step.exact not in ("", *EXACT) else entry["assuming"]
    return LawView(step.rule, step.law, str(entry["verdict"]), said, tuple(dict.fromkeys(assuming)))
