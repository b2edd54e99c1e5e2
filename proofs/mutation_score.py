"""Tests the provers with wrong rules: mutants of every shipped rule, and the rules of unsound_rules.py.

No wrong rule may be proved. Some mutants are laws: a mutant that is proved is tested with many more random instances,
and if none refutes it, it is listed as a law. Example: of x + 0 = x, the mutant x - 0 = x is a law.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from time import perf_counter

from ..egraph.rewrite.rule import Rule
from ..egraph.sampling.mutants import mutants
from .check import check
from .refute import counterexample
from .unsound_rules import ZOO

BUDGET_SECONDS = 0.5  # for a mutant
SECOND_DRAWS = 2000  # random instances of a mutant that was proved


@dataclass(frozen=True)
class Score:
    """Names by verdict. sound: proved, and not refuted by the second draws. wrongly_proved: proved and refuted."""

    refuted: tuple[str, ...]
    unknown: tuple[str, ...]
    sound: tuple[str, ...]
    wrongly_proved: tuple[str, ...]
    seconds: float

    def __str__(self) -> str:
        wrong = len(self.refuted) + len(self.unknown) + len(self.wrongly_proved)
        kept = wrong - len(self.wrongly_proved)
        lines = [
            f"mutants and zoo in {self.seconds:.0f} s: {len(self.refuted)} refuted, {len(self.unknown)} unknown,"
            f" {len(self.sound)} laws in fact",
            f"score: {kept} of {wrong} wrong or undecided rules are not proved",
            *(f"  unknown: {name}" for name in self.unknown),
            *(f"  a law in fact: {name}" for name in self.sound),
        ]
        return "\n".join(lines)


def score(rules: Iterable[Rule], zoo: Iterable[Rule] = ZOO) -> Score:
    """Decides every mutant of the rules, and the zoo, in which no rule is a law."""
    start = perf_counter()
    found: dict[str, list[str]] = {"refuted": [], "unknown": [], "proved": [], "wrong": []}
    for rule in rules:
        for mutant in mutants(rule):
            status: str = check(mutant, BUDGET_SECONDS).status
            if status == "proved" and counterexample(mutant, 2 * BUDGET_SECONDS, SECOND_DRAWS):
                status = "wrong"
            found[status].append(mutant.name)
    for rule in zoo:
        status = check(rule).status
        found["wrong" if status == "proved" else status].append(f"{rule.name} of the zoo")
    refuted, unknown, proved, wrong = (tuple(found[k]) for k in ("refuted", "unknown", "proved", "wrong"))
    return Score(refuted, unknown, proved, wrong, perf_counter() - start)
